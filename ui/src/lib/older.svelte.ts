// A search by payload, error or tag reads some thousand jobs per request. This continues where it has ended.

import { get, type Query } from "./api";
import type { Job, JobList } from "./types";

export class Older {
  items = $state.raw<Job[]>([]);
  isSearching = $state(false);
  problem = $state.raw<unknown>(null);
  private last = $state.raw<JobList | null>(null);
  private controller: AbortController | null = null;

  /** Where the search continues, and how far back it has read. */
  after(first: JobList | undefined): { next: string | null; back: string | null } {
    const { next = null, looked_back_to: back = null } = this.last ?? first ?? {};
    return { next, back };
  }

  /** Search until another page is found, or no older job is left. */
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

  /** Begin anew, because the filter has changed. */
  forget(): void {
    this.stop();
    this.items = [];
    this.last = null;
    this.problem = null;
  }
}
