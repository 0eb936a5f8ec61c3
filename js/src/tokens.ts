import type { TokenBody, TokenCreateBody } from "./api.ts";
import { List } from "./pages.ts";
import { part, type Requests } from "./request.ts";
import type { Abortable, Asked } from "./types.ts";

export class TokensClient {
  readonly #requests: Requests;

  /** @internal */
  constructor(requests: Requests) {
    this.#requests = requests;
  }

  /**
   * Create a token. Only this answer has its text, as `token`.
   * For a program: `{ name, scopes, topics?, expiresAt? }`. For a browser: `{ job }`, or `{ scope, scopeId, enqueue? }`, with `cancel?` and `seconds?`.
   */
  create({ signal, ...body }: Asked<TokenCreateBody> & Abortable): Promise<TokenBody & { token: string }> {
    return this.#requests.send("POST", "/api/tokens", { body, signal });
  }

  list({ signal }: Abortable = {}): List<TokenBody> {
    return new List(this.#requests, "/api/tokens", { signal });
  }

  revoke(id: string, { signal }: Abortable = {}): Promise<void> {
    return this.#requests.send("DELETE", `/api/tokens/${part(id)}`, { signal });
  }
}
