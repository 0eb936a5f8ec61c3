import { newId } from "./ids.js";
import { List } from "./pages.js";
import { part } from "./request.js";
import { isOwn } from "./together.js";
export class FlowsClient {
    #requests;
    constructor(requests) {
        this.#requests = requests;
    }
    create(flow, { signal } = {}) {
        return createFlow(this.#requests, flow, signal);
    }
    get(id, { signal } = {}) {
        return this.#requests.send("GET", `/api/flows/${part(id)}`, { signal });
    }
    list({ signal, ...query } = {}) {
        return new List(this.#requests, "/api/flows", { query, signal });
    }
    cancel(id, branch = {}) {
        return this.#steer(id, "cancel", branch);
    }
    requeue(id, branch = {}) {
        return this.#steer(id, "requeue", branch);
    }
    async delete(id, { signal, ...query } = {}) {
        await this.#requests.send("DELETE", `/api/flows/${part(id)}`, { query, signal });
    }
    async #steer(id, verb, { signal, ...body }) {
        return (await this.#requests.send("POST", `/api/flows/${part(id)}/${verb}`, { body, signal })).changed;
    }
}
export async function createFlow(requests, flow, signal) {
    const id = flow.id ?? newId();
    try {
        return await requests.send("POST", "/api/flows", { body: { ...flow, id }, signal, repeatable: true });
    }
    catch (error) {
        if (flow.id || !isOwn(error))
            throw error;
        return { id, name: flow.name, jobs: {} };
    }
}
