export interface AskForToken {
    /** True if the server refused the last token. */
    renew: boolean;
    /** Aborted when the time for one try is over. */
    signal: AbortSignal;
}
type Maybe = string | null | undefined;
export type Token = string | ((ask: AskForToken) => Maybe | Promise<Maybe>);
export interface Options {
    /**
     * A token, or a function that gets one. The client keeps it in memory, and calls the function again when the server answers 401.
     * Without a token, a browser sends the cookie of its own origin.
     */
    token?: Token | undefined;
    fetch?: typeof fetch | undefined;
    /** Seconds for one try. Default: 30 */
    timeout?: number | undefined;
    /** How often a request is sent again that may be sent twice. Default: 4, within about eight seconds */
    retries?: number | undefined;
    /** Sent with every request. */
    headers?: Record<string, string> | undefined;
}
export interface Ask {
    /** Anything that JSON can write. */
    body?: unknown;
    /** A body that is JSON already. */
    text?: string;
    /** Lists are sent as several parameters. undefined and null are left out. */
    query?: object | undefined;
    signal?: AbortSignal | undefined;
    /** Seconds for one try. */
    timeout?: number | undefined;
    /** Try again so often, whatever the method is. */
    retries?: number | undefined;
    /** True: a second request does no harm. Default: true for GET, PUT and DELETE. Say it for a POST that carries an id. */
    repeatable?: boolean | undefined;
}
export declare class Requests {
    #private;
    /** The address of the server, without a slash at its end. */
    readonly base: string;
    /** How often a request is sent again. */
    readonly retries: number;
    constructor(url: string | URL, options?: Options);
    /** Send JSON, return JSON. `path` begins with /api/. An answer without a body is undefined. */
    send<T>(method: string, path: string, ask?: Ask): Promise<T>;
    /** GET an answer that is read as it comes. There is one try, and its time limit ends with the headers. Abort `signal` when you have read enough. */
    open(path: string, ask?: Ask): Promise<Response>;
}
/** Return an id or a name as one part of a path. */
export declare function part(text: string): string;
/** Call `stop` when the signal aborts. Returns a function that takes this back. A signal gets one listener in all: Node warns of more than ten. */
export declare function onAbort(signal: AbortSignal, stop: () => void): () => void;
/** Settle as the promise does, or reject with the signal's reason. */
export declare function unlessAborted<T>(promise: Promise<T>, signal: AbortSignal | undefined): Promise<T>;
/** Resolve after so many seconds, or reject with the signal's reason. */
export declare function pause(seconds: number, signal?: AbortSignal): Promise<void>;
/** Return the seconds before try number `tries` + 1: exponential, with jitter, and at least what the server asks for. */
export declare function backoff(tries: number, error?: unknown): number;
/** True if another try may help and does no harm. A request that got 429 was not done. */
export declare function mayRepeat(error: unknown, repeatable?: boolean): boolean;
export {};
