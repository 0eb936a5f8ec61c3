import { Conflict, RequestError, WaitTimeout } from "./errors.js";
import { createFlow } from "./flows.js";
import { newId } from "./ids.js";
import { List } from "./pages.js";
import { backoff, json, mayRepeat, part, pause } from "./request.js";
import { liveJobs } from "./stream.js";
import { batches, isOwn, Together } from "./together.js";
const POLL = 25;
const LIVE = new Set(["pending", "blocked", "processing", "waiting", "cancel_requested"]);
const ENDED = new Set(["completed", "failed", "expired", "cancelled"]);
export class JobsClient {
    #requests;
    #together;
    constructor(requests) {
        this.#requests = requests;
        this.#together = new Together(requests);
    }
    async enqueue(topic, payload, options = {}) {
        const { signal, ...more } = options;
        const id = more.id ?? newId();
        try {
            return await this.#together.enqueue({ ...more, id, topic, payload }, signal);
        }
        catch (error) {
            if (more.id === id || !isOwn(error))
                throw error;
            return id;
        }
    }
    async enqueueMany(jobs, { signal } = {}) {
        const whole = jobs.map((job) => {
            const named = { ...job, id: job.id ?? newId() };
            return { named, text: json(named) };
        });
        const done = [];
        for (const { text, items } of batches(whole)) {
            try {
                const ask = { text, signal, repeatable: true };
                done.push(...(await this.#requests.send("POST", "/api/jobs/enqueue/batch", ask)).items);
            }
            catch (error) {
                if (!isOwn(error) || jobs.slice(done.length, done.length + items.length).some((job) => job.id))
                    throw renumbered(error, done.length);
                done.push(...items.map(({ named: { id, topic } }) => ({ id, topic, status: null, run_at: null, created: null, existing: false })));
            }
        }
        return done;
    }
    async chain(jobs, { name = "chain", ifFailed = "cancel", signal } = {}) {
        const links = [];
        let after = [];
        for (const job of jobs) {
            if (typeof job !== "string") {
                const id = job.id ?? newId();
                links.push({ ifFailed, ...job, id, after: [...(job.after ?? []), ...after] });
                after = [id];
            }
            else if (links.length)
                throw new TypeError("Ids of jobs that are there come first");
            else
                after.push(job);
        }
        return createFlow(this.#requests, { name, jobs: links }, signal);
    }
    get(id, { signal } = {}) {
        return this.#requests.send("GET", `/api/jobs/${part(id)}`, { signal });
    }
    list({ signal, ...query } = {}) {
        return new List(this.#requests, "/api/jobs", { query, signal });
    }
    stats({ signal, ...query } = {}) {
        return this.#requests.send("GET", "/api/jobs/stats", { query, signal });
    }
    async wait(id, { timeout = Infinity, signal } = {}) {
        const path = `/api/jobs/${part(id)}/wait`;
        const until = performance.now() + timeout * 1000;
        for (let early = 0, answered = false;;) {
            const began = performance.now();
            const seconds = answered ? Math.min(Math.max((until - began) / 1000, 0), POLL) : 0;
            try {
                const ask = { query: { timeout: seconds }, timeout: seconds + 10, signal, retries: answered ? 0 : undefined };
                const job = await this.#requests.send("GET", path, ask);
                if (isEnded(job))
                    return job;
                answered = true;
            }
            catch (error) {
                if (!answered || !mayRepeat(error))
                    throw error;
            }
            const now = performance.now();
            if (now >= until)
                throw new WaitTimeout(`The job ${id} has not ended within ${timeout} s`);
            early = now < began + seconds * 900 ? early + 1 : 0;
            if (early)
                await pause(Math.min(backoff(Math.min(early - 1, 4)), (until - now) / 1000), signal);
        }
    }
    watch(what, { signal } = {}) {
        return typeof what === "object" && what !== null ? this.#watchView(what, signal) : this.#watchJob(what, signal);
    }
    async *#watchJob(id, signal) {
        part(id);
        let last = "";
        for await (const told of liveJobs(this.#requests, { id }, signal)) {
            let [job] = told.items;
            if (job === undefined) {
                if (last !== "")
                    return;
                job = (await this.get(id, { signal }));
            }
            const state = JSON.stringify(job);
            if (state !== last)
                yield job;
            last = state;
            if (isEnded(job))
                return;
        }
    }
    async *#watchView(filter, signal) {
        const states = new Map();
        const jobs = new Map();
        for await (const told of liveJobs(this.#requests, filter, signal)) {
            const changed = told.items.filter((job) => states.get(job.id) !== JSON.stringify(job));
            for (const job of changed) {
                jobs.set(job.id, job);
                states.set(job.id, JSON.stringify(job));
            }
            const kept = new Set(told.items.map((job) => job.id));
            const gone = told.reset ? [...jobs.keys()].filter((id) => !kept.has(id)) : told.gone;
            for (const id of gone) {
                jobs.delete(id);
                states.delete(id);
            }
            yield { jobs: [...jobs.values()].sort((a, b) => (a.created < b.created ? 1 : a.created > b.created ? -1 : a.id < b.id ? 1 : -1)), changed, gone };
        }
    }
    events(id, { signal } = {}) {
        return new List(this.#requests, `/api/jobs/${part(id)}/events`, { signal });
    }
    logs(id, { signal } = {}) {
        return new List(this.#requests, `/api/jobs/${part(id)}/logs`, { signal });
    }
    requeue(id, { signal, ...body } = {}) {
        return this.#requests.send("POST", `/api/jobs/${part(id)}/requeue`, { body, signal });
    }
    cancel(id, { signal, ...body } = {}) {
        return this.#requests.send("POST", `/api/jobs/${part(id)}/cancel`, { body, signal });
    }
    release(id, { signal, ...body } = {}) {
        return this.#requests.send("POST", `/api/jobs/${part(id)}/release`, { body, signal });
    }
    update(id, { signal, ...body }) {
        return this.#requests.send("PATCH", `/api/jobs/${part(id)}`, { body, signal });
    }
    delete(id, { signal, ...query } = {}) {
        return this.#requests.send("DELETE", `/api/jobs/${part(id)}`, { query, signal });
    }
    async clone(id, { signal, ...body } = {}) {
        return (await this.#requests.send("POST", `/api/jobs/${part(id)}/clone`, { body, signal })).id;
    }
    async signal(to, name, data = null, { signal, ...more } = {}) {
        const path = typeof to === "string" ? `/api/jobs/${part(to)}/signals/${part(name)}` : `/api/signals/${part(name)}`;
        const query = { ...(typeof to === "string" ? {} : to), ...more, id: more.id ?? newId() };
        try {
            await this.#requests.send("POST", path, { body: data, query, signal, repeatable: true });
            return true;
        }
        catch (error) {
            if (!(error instanceof Conflict && error.code === "signal_known"))
                throw error;
            return more.id === undefined;
        }
    }
    why(id, { signal } = {}) {
        return this.#requests.send("GET", `/api/jobs/${part(id)}/why`, { signal });
    }
}
function isEnded(job) {
    return ENDED.has(job.status) || (!LIVE.has(job.status) && job.finished_at !== null);
}
function renumbered(error, by) {
    if (error instanceof RequestError) {
        for (const name of ["message", "field"]) {
            Object.assign(error, { [name]: error[name]?.replace(/^jobs\[(\d+)/, (_, n) => `jobs[${+n + by}`) });
        }
    }
    return error;
}
