export class RowlockError extends Error {
    static {
        this.prototype.name = "RowlockError";
    }
}
export class RequestError extends RowlockError {
    static {
        this.prototype.name = "RequestError";
    }
    status;
    code;
    field;
    requestId;
    retryAfter;
    constructor(message, told) {
        super(message);
        this.status = told.status;
        this.code = told.code;
        this.field = told.field;
        this.requestId = told.requestId;
        this.retryAfter = told.retryAfter;
    }
}
export class BadRequest extends RequestError {
    static {
        this.prototype.name = "BadRequest";
    }
}
export class NotAuthenticated extends RequestError {
    static {
        this.prototype.name = "NotAuthenticated";
    }
}
export class NotAllowed extends RequestError {
    static {
        this.prototype.name = "NotAllowed";
    }
}
export class NotFound extends RequestError {
    static {
        this.prototype.name = "NotFound";
    }
}
export class Conflict extends RequestError {
    static {
        this.prototype.name = "Conflict";
    }
}
export class TooMany extends RequestError {
    static {
        this.prototype.name = "TooMany";
    }
}
export class ServerError extends RequestError {
    static {
        this.prototype.name = "ServerError";
    }
}
export class ConnectionFailed extends RowlockError {
    static {
        this.prototype.name = "ConnectionFailed";
    }
}
export class WaitTimeout extends RowlockError {
    static {
        this.prototype.name = "WaitTimeout";
    }
}
const KINDS = {
    401: NotAuthenticated,
    403: NotAllowed,
    404: NotFound,
    409: Conflict,
    429: TooMany,
};
export function refusal(answer, text) {
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
function problem(text) {
    try {
        const told = JSON.parse(text);
        return typeof told === "object" && told !== null ? told : {};
    }
    catch {
        return {};
    }
}
const words = (value) => (typeof value === "string" && value ? value : undefined);
function seconds(header) {
    if (header === null || header.trim() === "")
        return undefined;
    const after = Number.isNaN(Number(header)) ? (Date.parse(header) - Date.now()) / 1000 : Number(header);
    return Number.isFinite(after) ? Math.max(after, 0) : undefined;
}
