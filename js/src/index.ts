export { Rowlock } from "./client.ts";
export {
  BadRequest, Conflict, ConnectionFailed, NotAllowed, NotAuthenticated, NotFound, RequestError, RowlockError, ServerError, TooMany, WaitTimeout,
} from "./errors.ts";
export type { FlowJob, FlowsClient, NewFlow, Result } from "./flows.ts";
export type { Enqueued, JobsClient, Key, Page, View } from "./jobs.ts";
export type { List } from "./pages.ts";
export type { AskForToken, Options, Token } from "./request.ts";
export type { TokensClient } from "./tokens.ts";
export type { Abortable, AnyTopics, EnqueueOptions, Filter, Job, JobStatus, NewJob } from "./types.ts";
/** The shapes of requests and answers, as the HTTP API has them. */
export type * as api from "./api.ts";
