import { ConnectionFailed, NotFound, RequestError, RowlockError, refusal } from "./errors.js";
const REPEATABLE = new Set(["GET", "HEAD", "PUT", "DELETE"]);
const LATER = new Set([408, 500, 502, 503, 504]);
const FIRST_PAUSE = 0.5;
const LONGEST_TIMER = 2 ** 31 - 1;
const LONGEST_PAUSE = 30;
export class Requests {
    base;
    retries;
    #fetch;
    #timeout;
    #headers;
    #isOwnOrigin;
    #given;
    #token = null;
    #asking;
    constructor(url, options = {}) {
        const { location } = globalThis;
        const address = absolute(url, location);
        this.base = address.origin + address.pathname.replace(/\/+$/, "");
        this.#fetch = options.fetch ?? ((...given) => globalThis.fetch(...given));
        this.#timeout = number("timeout", options.timeout, 30);
        this.retries = number("retries", options.retries, 4);
        this.#headers = { ...options.headers };
        this.#given = options.token;
        if (typeof options.token === "string")
            this.#token = checked(options.token);
        this.#isOwnOrigin = location === undefined || location.origin === address.origin;
    }
    async send(method, path, ask = {}) {
        const repeatable = ask.repeatable ?? (ask.retries !== undefined || REPEATABLE.has(method));
        const most = ask.retries ?? this.retries;
        const sent = ask.text ?? (ask.body === undefined ? undefined : json(ask.body));
        for (let tries = 0;; tries++) {
            try {
                return await this.#try(method, path, ask, sent, (readJson));
            }
            catch (error) {
                if (ask.signal?.aborted)
                    throw ask.signal.reason;
                if (tries > 0 && method === "DELETE" && error instanceof NotFound)
                    return undefined;
                if (tries >= most || !mayRepeat(error, repeatable))
                    throw error;
                await pause(backoff(tries, error), ask.signal);
            }
        }
    }
    open(path, ask = {}) {
        return this.#try("GET", path, ask, undefined, (answer) => answer, true);
    }
    async #try(method, path, ask, sent, read, isStream = false) {
        const { signal } = ask;
        signal?.throwIfAborted();
        const seconds = ask.timeout ?? this.#timeout;
        const address = this.base + path + query(ask.query);
        for (let renewed = false;; renewed = true) {
            const token = this.#token ?? (typeof this.#given === "function" ? await unlessAborted(this.#ask(false), signal) : null);
            const ours = new AbortController();
            const stop = () => ours.abort(signal?.reason);
            const timer = setTimeout(stop, Math.min(seconds * 1000, LONGEST_TIMER));
            const forget = signal && onAbort(signal, stop);
            try {
                const answer = await this.#fetch(address, {
                    method,
                    headers: this.#with(token, sent !== undefined),
                    body: sent ?? null,
                    signal: ours.signal,
                    credentials: "same-origin",
                    redirect: "manual",
                });
                if (answer.ok)
                    return await read(answer);
                const refused = answer.status < 400 ? redirected(answer) : refusal(answer, await answer.text());
                if (answer.status !== 401 || renewed || !(await this.#renew(token, signal)))
                    throw refused;
            }
            catch (error) {
                if (signal?.aborted)
                    throw signal.reason;
                if (error instanceof RowlockError)
                    throw error;
                const why = ours.signal.aborted ? `none within ${seconds} s` : reason(error);
                throw new ConnectionFailed(`${method} ${this.base}${path} got no answer: ${why}`, { cause: error });
            }
            finally {
                clearTimeout(timer);
                if (!isStream)
                    forget?.();
            }
        }
    }
    #with(token, hasBody) {
        const headers = { ...this.#headers };
        if (token !== null)
            headers["authorization"] = `Bearer ${token}`;
        else if (this.#isOwnOrigin)
            headers["x-rowlock-csrf"] = "1";
        if (hasBody)
            headers["content-type"] = "application/json";
        return headers;
    }
    async #renew(refused, signal) {
        if (typeof this.#given !== "function")
            return false;
        if (this.#token === refused)
            this.#token = null;
        return (this.#token ?? (await unlessAborted(this.#ask(true), signal))) !== null;
    }
    #ask(renew) {
        return (this.#asking ??= this.#askNow(renew).finally(() => (this.#asking = undefined)));
    }
    async #askNow(renew) {
        const limit = new AbortController();
        const timer = setTimeout(() => limit.abort(new Error(`nothing within ${this.#timeout} s`)), Math.min(this.#timeout * 1000, LONGEST_TIMER));
        try {
            const get = this.#given;
            const token = await unlessAborted(Promise.resolve(get({ renew, signal: limit.signal })), limit.signal);
            return (this.#token = token === null || token === undefined ? null : checked(token));
        }
        catch (error) {
            if (error instanceof RowlockError)
                throw error;
            throw new ConnectionFailed(`The function that gets a token failed: ${reason(error)}`, { cause: error });
        }
        finally {
            clearTimeout(timer);
        }
    }
}
export function json(value) {
    return JSON.stringify(value, function (name, plain) {
        const given = this[name];
        if (typeof plain === "number" ? !Number.isFinite(plain) : given instanceof Date && plain === null)
            throw new TypeError(`${name} is ${given}`);
        return plain;
    });
}
export function part(text) {
    if (typeof text !== "string" || text === "" || text === "." || text === "..") {
        throw new TypeError(`An id or a name is a text that is not empty, not ${JSON.stringify(text)}`);
    }
    return encodeURIComponent(text);
}
const followers = new WeakMap();
export function onAbort(signal, stop) {
    let all = followers.get(signal);
    if (all === undefined) {
        const stops = (all = new Set());
        followers.set(signal, stops);
        signal.addEventListener("abort", () => [...stops].forEach((one) => one()), { once: true });
    }
    all.add(stop);
    return () => void all.delete(stop);
}
export function unlessAborted(promise, signal) {
    if (signal === undefined)
        return promise;
    return new Promise((resolve, reject) => {
        if (signal.aborted)
            return reject(signal.reason);
        const forget = onAbort(signal, () => reject(signal.reason));
        promise.then(resolve, reject).finally(forget);
    });
}
export async function pause(seconds, signal) {
    let timer;
    try {
        await unlessAborted(new Promise((resolve) => (timer = setTimeout(resolve, seconds * 1000))), signal);
    }
    finally {
        clearTimeout(timer);
    }
}
export function backoff(tries, error) {
    const asked = error instanceof RequestError ? (error.retryAfter ?? 0) : 0;
    return asked + Math.min(FIRST_PAUSE * 2 ** tries, LONGEST_PAUSE) * (0.5 + Math.random() / 2);
}
export function mayRepeat(error, repeatable = true) {
    if (error instanceof ConnectionFailed)
        return repeatable;
    if (!(error instanceof RequestError) || (error.retryAfter ?? 0) > LONGEST_PAUSE)
        return false;
    return error.status === 429 || (repeatable && LATER.has(error.status));
}
async function readJson(answer) {
    const text = await answer.text();
    if (text === "")
        return undefined;
    try {
        return JSON.parse(text);
    }
    catch (cause) {
        throw new RowlockError(`${answer.url} answered something that is not JSON. Is it the address of a rowlock server?`, { cause });
    }
}
function redirected(answer) {
    return new RequestError("The server redirects to another address. Give the client the address that it redirects to.", {
        status: answer.status,
        code: "redirected",
    });
}
function absolute(url, location) {
    let address;
    try {
        address = new URL(url, location?.href);
    }
    catch {
        throw new TypeError(`${JSON.stringify(url)} is not the address of a server, such as http://127.0.0.1:8090${location ? "" : ". Outside of a page it begins with http"}`);
    }
    if (!/^https?:$/.test(address.protocol))
        throw new TypeError(`The address of a server begins with http:// or https://, not ${address.protocol}`);
    if (address.username || address.password)
        throw new TypeError("The address of a server has no user and no password: use the option token");
    return address;
}
function query(given) {
    if (given === undefined)
        return "";
    const parameters = new URLSearchParams();
    for (const [name, value] of Object.entries(given)) {
        for (const one of Array.isArray(value) ? value : [value]) {
            if (one !== undefined && one !== null)
                parameters.append(name, one instanceof Date ? time(name, one) : String(one));
        }
    }
    return parameters.size ? `?${parameters}` : "";
}
function time(name, given) {
    json({ [name]: given });
    return given.toISOString();
}
function number(name, given, otherwise) {
    if (given === undefined)
        return otherwise;
    if (typeof given !== "number" || !(given >= 0))
        throw new TypeError(`${name} is a number from 0 on, not ${JSON.stringify(given)}`);
    return given;
}
function checked(token) {
    const trimmed = typeof token === "string" ? token.trim() : "";
    if (!/^[\x21-\x7e]+$/.test(trimmed))
        throw new RowlockError("The token is empty, or has characters that a token can't have");
    return trimmed;
}
function reason(error) {
    if (!(error instanceof Error))
        return String(error);
    const cause = error.cause;
    return cause?.code ?? cause?.message ?? error.message;
}
