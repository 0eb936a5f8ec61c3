import { List } from "./pages.js";
import { part } from "./request.js";
export class TokensClient {
    #requests;
    constructor(requests) {
        this.#requests = requests;
    }
    create({ signal, ...body }) {
        return this.#requests.send("POST", "/api/tokens", { body, signal });
    }
    list({ signal } = {}) {
        return new List(this.#requests, "/api/tokens", { signal });
    }
    revoke(id, { signal } = {}) {
        return this.#requests.send("DELETE", `/api/tokens/${part(id)}`, { signal });
    }
}
