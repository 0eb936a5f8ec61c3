/** A list. Iterate over all its items, over its pages, or get one page. Nothing is requested before. */
export declare class List<Item, Page extends {
    items: Item[];
    next: string | null;
} = {
    items: Item[];
    next: string | null;
}> {
    #private;
    /** Return one page: the first, or the one behind the cursor that another page had as `next`. */
    page(cursor?: string | null): Promise<Page>;
    pages(): AsyncGenerator<Page, void, void>;
    [Symbol.asyncIterator](): AsyncGenerator<Item, void, void>;
    /** Return all items. */
    all(): Promise<Item[]>;
}
