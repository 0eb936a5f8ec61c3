// What a screen shows of the API: loaded when its address changes, again and again while we are live.

import { onDestroy } from "svelte";
import { live } from "./live.svelte";

export class Resource<T> {
  data = $state.raw<T | undefined>(undefined);
  error = $state.raw<unknown>(undefined);
  at = $state(Date.now()); // when it was loaded
  private controller: AbortController | null = null;
  private timer: ReturnType<typeof setTimeout> | undefined;

  constructor(
    private readonly load: (signal: AbortSignal) => Promise<T>,
    private readonly every: number,
  ) {}

  /** `fresh`: what was shown is of something else. */
  async reload(fresh = false): Promise<void> {
    this.controller?.abort();
    clearTimeout(this.timer);
    const controller = (this.controller = new AbortController());
    if (fresh) this.data = undefined;
    try {
      const data = await this.load(controller.signal);
      if (controller.signal.aborted) return;
      this.at = Date.now();
      this.data = data;
      this.error = undefined;
    } catch (error) {
      if (controller.signal.aborted) return;
      this.error = error;
    }
    this.later();
  }

  private later(): void {
    if (!this.every) return;
    this.timer = setTimeout(() => {
      if (live.paused || document.hidden) this.later();
      else void this.reload();
    }, this.every * 1000);
  }

  stop(): void {
    this.controller?.abort();
    clearTimeout(this.timer);
  }
}

/** `key`: when it changes, what was loaded is of something else. `every`: seconds; 0: only when it is asked to. */
export function resource<T>(load: (signal: AbortSignal) => Promise<T>, { key = () => "", every = 0 }: { key?: () => string; every?: number } = {}): Resource<T> {
  const made = new Resource(load, every);
  $effect(() => {
    key();
    void made.reload(true);
  });
  onDestroy(() => made.stop());
  return made;
}
