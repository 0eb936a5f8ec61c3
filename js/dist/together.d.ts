import { type Requests } from "./request.ts";
export type Named = {
    id: string;
    topic: string;
};
export declare class Together {
    #private;
    constructor(requests: Requests);
    /** Return the id of the new job, or of the live job that has its key. An abort ends the call at once; its job may be stored all the same. */
    enqueue(job: Named, signal: AbortSignal | undefined): Promise<string>;
}
/** True if the server refuses an id that this client has made: then an earlier try added the job, and this caller may add jobs but not see them. */
export declare const isOwn: (error: unknown) => boolean;
/** Cut jobs, each with its JSON text, into the bodies of requests. */
export declare function batches<Item extends {
    text: string;
}>(jobs: Iterable<Item>): Generator<{
    text: string;
    items: Item[];
}>;
