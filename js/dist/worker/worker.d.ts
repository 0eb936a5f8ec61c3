import { type Workers } from "./handlers.ts";
import { type Level } from "./messages.ts";
export interface WorkerOptions {
    /** The address of the server. Default: ROWLOCK_API */
    url?: string | undefined;
    /** A token with the scope worker. Default: ROWLOCK_TOKEN */
    token?: string | undefined;
    /** Handlers that run at the same time, 1 to 1,000. Default: 10 */
    concurrency?: number | undefined;
    /** Seconds until other workers may take the jobs of a worker that has died, 1 to 300. Default: 30 */
    lease?: number | undefined;
    /** What its name begins with. The rest is new at each start. Default: the name of the host */
    name?: string | undefined;
    /** Which of the topics to run. Default: all */
    topics?: readonly string[] | undefined;
    /** Gets one line per event. Default: nothing is logged */
    log?: ((level: Level, text: string) => void) | undefined;
    /** The least important events that `log` gets. Default: info */
    logLevel?: Level | undefined;
}
export declare class Worker {
    #private;
    /** The name under which the server knows this worker. */
    readonly name: string;
    readonly topics: readonly string[];
    /** Resolves when the worker has stopped. Rejects if it can't go on: the token is refused, for example. */
    readonly done: Promise<void>;
    constructor(workers: Workers, options?: WorkerOptions);
    /** The address of the server. */
    get url(): string;
    /** Begin to claim jobs. */
    start(): Promise<void>;
    /**
     * Claim nothing more. Handlers have `grace` seconds to end. Then their signals are aborted, and what has not ended a second later is given
     * back, which costs no retry. Resolves when all of that is stored.
     */
    stop({ grace }?: {
        grace?: number | undefined;
    }): Promise<void>;
    /** An error of a handler that no code has caught: the run to which it belongs has failed. Return false if it belongs to none. */
    blame(error: unknown): boolean;
}
