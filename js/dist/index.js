export { Rowlock } from "./client.js";
export { BadRequest, Conflict, ConnectionFailed, NotAllowed, NotAuthenticated, NotFound, RequestError, RowlockError, ServerError, TooMany, WaitTimeout, } from "./errors.js";
