// The one way to the API. Addresses are relative to the page, so the prefix never matters.

import { connection } from "./connection.svelte";
import { parseAnswer, stringify, type Json } from "./json";

export const API = "../api/";

/** A problem that the API answered, or status 0 if the server could not be reached. */
export class ApiError extends Error {
  constructor(
    readonly status: number,
    readonly code: string,
    message: string,
    readonly field: string | null = null,
    readonly requestId: string | null = null,
    readonly more: Record<string, unknown> = {}, // other members of the answer
  ) {
    super(message);
  }
}

type Value = string | number | boolean | null | undefined | readonly string[];
export type Query = Record<string, Value>;

export function address(path: string, query: Query = {}): string {
  const given = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) {
    for (const one of Array.isArray(value) ? value : value === "" ? [] : [value]) { // in a list, an empty text is meant
      if (one !== undefined && one !== null) given.append(name, String(one));
    }
  }
  return API + path + (given.size ? `?${given}` : "");
}

let signedOut = (): void => {};
export function onSignedOut(then: () => void): void {
  signedOut = then;
}

interface Options {
  query?: Query;
  /** A text that is JSON already. It is sent as typed, so that its numbers are exact. */
  raw?: string;
  body?: unknown;
  signal?: AbortSignal;
}

export async function call<T>(method: string, path: string, { query, raw, body, signal }: Options = {}): Promise<T> {
  const sent = raw ?? (body === undefined ? undefined : stringify(body as Json));
  let answer: Response;
  try {
    answer = await fetch(address(path, query), {
      method,
      headers: { "x-rowlock-csrf": "1", ...(sent === undefined ? {} : { "content-type": "application/json" }) },
      credentials: "same-origin",
      ...(sent === undefined ? {} : { body: sent }),
      ...(signal ? { signal } : {}),
    });
  } catch (error) {
    if (signal?.aborted) throw error;
    connection.fails("server");
    throw new ApiError(0, "unreachable", "The server can't be reached.");
  }
  const text = await answer.text();
  if (answer.ok) {
    connection.works();
    return (text ? parseAnswer(text) : undefined) as T;
  }
  const told = readProblem(answer, text);
  connection.judge(told.status, told.code);
  if (answer.status === 401 && told.code !== "wrong_login") signedOut();
  throw told;
}

function readProblem(answer: Response, text: string): ApiError {
  const id = answer.headers.get("x-request-id");
  try {
    const told = JSON.parse(text) as { code?: string; detail?: string; field?: string };
    return new ApiError(answer.status, told.code ?? "", told.detail ?? answer.statusText, told.field ?? null, id, told);
  } catch {
    return new ApiError(answer.status, "", `The server answered ${answer.status} ${answer.statusText}`, null, id);
  }
}

export const get = <T>(path: string, query: Query = {}, signal?: AbortSignal): Promise<T> =>
  call<T>("GET", path, { query, ...(signal ? { signal } : {}) });
const PAGE = 200;
const MOST = 2000; // items of a list that a screen shows whole

/** A list with all its pages, or as many as a screen can show; then `next` is not null. */
export async function all<T extends { items: unknown[]; next: string | null }>(path: string, query: Query = {}, signal?: AbortSignal): Promise<T> {
  const whole = await get<T>(path, { ...query, limit: PAGE }, signal);
  while (whole.next !== null && whole.items.length < MOST) {
    const page: T = await get<T>(path, { ...query, limit: PAGE, cursor: whole.next }, signal);
    whole.items.push(...page.items);
    whole.next = page.next;
  }
  return whole;
}

/** True if the cursor in the address belongs to another user or another query, as in a shared link. */
export const isBadCursor = (error: unknown): boolean => error instanceof ApiError && error.code === "bad_cursor";

export const post = <T>(path: string, body?: unknown): Promise<T> => call<T>("POST", path, { body });
export const patch = <T>(path: string, body: unknown): Promise<T> => call<T>("PATCH", path, { body });
export const remove = (path: string): Promise<void> => call<void>("DELETE", path);
