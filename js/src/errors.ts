// What can go wrong with a request. In addition, an abort throws the reason of its signal, and a wrong argument a TypeError.

export class RowlockError extends Error {
  static {
    this.prototype.name = "RowlockError";
  }
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
export class RequestError extends RowlockError {
  static {
    this.prototype.name = "RequestError";
  }

  readonly status: number;
  /** Stable, for programs: see docs/errors.md. Empty if the answer came from something other than rowlock, such as a proxy. */
  readonly code: string;
  /** The wrong part of the request, in snake_case. */
  readonly field: string | undefined;
  /** Finds the request in the server's log. */
  readonly requestId: string | undefined;
  /** Seconds after which the server asks for another try. */
  readonly retryAfter: number | undefined;

  constructor(message: string, told: Refusal) {
    super(message);
    this.status = told.status;
    this.code = told.code;
    this.field = told.field;
    this.requestId = told.requestId;
    this.retryAfter = told.retryAfter;
  }
}

/** 400, 413, 422 and other answers that say: the request is wrong. Sending it again won't help. */
export class BadRequest extends RequestError {
  static {
    this.prototype.name = "BadRequest";
  }
}

/** 401: there is no token, or it is unknown, expired or revoked. */
export class NotAuthenticated extends RequestError {
  static {
    this.prototype.name = "NotAuthenticated";
  }
}

/** 403: the caller may not do this. */
export class NotAllowed extends RequestError {
  static {
    this.prototype.name = "NotAllowed";
  }
}

/** 404: it doesn't exist, or the caller may not see it. */
export class NotFound extends RequestError {
  static {
    this.prototype.name = "NotFound";
  }
}

/** 409: the status of the job doesn't allow it, or a name is taken. */
export class Conflict extends RequestError {
  static {
    this.prototype.name = "Conflict";
  }
}

/** 429: too many requests. */
export class TooMany extends RequestError {
  static {
    this.prototype.name = "TooMany";
  }
}

/** 5xx: the server or its database has a problem. */
export class ServerError extends RequestError {
  static {
    this.prototype.name = "ServerError";
  }
}

/** There was no answer. The server may have done the request or not. `cause` says more. */
export class ConnectionFailed extends RowlockError {
  static {
    this.prototype.name = "ConnectionFailed";
  }
}

/** The time of `jobs.wait` is over, and the job has not ended. */
export class WaitTimeout extends RowlockError {
  static {
    this.prototype.name = "WaitTimeout";
  }
}

const KINDS: Readonly<Record<number, typeof RequestError>> = {
  401: NotAuthenticated,
  403: NotAllowed,
  404: NotFound,
  409: Conflict,
  429: TooMany,
};

/** @internal Return the error for an answer that is no success. */
export function refusal(answer: Response, text: string): RequestError {
  const told = problem(text);
  const { status } = answer;
  const Kind = KINDS[status] ?? (status >= 500 ? ServerError : BadRequest);
  const message = words(told["detail"]) ?? `The server answered ${status} ${answer.statusText}`.trimEnd();
  return new Kind(message, {
    status,
    code: words(told["code"]) ?? "",
    field: words(told["field"]),
    requestId: words(told["request_id"]) ?? answer.headers.get("x-request-id") ?? undefined,
    retryAfter: seconds(answer.headers.get("retry-after")),
  });
}

function problem(text: string): Record<string, unknown> {
  try {
    const told: unknown = JSON.parse(text);
    return typeof told === "object" && told !== null ? (told as Record<string, unknown>) : {};
  } catch {
    return {}; // an answer of a proxy
  }
}

const words = (value: unknown): string | undefined => (typeof value === "string" && value ? value : undefined);

/** Return the seconds of a Retry-After header, which has a number or a date. */
function seconds(header: string | null): number | undefined {
  if (header === null || header.trim() === "") return undefined;
  const after = Number.isNaN(Number(header)) ? (Date.parse(header) - Date.now()) / 1000 : Number(header);
  return Number.isFinite(after) ? Math.max(after, 0) : undefined;
}
