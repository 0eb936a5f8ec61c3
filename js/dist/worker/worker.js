import { randomUUID } from "node:crypto";
import { hostname } from "node:os";
import { Worker as Thread } from "node:worker_threads";
import { ConnectionFailed, refusal, RowlockError } from "../errors.js";
import { Requests } from "../request.js";
import { Control, here } from "./control.js";
import { laneOf, readHandlers } from "./handlers.js";
import { Outbox } from "./messages.js";
import { LeaseLost } from "./outcomes.js";
import { execute, failure } from "./run.js";
export class Worker {
    name;
    topics;
    done;
    #handlers;
    #setup;
    #log;
    #runs = new Map();
    #questions = new Map();
    #out;
    #calls = 0;
    #thread;
    #finish;
    constructor(workers, options = {}) {
        this.#handlers = readHandlers(workers, options.topics);
        this.topics = [...this.#handlers.keys()];
        this.name = newName(options.name ?? hostname());
        this.#log = options.log ?? (() => { });
        this.#setup = {
            ...server(options),
            name: this.name,
            lanes: [...this.topics],
            concurrency: within("concurrency", options.concurrency ?? 10, 1, 1000, true),
            lease: within("lease", options.lease ?? 30, 1, 300),
            logLevel: options.logLevel ?? "info",
        };
        this.#out = new Outbox((messages) => this.#thread?.postMessage(messages));
        this.done = new Promise((resolve, reject) => {
            this.#finish = (problem) => {
                void this.#thread?.terminate();
                for (const { reject, control } of this.#questions.values())
                    reject(new LeaseLost(control.body));
                problem === undefined ? resolve() : reject(problem);
            };
        });
    }
    get url() {
        return this.#setup.url;
    }
    async start() {
        if (this.#thread !== undefined)
            throw new RowlockError("The worker was started before");
        const thread = (this.#thread = new Thread(new URL("./thread.js", import.meta.url), { workerData: this.#setup }));
        thread.on("message", (messages) => {
            if (Array.isArray(messages))
                messages.forEach((message) => this.#hear(message));
        });
        thread.on("error", (error) => this.#finish(error));
        thread.on("exit", () => this.#finish(new RowlockError("The thread of the worker has ended")));
        await Promise.race([new Promise((resolve) => thread.once("online", resolve)), this.done]);
    }
    async stop({ grace = 25 } = {}) {
        if (this.#thread === undefined)
            return;
        this.#out.add({ kind: "stop", grace: within("grace", grace, 0, 86_400) });
        await this.done;
    }
    blame(error) {
        const control = here.getStore()?.control;
        for (const [n, one] of this.#runs) {
            if (one !== control)
                continue;
            one.flush();
            this.#out.add({ kind: "end", n, end: failure(error, false, 0) });
            this.#runs.delete(n);
            return true;
        }
        return false;
    }
    #hear(message) {
        switch (message.kind) {
            case "start":
                message.runs.forEach((start, i) => {
                    if (process.hrtime.bigint() >= message.until)
                        return;
                    if (Atomics.compareExchange(message.taken, i, 0, 1) === 0)
                        void this.#run(start);
                });
                break;
            case "abort":
                this.#runs.get(message.n)?.interrupt(message.why);
                break;
            case "answer":
                this.#answer(message);
                break;
            case "ping":
                this.#out.add({ kind: "pong" });
                break;
            case "log":
                this.#log(message.level, message.text);
                break;
            case "stopped":
                this.#finish(message.problem === undefined ? undefined : new RowlockError(message.problem));
        }
    }
    async #run({ n, run }) {
        const link = {
            ask: (verb, body, insist = false) => new Promise((resolve, reject) => {
                const text = JSON.stringify(body);
                this.#questions.set(++this.#calls, { control, resolve, reject });
                this.#out.add({ kind: "ask", n, call: this.#calls, verb, text, insist });
            }),
            report: (news) => {
                this.#out.add({ kind: "report", n, news });
                this.#out.flush();
            },
        };
        const control = new Control(run, link);
        this.#runs.set(n, control);
        const end = await execute(control, this.#handlers.get(laneOf(run)));
        if (!this.#runs.delete(n))
            return;
        control.flush();
        this.#out.add({ kind: "end", n, ...(end !== undefined && { end }) });
    }
    #answer({ call, value, refused, lost, away }) {
        const question = this.#questions.get(call);
        this.#questions.delete(call);
        if (lost)
            question?.reject(new LeaseLost(question.control.body));
        else if (away !== undefined)
            question?.reject(new ConnectionFailed(away));
        else if (refused !== undefined) {
            const { status, message: detail, code, field } = refused;
            question?.reject(refusal(new Response(null, { status }), JSON.stringify({ detail, code, field })));
        }
        else
            question?.resolve(value);
    }
}
function server(options) {
    const url = options.url ?? process.env["ROWLOCK_API"];
    if (!url)
        throw new TypeError("The worker needs the address of a server, such as http://127.0.0.1:8090: the option url, or ROWLOCK_API");
    const token = options.token ?? process.env["ROWLOCK_TOKEN"];
    if (!token)
        throw new TypeError("The worker needs a token: the option token, or ROWLOCK_TOKEN. Make one: rowlock token create NAME --scope worker");
    return { url: new Requests(url, { token }).base, token };
}
function newName(prefix) {
    return `${prefix.replace(/[^A-Za-z0-9_.:-]/g, "-").slice(0, 70)}-${process.pid}-${randomUUID().slice(0, 8)}`;
}
function within(name, value, least, most, isWhole = false) {
    if (value >= least && value <= most && (!isWhole || Number.isInteger(value)))
        return value;
    throw new TypeError(`${name}: must be a ${isWhole ? "whole " : ""}number from ${least} to ${most}, not ${String(value)}`);
}
