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
export {};
