import type { LiveJobs } from "./api.ts";
import { type Requests } from "./request.ts";
/**
 * Yield what the server tells about these jobs, over as many connections as it takes. Each connection begins with the present state
 * (`reset`). The first answer must come within the usual retries. After it, this waits for the server as long as it takes.
 */
export declare function liveJobs(requests: Requests, query: object, signal: AbortSignal | undefined): AsyncGenerator<LiveJobs, void, void>;
