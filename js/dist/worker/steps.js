import { RequestError, RowlockError } from "../errors.js";
import { here } from "./control.js";
import { errorText } from "./errors.js";
import { encode, Unfit } from "./json.js";
import { Cancelled, Final, Interrupted, LeaseLost, Snooze, StepFailed, StepLimit, Suspend, WaitTimeout } from "./outcomes.js";
const MARK_AFTER = 250;
const AFTER_TIMEOUT = 5_000;
const LONGEST_TIMER = 2 ** 31 - 1;
const LONGEST_NAME = 200;
const LIMITS = new Set(["too_many_steps", "too_large", "steps_too_large"]);
export class RunSteps {
    #control;
    #rows;
    #counts = new Map();
    #position = 0;
    #running = new Set();
    #whenQuiet = [];
    #waits = new Map();
    suspends = [];
    spoiled;
    constructor(control, isFirst) {
        this.#control = control;
        if (control.body.step === null && isFirst)
            this.#rows = Promise.resolve(new Map());
    }
    #begin(verb, name) {
        const inside = here.getStore();
        if (this.#control.hasEnded)
            throw new RowlockError(`${verb}: the handler has ended. Await it in the handler`);
        if (inside?.control === this.#control && inside.step !== undefined)
            throw new RowlockError(`${verb} inside of the step ${inside.step}: only the handler may call it`);
        const n = (this.#counts.get(name) ?? 0) + 1;
        this.#counts.set(name, n);
        return { name, n, position: ++this.#position, label: n === 1 ? name : `${name}#${n}` };
    }
    async #stored(call) {
        this.#rows ??= this.#control.link.ask("steps", {}).then(({ items }) => new Map(items.map((row) => [keyOf(row), row])));
        return (await this.#rows).get(keyOf(call));
    }
    async step(name, run, options = {}) {
        checkStep(name, run, options);
        const call = this.#begin(`job.step(${JSON.stringify(name)})`, name);
        try {
            return (await this.#findOrRun(call, run, options));
        }
        catch (error) {
            if (error instanceof StepLimit)
                this.spoiled ??= error;
            throw error;
        }
    }
    async #findOrRun(call, run, options) {
        const row = await this.#stored(call);
        if (row?.state === "succeeded")
            return row.result;
        if (row?.state === "failed")
            throw new StepFailed(call.label, row.error ?? "");
        if (this.suspends[0] !== undefined)
            throw this.suspends[0];
        this.#control.beginAnew(options.cancelable);
        this.#running.add(call);
        try {
            return await new OneStep(this.#control, call, options, row?.retries ?? 0).run(run);
        }
        catch (error) {
            if (error instanceof Suspend) {
                this.suspends.push(error);
                this.#leave(call);
                await this.quiet();
                throw this.#suspension();
            }
            throw error;
        }
        finally {
            this.#leave(call);
        }
    }
    #suspension() {
        const delay = ({ how }) => (how.kind === "retry" ? how.delay : -1);
        return this.suspends.reduce((first, one) => (delay(one) > delay(first) ? one : first));
    }
    async sleep(until) {
        const isNumber = typeof until === "number";
        if (isNumber && !(until >= 0))
            throw new TypeError(`job.sleep needs seconds from 0 on, or { until: a Date }, not ${until}`);
        const time = isNumber ? undefined : new Date(until.until);
        if (time !== undefined && Number.isNaN(time.getTime()))
            throw new TypeError("job.sleep: until must be a Date, or a text such as 2030-01-31T09:00:00Z");
        const seconds = time === undefined ? until : (time.getTime() - Date.now()) / 1000;
        await this.#wait("job.sleep", "@sleep", seconds, time === undefined ? { sleep: until } : { until: time.toISOString() }, "");
    }
    waitFor(signal, timeout, terms) {
        return this.#wait(`job.waitFor(${JSON.stringify(signal)})`, `@signal:${signal}`, timeout ?? Infinity, { signal, timeout, ...terms }, signal);
    }
    async #wait(text, name, seconds, terms, signal) {
        const call = this.#begin(text, name);
        const row = await this.#stored(call);
        if (row?.state === "succeeded")
            return row.result;
        if (row?.state === "failed")
            throw new WaitTimeout(signal);
        const body = { ...terms, n: call.n, position: call.position };
        for (;;) {
            if (this.suspends.length > 0)
                throw this.#suspension();
            this.#control.beginAnew();
            this.#running.add(call);
            try {
                const { state, data } = await this.#control.link.ask("wait", { ...body, peek: true });
                if (state === "ended")
                    return data;
                if (state === "timed_out")
                    throw new WaitTimeout(signal);
                if (state === "cancelled")
                    this.#control.interrupt("cancelled");
                this.#control.check();
                if (this.#control.hasEnded)
                    throw new RowlockError(`${text}: the handler has ended`);
                this.#waits.set(call, { kind: "wait", seconds, body });
                this.#running.delete(call);
                if (this.#running.size === 0)
                    this.suspends.push(new Suspend(text, this.#firstWait()));
            }
            finally {
                this.#leave(call);
            }
            await this.quiet();
        }
    }
    #firstWait() {
        return [...this.#waits.values()].reduce((first, one) => (one.seconds < first.seconds ? one : first));
    }
    async callback(signal, terms) {
        const call = this.#begin(`job.callback(${JSON.stringify(signal)})`, `@callback:${signal}`);
        if (this.suspends[0] !== undefined)
            throw this.suspends[0];
        if ((await this.#stored(call))?.state !== "succeeded")
            this.#control.beginAnew();
        const body = { signal, ...terms, n: call.n, position: call.position };
        return (await this.#beside(call, () => this.#control.link.ask("callback", body))).url;
    }
    async #beside(call, work) {
        this.#running.add(call);
        try {
            return await work();
        }
        finally {
            this.#leave(call);
        }
    }
    #leave(call) {
        this.#running.delete(call);
        if (this.#running.size > 0)
            return;
        const waiting = this.#whenQuiet;
        this.#whenQuiet = [];
        for (const resolve of waiting)
            resolve();
    }
    quiet() {
        return this.#running.size === 0 ? Promise.resolve() : new Promise((resolve) => this.#whenQuiet.push(resolve));
    }
}
class OneStep {
    #control;
    #call;
    #options;
    #cancelable;
    #maxRetries;
    #retries;
    #began = performance.now();
    constructor(control, call, options, retries) {
        this.#control = control;
        this.#call = call;
        this.#options = options;
        this.#cancelable = options.cancelable ?? true;
        this.#maxRetries = options.maxRetries ?? (options.delays === undefined ? undefined : 3);
        this.#retries = retries;
    }
    async run(work) {
        let marking;
        if (!this.#cancelable)
            await this.#mark("running");
        const timer = this.#cancelable ? setTimeout(() => (marking = this.#mark("running").catch(() => { })), MARK_AFTER) : undefined;
        this.#began = performance.now();
        let result;
        try {
            result = JSON.parse(encode(await this.#called(work)));
        }
        catch (error) {
            clearTimeout(timer);
            await marking;
            throw await this.#failure(error instanceof Unfit ? new StepLimit(`the result of the step ${this.#call.label} can't be stored: ${error.message}`) : error);
        }
        clearTimeout(timer);
        await marking;
        await this.#mark("succeeded", { result });
        return result;
    }
    async #called(work) {
        const timeout = this.#options.timeout ?? Infinity;
        const outer = this.#control.signal;
        const own = new AbortController();
        const interrupt = () => {
            if (this.#reason !== undefined)
                own.abort(this.#reason);
        };
        outer.addEventListener("abort", interrupt);
        interrupt();
        let timer;
        const late = new Promise((_, reject) => {
            if (timeout * 1000 > LONGEST_TIMER)
                return;
            timer = setTimeout(() => {
                own.abort(this.#tooLate());
                timer = setTimeout(() => reject(this.#tooLate()), AFTER_TIMEOUT);
            }, timeout * 1000);
        });
        const isLate = () => performance.now() - this.#began > timeout * 1000;
        try {
            const value = await Promise.race([here.run({ control: this.#control, step: this.#call.label }, work, { signal: own.signal }), late]);
            if (isLate())
                throw this.#tooLate();
            return value;
        }
        catch (error) {
            throw isLate() && !(error instanceof Interrupted) ? this.#tooLate() : error;
        }
        finally {
            clearTimeout(timer);
            outer.removeEventListener("abort", interrupt);
        }
    }
    get #reason() {
        const { reason } = this.#control;
        return reason instanceof Cancelled && !this.#cancelable ? undefined : reason;
    }
    #tooLate() {
        const error = new Error(`the step ${this.#call.label} has taken longer than its timeout of ${this.#options.timeout} s`);
        error.name = "TimeoutError";
        return error;
    }
    async #failure(error) {
        const reason = this.#reason;
        if (reason instanceof LeaseLost)
            return this.#maxRetries === undefined ? error : reason;
        if (error instanceof StepLimit)
            return error;
        if (reason !== undefined || error instanceof Snooze || error instanceof Interrupted || this.#maxRetries === undefined) {
            await this.#mark(reason instanceof Cancelled ? "cancelled" : "pending", { error: errorText(error) }).catch(() => { });
            return reason instanceof Cancelled || (reason !== undefined && this.#maxRetries !== undefined) ? reason : error;
        }
        try {
            return await this.#failByPolicy(error, this.#maxRetries);
        }
        catch (problem) {
            return problem;
        }
    }
    async #failByPolicy(cause, maxRetries) {
        const error = errorText(cause);
        if (this.#retries >= maxRetries || cause instanceof Final) {
            await this.#mark("failed", { error });
            return new StepFailed(this.#call.label, error, { cause });
        }
        this.#retries += 1;
        await this.#mark("pending", { error });
        const { delays } = this.#options;
        const delay = delays === undefined ? this.#retries ** 2 * 60 : delays[Math.min(this.#retries, delays.length) - 1];
        return new Suspend(`the step ${this.#call.label}`, { kind: "retry", step: this.#call.label, delay, error });
    }
    async #mark(state, more = {}) {
        const { name, n, position } = this.#call;
        const ran = (performance.now() - this.#began) / 1000;
        try {
            await this.#control.link.ask("checkpoint", { name, n, position, state, retries: this.#retries, cancelable: this.#cancelable, ran, ...more });
        }
        catch (error) {
            if (error instanceof RequestError && LIMITS.has(error.code))
                throw new StepLimit(error.message);
            throw error;
        }
    }
}
const keyOf = ({ name, n }) => `${n} ${name}`;
function checkStep(name, run, { timeout, maxRetries, delays }) {
    if (typeof name !== "string" || name === "" || name.length > LONGEST_NAME || /^@|[#\p{Cc}]/u.test(name)) {
        throw new TypeError(`${JSON.stringify(name)} can't name a step: use 1 to ${LONGEST_NAME} characters, without # and control characters, and no @ at its beginning`);
    }
    if (typeof run !== "function")
        throw new TypeError(`job.step(${JSON.stringify(name)}) needs a function`);
    if (timeout !== undefined && !(timeout > 0))
        throw new TypeError(`timeout of the step ${name}: must be seconds above 0, not ${timeout}`);
    if (maxRetries !== undefined && !(Number.isInteger(maxRetries) && maxRetries >= 0))
        throw new TypeError(`maxRetries of the step ${name}: must be a whole number from 0 on, not ${maxRetries}`);
    if (delays !== undefined && !(delays.length > 0 && delays.every((delay) => delay >= 0)))
        throw new TypeError(`delays of the step ${name}: must be a list of seconds from 0 on`);
}
