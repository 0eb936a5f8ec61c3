// A search that looks into payloads, errors or tags ends after some thousand jobs. This goes on where it has ended.

import { get, type Query } from "./api";
import type { Job, JobList } from "./types";

export class Older {
  items = $state.raw<Job[]>([]);
  isSearching = $state(false);
  problem = $state.raw<unknown>(null);
  private last = $state.raw<JobList | null>(null);
  private controller: AbortController | null = null;

  /** Where to go on, and how far it has looked, after the first page. */
  after(first: JobList | undefined): { next: string | null; back: string | null } {
    const { next = null, looked_back_to: back = null } = this.last ?? first ?? {};
    return { next, back };
  }

  /** Until there is a page more, or nothing older. */
  async search(wanted: Query, first: JobList, limit: number): Promise<void> {
    const controller = (this.controller = new AbortController());
    this.isSearching = true;
    this.problem = null;
    let { next } = this.after(first);
    try {
      for (let found = 0; next !== null && found < limit; next = this.last!.next) {
        const page: JobList = await get<JobList>("jobs", { ...wanted, limit, cursor: next }, controller.signal);
        if (controller.signal.aborted) return;
        this.last = page;
        this.items = [...this.items, ...page.items];
        found += page.items.length;
      }
    } catch (error) {
      if (controller.signal.aborted) return;
      this.problem = error;
    }
    this.isSearching = false;
  }

  stop(): void {
    this.controller?.abort();
    this.isSearching = false;
  }

  /** What is looked for is something else. */
  forget(): void {
    this.stop();
    this.items = [];
    this.last = null;
    this.problem = null;
  }
}
