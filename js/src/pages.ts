// Lists that come in pages.

import type { Ask, Requests } from "./request.ts";

const MOST = 200; // that a page can have

/** A list. Iterate over all its items, over its pages, or get one page. Nothing is requested before. */
export class List<Item, Page extends { items: Item[]; next: string | null } = { items: Item[]; next: string | null }> {
  readonly #requests: Requests;
  readonly #path: string;
  readonly #ask: Ask;

  /** @internal */
  constructor(requests: Requests, path: string, ask: Ask) {
    this.#requests = requests;
    this.#path = path;
    this.#ask = ask;
  }

  /** Return one page: the first, or the one behind the cursor that another page had as `next`. */
  page(cursor?: string | null): Promise<Page> {
    const query = { limit: MOST, ...this.#ask.query, cursor };
    return this.#requests.send<Page>("GET", this.#path, { ...this.#ask, query });
  }

  async *pages(): AsyncGenerator<Page, void, void> {
    let cursor: string | null = null;
    do {
      const page: Page = await this.page(cursor);
      yield page;
      cursor = page.next;
    } while (cursor !== null);
  }

  async *[Symbol.asyncIterator](): AsyncGenerator<Item, void, void> {
    for await (const page of this.pages()) yield* page.items;
  }

  /** Return all items. */
  async all(): Promise<Item[]> {
    const items: Item[] = [];
    for await (const page of this.pages()) items.push(...page.items);
    return items;
  }
}
