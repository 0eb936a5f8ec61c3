import { writeSync } from "node:fs";
import { parentPort, workerData } from "node:worker_threads";
import { NotAllowed, NotAuthenticated, RequestError } from "../errors.js";
import { backoff, pause, Requests } from "../request.js";
import { messageOf } from "./errors.js";
import { LEVELS, Outbox } from "./messages.js";
import { timedOut } from "./outcomes.js";
const LONG_POLL = 20;
const LONGEST_PAUSE = 5;
const MOST_UNBEGUN = 2;
const AFTER_TIMEOUT = 5;
const AFTER_STOP = 1;
const LAST_SETTLES = 5;
const MOST_BLOCKED = 30;
const MOST_CLAIMED = 500;
const MOST_RUNS = 1000;
const MOST_ENDS = 500;
const MOST_BYTES = 1 << 20;
const MOST_LINES = 100;
const MOST_KEPT_LINES = 200;
const MOST_REPORTS = 8;
const NO_SUCH_VERSION = 1_000_000;
const now = () => performance.now();
const nameOf = ({ run }) => ({ id: run.id, version: run.version });
class Protocol {
    #setup;
    #requests;
    #out;
    #lease;
    #held = new Map();
    #stopClaim = new AbortController();
    #count = 0;
    #running = 0;
    #byName = new Map();
    #returning = new Set();
    #claim;
    #wake;
    #lastTick = now();
    #nextBeat = 0;
    #isBeating = false;
    #pinged;
    #ends = [];
    #isSettling = false;
    #reports = 0;
    #reportsWaiting = [];
    #isStopping = false;
    #graceEnd = Infinity;
    #isOver = false;
    #isAway = false;
    constructor(setup, out) {
        this.#setup = setup;
        this.#out = out;
        this.#lease = setup.lease * 1000;
        this.#requests = new Requests(setup.url, { token: setup.token });
    }
    start() {
        const every = Math.min(Math.max(this.#lease / 12, 50), 250);
        setInterval(() => this.#tick(every), every);
        return this.#claiming();
    }
    hear(message) {
        switch (message.kind) {
            case "pong":
                this.#pinged = undefined;
                this.#wake?.();
                break;
            case "stop":
                void this.#stop(message.grace);
                break;
            default: {
                const held = this.#held.get(message.n);
                if (held === undefined) {
                    if (message.kind === "ask")
                        this.#out.add({ kind: "answer", call: message.call, lost: true });
                }
                else if (message.kind === "end")
                    this.#handlerEnded(held, message.end);
                else if (message.kind === "report")
                    this.#report(held, message.news);
                else
                    void this.#answer(held, message);
            }
        }
    }
    #send(verb, body, options = {}) {
        if (verb === "enqueue")
            return this.#requests.send("POST", "/api/jobs/enqueue", { body, retries: 0, ...options });
        const said = typeof body === "string" ? { text: body } : { body: { worker: this.#setup.name, ...body } };
        return this.#requests.send("POST", `/api/worker/${verb}`, { ...said, retries: 0, ...options });
    }
    async #insist(verb, body, goOn = () => true) {
        for (let tries = 0;; tries++) {
            try {
                const answer = await this.#send(verb, body);
                this.#serverAnswers();
                return answer;
            }
            catch (error) {
                if (!this.#mayHelp(error, verb) || this.#isOver || !goOn())
                    throw error;
                await pause(Math.min(backoff(tries, error), LONGEST_PAUSE));
            }
        }
    }
    #mayHelp(error, verb) {
        if (error instanceof NotAuthenticated || error instanceof NotAllowed) {
            if (verb !== "enqueue")
                this.#giveUp(this.#whyRefused(error));
            return false;
        }
        if (error instanceof RequestError && error.status < 500 && ![404, 408, 429].includes(error.status))
            return false;
        if (verb === "enqueue" && error instanceof RequestError && error.status === 404)
            return false;
        if (!this.#isAway)
            this.#log("warning", `the server is away: ${messageOf(error)}. The worker tries again until it is back`);
        this.#isAway = true;
        return true;
    }
    #serverAnswers() {
        if (this.#isAway)
            this.#log("info", "the server is back");
        this.#isAway = false;
    }
    #whyRefused(error) {
        const wayOut = error.status === 401
            ? "Give a valid token by --token or ROWLOCK_TOKEN: rowlock token create NAME --scope worker"
            : `The token needs the scope worker, for the topics ${this.#setup.lanes.join(", ")}`;
        return `${this.#requests.base} refused the worker: ${error.message}. ${wayOut}`;
    }
    async #claiming() {
        for (let tries = 0; !this.#isStopping;) {
            const limit = this.#free();
            if (limit <= 0) {
                await new Promise((resolve) => (this.#wake = resolve));
                continue;
            }
            const claim = (this.#claim = { since: now(), isStalled: false });
            try {
                const { lanes: topics, lease } = this.#setup;
                const wait = Math.min(LONG_POLL, lease / 2);
                const body = { topics, limit, lease, wait, runs: this.#names() };
                const { items } = await this.#send("claim", body, { timeout: wait + 15, signal: this.#stopClaim.signal });
                this.#claim = undefined;
                this.#serverAnswers();
                tries = 0;
                await this.#take(items, claim.since);
            }
            catch (error) {
                if (this.#isStopping)
                    break;
                if (!this.#mayHelp(error, "claim")) {
                    this.#giveUp(`the server refused to give jobs: ${messageOf(error)}`);
                    break;
                }
                await pause(Math.min(backoff(tries++, error), LONGEST_PAUSE), this.#stopClaim.signal).catch(() => { });
            }
        }
    }
    #free() {
        if (this.#pinged !== undefined)
            return 0;
        return Math.min(this.#setup.concurrency - this.#running - this.#returning.size, MOST_RUNS - this.#held.size, MOST_CLAIMED);
    }
    #names() {
        return [...this.#held.values()].map(nameOf);
    }
    async #take(runs, since) {
        const fresh = runs.map((run) => this.#hold(run, since));
        const isLate = since + (2 * this.#lease) / 3 < now();
        if (isLate)
            await this.#beat(fresh);
        const ready = [];
        for (const held of fresh) {
            if (!held.isSettled && held.leaseEnd > now() && !this.#isStopping)
                ready.push(held);
            else
                this.#giveBack(held, "it came too late");
        }
        if (ready.length === 0)
            return;
        const taken = new Int32Array(new SharedArrayBuffer(4 * ready.length));
        ready.forEach((held, index) => Object.assign(held, { taken, index }));
        const left = Math.min(MOST_UNBEGUN * 1000, ...ready.map((held) => held.leaseEnd - now()));
        const until = process.hrtime.bigint() + BigInt(Math.floor(left * 1e6));
        this.#out.add({ kind: "start", runs: ready.map(({ n, run }) => ({ n, run })), taken, until });
    }
    #hold(run, since) {
        const other = this.#byName.get(`${run.id} ${run.version}`);
        if (other !== undefined)
            this.#lose(other);
        const began = now();
        const held = {
            n: ++this.#count,
            run,
            began,
            taken: NOT_TAKEN,
            index: 0,
            isBegun: false,
            leaseEnd: since + this.#lease,
            timeoutEnd: began + run.timeout * 1000,
            failAt: Infinity,
            told: new Set(),
            end: undefined,
            isRefused: false,
            hasEnded: false,
            isSettling: false,
            isSettled: false,
            news: undefined,
            writing: undefined,
        };
        this.#held.set(held.n, held);
        this.#byName.set(`${run.id} ${run.version}`, held);
        this.#running++;
        return held;
    }
    #giveBack(held, reason) {
        this.#returning.add(held);
        this.#slotIsFree(held);
        if (held.isSettled)
            this.#forget(held);
        else
            this.#settle(held, { end: "release", reason });
    }
    #slotIsFree(held) {
        if (held.hasEnded)
            return;
        held.hasEnded = true;
        this.#running--;
        this.#wake?.();
    }
    #forget(held) {
        held.isSettled = true;
        this.#returning.delete(held);
        const name = `${held.run.id} ${held.run.version}`;
        if (this.#byName.get(name) === held)
            this.#byName.delete(name);
        if (held.hasEnded)
            this.#held.delete(held.n);
        this.#wake?.();
    }
    #tick(every) {
        const at = now();
        if (this.#claim !== undefined) {
            this.#claim.isStalled ||= at - this.#lastTick > 3 * every;
            if (!this.#claim.isStalled)
                this.#claim.since = Math.max(this.#claim.since, this.#lastTick);
        }
        this.#lastTick = at;
        for (const held of [...this.#held.values()])
            this.#look(held, at);
        if (at >= this.#nextBeat && !this.#isBeating)
            void this.#beatAll();
    }
    #look(held, at) {
        if (!held.isBegun && !held.hasEnded && held.taken !== NOT_TAKEN) {
            if (Atomics.load(held.taken, held.index) === 1)
                held.isBegun = true;
            else if (at - held.began > MOST_UNBEGUN * 1000 && Atomics.compareExchange(held.taken, held.index, 0, 2) === 0) {
                this.#ping();
                this.#giveBack(held, "the worker was too busy to begin it");
            }
        }
        if (!held.hasEnded && at >= held.timeoutEnd)
            this.#timeOut(held);
        if (!held.hasEnded && at >= held.failAt && held.end === undefined) {
            this.#settle(held, { end: "fail", type: "TimeLimit", error: timedOut(held.run.timeout), final: false, ran: (at - held.began) / 1000 });
        }
        if (!held.isSettled && at >= held.leaseEnd)
            this.#abort(held, "lost");
        const blocked = this.#pinged === undefined ? 0 : at - this.#pinged;
        if (!held.hasEnded && at >= held.timeoutEnd + MOST_BLOCKED * 1000 && blocked >= MOST_BLOCKED * 1000 && !this.#isOver) {
            this.#isOver = true;
            endProcess(held.run);
        }
    }
    #timeOut(held) {
        if (held.told.has("timed_out"))
            return;
        this.#abort(held, "timed_out");
        this.#ping();
        held.failAt = now() + AFTER_TIMEOUT * 1000;
    }
    #abort(held, why) {
        if (held.told.has(why))
            return;
        held.told.add(why);
        if (!held.hasEnded) {
            this.#out.add({ kind: "abort", n: held.n, why });
            this.#log(why === "lost" || why === "timed_out" ? "warning" : "info", ABORTED[why], held);
        }
    }
    #ping() {
        this.#pinged ??= now();
        this.#out.add({ kind: "ping" });
    }
    async #beatAll() {
        this.#isBeating = true;
        const sent = now();
        const isDone = await this.#beat([...this.#held.values()].filter((held) => !held.isSettled));
        this.#nextBeat = isDone ? sent + this.#lease / 3 : now() + Math.min(this.#lease / 10, 1000);
        this.#isBeating = false;
    }
    async #beat(all) {
        for (let n = 0; n < all.length; n += MOST_RUNS) {
            const some = all.slice(n, n + MOST_RUNS);
            const sent = now();
            try {
                const body = { runs: some.map(nameOf), lease: this.#setup.lease };
                const { items } = await this.#send("heartbeat", body, { timeout: Math.max(this.#setup.lease / 3, 1) });
                this.#serverAnswers();
                items.forEach(({ hold }, i) => this.#told(some[i], hold, sent));
            }
            catch (error) {
                if (!this.#mayHelp(error, "heartbeat"))
                    this.#log("error", `a heartbeat was refused: ${messageOf(error)}`);
                return false;
            }
        }
        return true;
    }
    #told(held, hold, sent) {
        if (hold === "lost") {
            if (!held.isSettling)
                this.#lose(held);
            return;
        }
        if (sent !== undefined)
            held.leaseEnd = sent + this.#lease;
        if (hold === "cancel" && held.run.status !== "cancel_requested")
            this.#abort(held, "cancelled");
        if (hold === "timeout")
            this.#timeOut(held);
    }
    #lose(held) {
        this.#abort(held, "lost");
        this.#forget(held);
    }
    #handlerEnded(held, end) {
        this.#slotIsFree(held);
        if (held.isSettled || end === undefined)
            this.#forget(held);
        else if (held.end === undefined)
            this.#settle(held, end);
    }
    #settle(held, end) {
        held.end = end;
        held.isSettling = true;
        if (held.writing === undefined)
            this.#queueEnd(held);
        else
            void held.writing.finally(() => this.#queueEnd(held));
    }
    #queueEnd(held) {
        this.#ends.push(held);
        if (this.#isSettling)
            return;
        this.#isSettling = true;
        queueMicrotask(() => void this.#settling());
    }
    async #settling() {
        while (this.#ends.length > 0 && !this.#isOver) {
            let bytes = 0;
            let count = 0;
            for (const held of this.#ends.slice(0, MOST_ENDS)) {
                bytes += Buffer.byteLength(endText(held));
                if (count > 0 && bytes > MOST_BYTES)
                    break;
                count++;
            }
            await this.#settleTogether(this.#ends.splice(0, count));
        }
        this.#isSettling = false;
    }
    async #settleTogether(some) {
        try {
            const text = `{"worker":${JSON.stringify(this.#setup.name)},"ends":[${some.map(endText).join()}]}`;
            const { items } = await this.#insist("settle", text);
            some.forEach((held, i) => this.#acknowledged(held, items[i]?.status ?? "lost"));
        }
        catch (error) {
            if (this.#isOver)
                return;
            if (some.length > 1)
                for (const one of some)
                    await this.#settleTogether([one]);
            else
                await this.#endRefused(some[0], messageOf(error));
        }
    }
    async #endRefused(held, problem) {
        this.#log("error", `the server refused its end: ${problem}`, held);
        if (held.isRefused)
            return this.#forget(held);
        held.isRefused = true;
        held.end = { end: "fail", type: "Refused", error: `the server refused the end of the run: ${problem}`, final: true, ran: 0 };
        await this.#settleTogether([held]);
    }
    #acknowledged(held, status) {
        this.#forget(held);
        const end = held.end;
        if (status === "lost")
            this.#log("warning", `its ${end.end} did not count: the lease was lost`, held);
        else if (end.end === "fail")
            this.#log("warning", `${status === "pending" ? "failed, and is tried again" : status}: ${end.type}: ${end.error}`, held);
        else
            this.#log("debug", status === "pending" ? `goes on later (${end.end})` : status, held);
    }
    #report(held, news) {
        const lines = [...(held.news?.lines ?? []), ...(news.lines ?? [])].slice(-MOST_KEPT_LINES);
        held.news = { ...held.news, ...news, lines };
        held.writing ??= this.#write(held).finally(() => (held.writing = undefined));
    }
    async #write(held) {
        if (this.#reports >= MOST_REPORTS)
            await new Promise((resolve) => this.#reportsWaiting.push(resolve));
        this.#reports++;
        try {
            while (held.news !== undefined && !held.isSettled) {
                const { lines = [], ...progress } = held.news;
                held.news = undefined;
                if (Object.keys(progress).length > 0)
                    await this.#reportOne(held, "progress", progress);
                for (let n = 0; n < lines.length; n += MOST_LINES)
                    await this.#reportOne(held, "log", { lines: lines.slice(n, n + MOST_LINES) });
            }
        }
        finally {
            this.#reports--;
            this.#reportsWaiting.shift()?.();
        }
    }
    async #reportOne(held, verb, body) {
        try {
            const { hold } = await this.#insist(verb, { ...nameOf(held), ...body }, () => !held.isSettled);
            this.#told(held, hold);
        }
        catch (error) {
            if (!this.#isOver && !held.isSettled)
                this.#log("warning", `its ${verb} was refused: ${messageOf(error)}`, held);
        }
    }
    async #answer(held, { call, verb, text, insist }) {
        const last = now() + this.#lease;
        if (insist)
            held.isSettling = true;
        const goOn = () => insist || (!held.isSettled && !held.told.has("lost") && now() < last);
        const body = JSON.parse(text);
        const asked = verb === "enqueue" ? body : { ...nameOf(held), ...body };
        try {
            if (insist)
                await held.writing;
            const value = await this.#insist(verb, asked, goOn);
            if (insist)
                held.isSettling = false;
            if (verb === "checkpoint")
                this.#told(held, value.hold);
            this.#out.add({ kind: "answer", call, value });
        }
        catch (error) {
            if (insist)
                held.isSettling = false;
            if (error instanceof RequestError && error.code === "lost") {
                this.#lose(held);
                this.#out.add({ kind: "answer", call, lost: true });
            }
            else if (error instanceof RequestError && error.status < 500) {
                const { message, status, code, field } = error;
                this.#out.add({ kind: "answer", call, refused: { message, status, code, field } });
            }
            else
                this.#out.add({ kind: "answer", call, away: messageOf(error) });
        }
    }
    async #stop(grace) {
        this.#graceEnd = Math.min(this.#graceEnd, now() + grace * 1000);
        if (this.#isStopping)
            return;
        this.#isStopping = true;
        const claim = this.#claim;
        this.#stopClaim.abort();
        this.#wake?.();
        const recovered = claim === undefined ? undefined : this.#recover(now() + LAST_SETTLES * 1000);
        await this.#until(() => this.#running === 0 || now() >= this.#graceEnd, grace);
        for (const held of this.#held.values())
            this.#abort(held, "stopping");
        await this.#until(() => this.#running === 0, AFTER_STOP);
        for (const held of this.#held.values()) {
            if (!held.hasEnded && held.end === undefined && !held.isSettled)
                this.#settle(held, { end: "release", reason: "the worker stops" });
        }
        await recovered;
        await this.#until(() => [...this.#held.values()].every((held) => held.isSettled), LAST_SETTLES);
        const left = [...this.#held.values()].filter((held) => !held.isSettled).length;
        if (left > 0)
            this.#log("warning", `${left} runs could not be settled: they end with their leases`);
        await this.#send("goodbye", {}, { timeout: 2 }).catch(() => { });
        this.#finish();
    }
    async #recover(end) {
        const topics = [`${this.#setup.lanes[0]?.split("@")[0]}@${NO_SUCH_VERSION}`];
        do {
            try {
                const body = { topics, limit: MOST_CLAIMED, lease: this.#setup.lease, runs: this.#names() };
                const { items } = await this.#send("claim", body, { timeout: Math.max((end - now()) / 1000, 1) });
                for (const run of items)
                    this.#giveBack(this.#hold(run, now()), "the worker stops");
                return;
            }
            catch {
                await pause(0.2);
            }
        } while (now() < end && !this.#isOver);
    }
    async #until(condition, seconds) {
        const end = now() + seconds * 1000;
        while (!condition() && now() < end && !this.#isOver)
            await pause(0.02);
    }
    #giveUp(problem) {
        if (this.#isOver)
            return;
        for (const held of this.#held.values())
            this.#abort(held, "lost");
        this.#finish(problem);
    }
    #finish(problem) {
        this.#isOver = this.#isStopping = true;
        this.#stopClaim.abort();
        this.#out.add(problem === undefined ? { kind: "stopped" } : { kind: "stopped", problem });
    }
    #log(level, text, held) {
        if (LEVELS.indexOf(level) < LEVELS.indexOf(this.#setup.logLevel))
            return;
        this.#out.add({ kind: "log", level, text: held === undefined ? text : `${held.run.topic} ${held.run.id} ${text}` });
    }
}
const NOT_TAKEN = new Int32Array(1);
const ABORTED = {
    cancelled: "is cancelled",
    timed_out: "has taken longer than its timeout",
    stopping: "must end: the worker stops",
    lost: "has lost its lease",
};
function endText({ run, end }) {
    const { result, ...rest } = end;
    const text = JSON.stringify({ id: run.id, version: run.version, ...rest });
    return result === undefined ? text : `${text.slice(0, -1)},"result":${result}}`;
}
function endProcess(run) {
    writeSync(2, `error ${run.topic} ${run.id} blocks the event loop, ${MOST_BLOCKED} s past its timeout of ${run.timeout} s: the process ends\n`);
    setTimeout(() => process.kill(process.pid, "SIGKILL"), 1000);
    import("node:inspector")
        .then(({ Session }) => {
        const session = new Session();
        session.connectToMainThread();
        session.post("Runtime.evaluate", { expression: "process.exit(70)" });
    })
        .catch(() => { });
}
if (parentPort !== null) {
    const port = parentPort;
    const protocol = new Protocol(workerData, new Outbox((messages) => port.postMessage(messages)));
    port.on("message", (messages) => messages.forEach((message) => protocol.hear(message)));
    void protocol.start();
}
