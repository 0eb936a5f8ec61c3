import { BadRequest, Conflict, NotAllowed, NotFound, RequestError } from "./errors.js";
import { json, unlessAborted } from "./request.js";
const MOST_JOBS = 1000;
const MOST_BYTES = 1 << 20;
const UNDER_WAY = 2;
export class Together {
    #requests;
    #calls = [];
    #underWay = 0;
    #isAsked = false;
    constructor(requests) {
        this.#requests = requests;
    }
    async enqueue(job, signal) {
        const text = json(job);
        return unlessAborted(new Promise((resolve, reject) => {
            this.#calls.push({ text, signal, resolve, reject });
            this.#ask();
        }), signal);
    }
    #ask() {
        if (this.#isAsked || this.#underWay >= UNDER_WAY || this.#calls.length === 0)
            return;
        this.#isAsked = true;
        queueMicrotask(() => {
            this.#isAsked = false;
            const calls = this.#calls.filter(({ signal }) => !signal?.aborted);
            this.#calls = [];
            if (calls.length === 0)
                return;
            this.#underWay++;
            void this.#send(calls).finally(() => {
                this.#underWay--;
                this.#ask();
            });
        });
    }
    async #send(calls) {
        for (const { text, items } of batches(calls))
            await this.#sendSome(items, text);
    }
    async #sendSome(calls, text) {
        if (calls.length === 1)
            return this.#sendOne(calls[0]);
        try {
            const { items } = await this.#requests.send("POST", "/api/jobs/enqueue/batch", { text, repeatable: true });
            await Promise.all(calls.map((call, n) => (items[n]?.id ? call.resolve(items[n].id) : this.#sendOne(call))));
        }
        catch (error) {
            if (isAboutJobs(error))
                await Promise.all(calls.map((call) => this.#sendOne(call)));
            else
                for (const call of calls)
                    call.reject(error);
        }
    }
    async #sendOne({ text, resolve, reject }) {
        try {
            resolve((await this.#requests.send("POST", "/api/jobs/enqueue", { text, repeatable: true })).id);
        }
        catch (error) {
            reject(error);
        }
    }
}
export const isOwn = (error) => error instanceof RequestError && error.code === "key_taken" && error.field === "id";
const isAboutJobs = (error) => error instanceof BadRequest || error instanceof Conflict || error instanceof NotAllowed || error instanceof NotFound;
export function* batches(jobs) {
    const encoder = new TextEncoder();
    let items = [];
    let texts = [];
    let bytes = 0;
    for (const job of jobs) {
        const { text } = job;
        const size = text.length * 3 < MOST_BYTES / MOST_JOBS ? text.length * 3 : encoder.encode(text).length;
        if (items.length && (items.length === MOST_JOBS || bytes + size > MOST_BYTES)) {
            yield { text: `{"jobs":[${texts.join()}]}`, items };
            [items, texts, bytes] = [[], [], 0];
        }
        items.push(job);
        texts.push(text);
        bytes += size + 1;
    }
    if (items.length)
        yield { text: `{"jobs":[${texts.join()}]}`, items };
}
