const MOST = 200;
export class List {
    #requests;
    #path;
    #ask;
    constructor(requests, path, ask) {
        this.#requests = requests;
        this.#path = path;
        this.#ask = ask;
    }
    page(cursor) {
        const query = { limit: MOST, ...this.#ask.query, cursor };
        return this.#requests.send("GET", this.#path, { ...this.#ask, query });
    }
    async *pages() {
        let cursor = null;
        do {
            const page = await this.page(cursor);
            yield page;
            cursor = page.next;
        } while (cursor !== null);
    }
    async *[Symbol.asyncIterator]() {
        for await (const page of this.pages())
            yield* page.items;
    }
    async all() {
        const items = [];
        for await (const page of this.pages())
            items.push(...page.items);
        return items;
    }
}
