// One request: token, time limit, retries, errors. Everything that this file uses exists in browsers, Node, Deno and Bun.

import { ConnectionFailed, NotFound, RequestError, RowlockError, refusal } from "./errors.ts";

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

/** @internal */
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

const REPEATABLE = new Set(["GET", "HEAD", "PUT", "DELETE"]);
const LATER = new Set([408, 500, 502, 503, 504]);
const FIRST_PAUSE = 0.5;
const LONGEST_TIMER = 2 ** 31 - 1; // milliseconds; a longer one would end at once
const LONGEST_PAUSE = 30; // seconds; a server that asks for more gets no further try

/** @internal */
export class Requests {
  /** The address of the server, without a slash at its end. */
  readonly base: string;
  /** How often a request is sent again. */
  readonly retries: number;
  readonly #fetch: typeof fetch;
  readonly #timeout: number;
  readonly #headers: Record<string, string>;
  readonly #isOwnOrigin: boolean;
  readonly #given: Token | undefined;
  #token: string | null = null;
  #asking: Promise<string | null> | undefined;

  constructor(url: string | URL, options: Options = {}) {
    const { location } = globalThis as { location?: Location };
    const address = absolute(url, location);
    this.base = address.origin + address.pathname.replace(/\/+$/, "");
    this.#fetch = options.fetch ?? ((...given) => globalThis.fetch(...given)); // looked up late, so that tools can wrap it
    this.#timeout = number("timeout", options.timeout, 30);
    this.retries = number("retries", options.retries, 4);
    this.#headers = { ...options.headers };
    this.#given = options.token;
    if (typeof options.token === "string") this.#token = checked(options.token);
    this.#isOwnOrigin = location === undefined || location.origin === address.origin;
  }

  /** Send JSON, return JSON. `path` begins with /api/. An answer without a body is undefined. */
  async send<T>(method: string, path: string, ask: Ask = {}): Promise<T> {
    const repeatable = ask.repeatable ?? (ask.retries !== undefined || REPEATABLE.has(method));
    const most = ask.retries ?? this.retries;
    const sent = ask.text ?? (ask.body === undefined ? undefined : json(ask.body));
    for (let tries = 0; ; tries++) {
      try {
        return await this.#try(method, path, ask, sent, readJson<T>);
      } catch (error) {
        if (ask.signal?.aborted) throw ask.signal.reason;
        if (tries > 0 && method === "DELETE" && error instanceof NotFound) return undefined as T; // an earlier try deleted it
        if (tries >= most || !mayRepeat(error, repeatable)) throw error;
        await pause(backoff(tries, error), ask.signal);
      }
    }
  }

  /** GET an answer that is read as it comes. There is one try, and its time limit ends with the headers. Abort `signal` when you have read enough. */
  open(path: string, ask: Ask = {}): Promise<Response> {
    return this.#try("GET", path, ask, undefined, (answer) => answer, true);
  }

  /** Send a request once; twice if there is a new token after 401. A stream can be aborted after it was returned. */
  async #try<T>(method: string, path: string, ask: Ask, sent: string | undefined, read: (answer: Response) => T | Promise<T>, isStream = false): Promise<T> {
    const { signal } = ask;
    signal?.throwIfAborted();
    const seconds = ask.timeout ?? this.#timeout;
    const address = this.base + path + query(ask.query);
    for (let renewed = false; ; renewed = true) {
      const token = this.#token ?? (typeof this.#given === "function" ? await unlessAborted(this.#ask(false), signal) : null);
      const ours = new AbortController();
      const stop = (): void => ours.abort(signal?.reason);
      const timer = setTimeout(stop, Math.min(seconds * 1000, LONGEST_TIMER));
      const forget = signal && onAbort(signal, stop);
      try {
        const answer = await this.#fetch(address, {
          method,
          headers: this.#with(token, sent !== undefined),
          body: sent ?? null,
          signal: ours.signal,
          credentials: "same-origin",
          redirect: "manual", // a token must not go elsewhere, and a POST must not become a GET
        });
        if (answer.ok) return await read(answer);
        const refused = answer.status < 400 ? redirected(answer) : refusal(answer, await answer.text());
        if (answer.status !== 401 || renewed || !(await this.#renew(token, signal))) throw refused;
      } catch (error) {
        if (signal?.aborted) throw signal.reason;
        if (error instanceof RowlockError) throw error;
        const why = ours.signal.aborted ? `none within ${seconds} s` : reason(error);
        throw new ConnectionFailed(`${method} ${this.base}${path} got no answer: ${why}`, { cause: error });
      } finally {
        clearTimeout(timer);
        if (!isStream) forget?.();
      }
    }
  }

  #with(token: string | null, hasBody: boolean): Record<string, string> {
    const headers: Record<string, string> = { ...this.#headers };
    if (token !== null) headers["authorization"] = `Bearer ${token}`;
    else if (this.#isOwnOrigin) headers["x-rowlock-csrf"] = "1"; // the proof for a cookie; other origins have no cookie, and may not send it
    if (hasBody) headers["content-type"] = "application/json";
    return headers;
  }

  /** Get another token than the refused one. False if there is none. */
  async #renew(refused: string | null, signal: AbortSignal | undefined): Promise<boolean> {
    if (typeof this.#given !== "function") return false;
    if (this.#token === refused) this.#token = null;
    return (this.#token ?? (await unlessAborted(this.#ask(true), signal))) !== null; // another request may have renewed it
  }

  /** Call the function that gets a token. Concurrent requests share the call. */
  #ask(renew: boolean): Promise<string | null> {
    return (this.#asking ??= this.#askNow(renew).finally(() => (this.#asking = undefined)));
  }

  async #askNow(renew: boolean): Promise<string | null> {
    const limit = new AbortController();
    const timer = setTimeout(() => limit.abort(new Error(`nothing within ${this.#timeout} s`)), Math.min(this.#timeout * 1000, LONGEST_TIMER));
    try {
      const get = this.#given as Exclude<Token, string>;
      const token = await unlessAborted(Promise.resolve(get({ renew, signal: limit.signal })), limit.signal);
      return (this.#token = token === null || token === undefined ? null : checked(token));
    } catch (error) {
      if (error instanceof RowlockError) throw error;
      throw new ConnectionFailed(`The function that gets a token failed: ${reason(error)}`, { cause: error });
    } finally {
      clearTimeout(timer);
    }
  }
}

/** @internal Return the JSON text. JSON.stringify would write null for NaN, Infinity and an invalid Date, and a job would run at once. */
export function json(value: unknown): string {
  return JSON.stringify(value, function (this: Record<string, unknown>, name: string, plain: unknown) {
    const given = this[name];
    if (typeof plain === "number" ? !Number.isFinite(plain) : given instanceof Date && plain === null) throw new TypeError(`${name} is ${given}`);
    return plain;
  });
}

/** @internal Return an id or a name as one part of a path. */
export function part(text: string): string {
  if (typeof text !== "string" || text === "" || text === "." || text === "..") {
    throw new TypeError(`An id or a name is a text that is not empty, not ${JSON.stringify(text)}`);
  }
  return encodeURIComponent(text);
}

const followers = new WeakMap<AbortSignal, Set<() => void>>();

/** @internal Call `stop` when the signal aborts. Returns a function that takes this back. A signal gets one listener in all: Node warns of more than ten. */
export function onAbort(signal: AbortSignal, stop: () => void): () => void {
  let all = followers.get(signal);
  if (all === undefined) {
    const stops = (all = new Set());
    followers.set(signal, stops);
    signal.addEventListener("abort", () => [...stops].forEach((one) => one()), { once: true });
  }
  all.add(stop);
  return () => void all.delete(stop);
}

/** @internal Settle as the promise does, or reject with the signal's reason. */
export function unlessAborted<T>(promise: Promise<T>, signal: AbortSignal | undefined): Promise<T> {
  if (signal === undefined) return promise;
  return new Promise((resolve, reject) => {
    if (signal.aborted) return reject(signal.reason);
    const forget = onAbort(signal, () => reject(signal.reason));
    promise.then(resolve, reject).finally(forget);
  });
}

/** @internal Resolve after so many seconds, or reject with the signal's reason. */
export async function pause(seconds: number, signal?: AbortSignal): Promise<void> {
  let timer: ReturnType<typeof setTimeout> | undefined;
  try {
    await unlessAborted(new Promise<void>((resolve) => (timer = setTimeout(resolve, seconds * 1000))), signal);
  } finally {
    clearTimeout(timer);
  }
}

/** @internal Return the seconds before try number `tries` + 1: exponential, with jitter, and at least what the server asks for. */
export function backoff(tries: number, error?: unknown): number {
  const asked = error instanceof RequestError ? (error.retryAfter ?? 0) : 0;
  return asked + Math.min(FIRST_PAUSE * 2 ** tries, LONGEST_PAUSE) * (0.5 + Math.random() / 2);
}

/** @internal True if another try may help and does no harm. A request that got 429 was not done. */
export function mayRepeat(error: unknown, repeatable = true): boolean {
  if (error instanceof ConnectionFailed) return repeatable;
  if (!(error instanceof RequestError) || (error.retryAfter ?? 0) > LONGEST_PAUSE) return false;
  return error.status === 429 || (repeatable && LATER.has(error.status));
}

async function readJson<T>(answer: Response): Promise<T> {
  const text = await answer.text();
  if (text === "") return undefined as T;
  try {
    return JSON.parse(text) as T;
  } catch (cause) {
    throw new RowlockError(`${answer.url} answered something that is not JSON. Is it the address of a rowlock server?`, { cause });
  }
}

function redirected(answer: Response): RequestError {
  return new RequestError("The server redirects to another address. Give the client the address that it redirects to.", {
    status: answer.status,
    code: "redirected",
  });
}

function absolute(url: string | URL, location: Location | undefined): URL {
  let address: URL;
  try {
    address = new URL(url, location?.href);
  } catch {
    throw new TypeError(`${JSON.stringify(url)} is not the address of a server, such as http://127.0.0.1:8090${location ? "" : ". Outside of a page it begins with http"}`);
  }
  if (!/^https?:$/.test(address.protocol)) throw new TypeError(`The address of a server begins with http:// or https://, not ${address.protocol}`);
  if (address.username || address.password) throw new TypeError("The address of a server has no user and no password: use the option token");
  return address;
}

function query(given: object | undefined): string {
  if (given === undefined) return "";
  const parameters = new URLSearchParams();
  for (const [name, value] of Object.entries(given)) {
    for (const one of Array.isArray(value) ? value : [value]) {
      if (one !== undefined && one !== null) parameters.append(name, one instanceof Date ? time(name, one) : String(one));
    }
  }
  return parameters.size ? `?${parameters}` : "";
}

function time(name: string, given: Date): string {
  json({ [name]: given }); // throws if it is invalid
  return given.toISOString();
}

function number(name: string, given: number | undefined, otherwise: number): number {
  if (given === undefined) return otherwise;
  if (typeof given !== "number" || !(given >= 0)) throw new TypeError(`${name} is a number from 0 on, not ${JSON.stringify(given)}`);
  return given;
}

/** Return the token as a header can have it. The runtime's own error would show the token. */
function checked(token: string): string {
  const trimmed = typeof token === "string" ? token.trim() : "";
  if (!/^[\x21-\x7e]+$/.test(trimmed)) throw new RowlockError("The token is empty, or has characters that a token can't have");
  return trimmed;
}

function reason(error: unknown): string {
  if (!(error instanceof Error)) return String(error);
  const cause = error.cause as { code?: string; message?: string } | undefined; // Node has the code there
  return cause?.code ?? cause?.message ?? error.message;
}
