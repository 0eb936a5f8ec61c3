export declare class RowlockError extends Error {
}
/** What the server told about a refusal. */
export interface Refusal {
    status: number;
    code: string;
    field?: string | undefined;
    requestId?: string | undefined;
    retryAfter?: number | undefined;
}
/** The server refused a request. The message is the server's sentence. */
export declare class RequestError extends RowlockError {
    readonly status: number;
    /** Stable, for programs: see docs/errors.md. Empty if the answer came from something other than rowlock, such as a proxy. */
    readonly code: string;
    /** The wrong part of the request, in snake_case. */
    readonly field: string | undefined;
    /** Finds the request in the server's log. */
    readonly requestId: string | undefined;
    /** Seconds after which the server asks for another try. */
    readonly retryAfter: number | undefined;
    constructor(message: string, told: Refusal);
}
/** 400, 413, 422 and other answers that say: the request is wrong. Sending it again won't help. */
export declare class BadRequest extends RequestError {
}
/** 401: there is no token, or it is unknown, expired or revoked. */
export declare class NotAuthenticated extends RequestError {
}
/** 403: the caller may not do this. */
export declare class NotAllowed extends RequestError {
}
/** 404: it doesn't exist, or the caller may not see it. */
export declare class NotFound extends RequestError {
}
/** 409: the status of the job doesn't allow it, or a name is taken. */
export declare class Conflict extends RequestError {
}
/** 429: too many requests. */
export declare class TooMany extends RequestError {
}
/** 5xx: the server or its database has a problem. */
export declare class ServerError extends RequestError {
}
/** There was no answer. The server may have done the request or not. `cause` says more. */
export declare class ConnectionFailed extends RowlockError {
}
/** The time of `jobs.wait` is over, and the job has not ended. */
export declare class WaitTimeout extends RowlockError {
}
