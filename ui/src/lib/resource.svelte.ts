// Data that a screen shows: loaded when its address changes, and again and again while the page is live.

import { onDestroy, untrack } from "svelte";
import { ApiError } from "./api";
import { connection } from "./connection.svelte";
import { live } from "./live.svelte";

const AGAIN = 5; // seconds until a failed load is tried again
const PATIENCE = 10; // times as long as the last load took, before the next

export class Resource<T> {
  data = $state.raw<T | undefined>(undefined);
  error = $state.raw<unknown>(undefined);
  at = $state(Date.now()); // when it was loaded
  took = 0; // milliseconds
  private controller: AbortController | null = null;
  private timer: ReturnType<typeof setTimeout> | undefined;

  constructor(
    private readonly load: (signal: AbortSignal) => Promise<T>,
    private readonly every: number,
  ) {}

  /** `fresh`: drop the shown data, because the key has changed. */
  async reload(fresh = false): Promise<void> {
    this.controller?.abort();
    clearTimeout(this.timer);
    const controller = (this.controller = new AbortController());
    if (fresh) this.data = undefined;
    const began = Date.now();
    try {
      const data = await this.load(controller.signal);
      if (controller.signal.aborted) return;
      this.at = Date.now();
      this.took = this.at - began;
      this.data = data;
      this.error = undefined;
    } catch (error) {
      if (controller.signal.aborted) return;
      this.error = error;
    }
    this.later();
  }

  /** True if a repeat may succeed: the server was away or had a fault. It would refuse a bad request again. */
  private get mayRecover(): boolean {
    return this.error instanceof ApiError && (this.error.status === 0 || this.error.status >= 500);
  }

  private later(): void {
    const wait = this.every ? Math.max(this.every, (PATIENCE * this.took) / 1000) : this.mayRecover ? AGAIN : 0;
    if (!wait) return;
    this.timer = setTimeout(() => {
      if (live.paused || document.hidden) this.later();
      else void this.reload();
    }, wait * 1000);
  }

  stop(): void {
    this.controller?.abort();
    clearTimeout(this.timer);
  }
}

/** All resources of the screen. */
class Shown {
  items = $state.raw<Resource<unknown>[]>([]);
}
export const shown = new Shown();
connection.back(() => shown.items.forEach((one) => void one.reload()));

/** `key`: when it changes, the loaded data is dropped. `every`: seconds between two loads; 0: load only on `reload`. */
export function resource<T>(load: (signal: AbortSignal) => Promise<T>, { key = () => "", every = 0 }: { key?: () => string; every?: number } = {}): Resource<T> {
  const made = new Resource(load, every);
  $effect(() => {
    key();
    untrack(() => void made.reload(true)); // values that the load reads must not trigger another load
  });
  $effect(() => {
    untrack(() => (shown.items = [...shown.items, made]));
    return () => (shown.items = shown.items.filter((one) => one !== made));
  });
  onDestroy(() => made.stop());
  return made;
}
