import { Conflict } from "../errors.js";
import { newId } from "../ids.js";
import { here } from "./control.js";
import { errorText, messageOf, typeOf } from "./errors.js";
import { encode, Unfit } from "./json.js";
import { LEVELS } from "./messages.js";
import { Cancelled, Final, Interrupted, LeaseLost, Snooze, Suspend, TimeLimit, WorkerStopping } from "./outcomes.js";
import { RunSteps } from "./steps.js";
export class Run {
    #control;
    #steps;
    constructor(control, steps) {
        const { lease: _lease, step: _step, status: _status, ...body } = control.body;
        Object.assign(this, body);
        this.#control = control;
        this.#steps = steps;
    }
    get signal() {
        return this.#control.signal;
    }
    check() {
        this.#control.check();
    }
    progress(percent, { stage, message } = {}) {
        if (percent !== undefined && percent !== null && !(percent >= 0 && percent <= 100))
            throw new TypeError(`percent: must be a number from 0 to 100, not ${String(percent)}`);
        this.#control.report({
            ...(typeof percent === "number" && { percent }),
            ...(stage !== undefined && { stage: String(stage) }),
            ...(message !== undefined && { message: String(message) }),
        });
    }
    log(text, { level = "info" } = {}) {
        if (!LEVELS.includes(level))
            throw new TypeError(`level: must be one of ${LEVELS.join(", ")}, not ${String(level)}`);
        this.#control.report({ lines: [{ text: String(text), level }] });
    }
    step(name, run, options) {
        return this.#steps.step(name, run, options);
    }
    sleep(until) {
        return this.#steps.sleep(until);
    }
    waitFor(signal, { timeout, ...terms } = {}) {
        return this.#steps.waitFor(signal, timeout, terms);
    }
    callback(signal, options = {}) {
        return this.#steps.callback(signal, options);
    }
    async enqueue(topic, payload = {}, { signal: _, ...options } = {}) {
        const inherited = { ...(this.scope !== null && { scope: this.scope }), ...(this.scope_id !== null && { scope_id: this.scope_id }) };
        const id = options.id ?? newId();
        try {
            return (await this.#control.link.ask("enqueue", { ...inherited, ...options, id, topic, payload })).id;
        }
        catch (error) {
            if (!options.id && error instanceof Conflict && error.field === "id")
                return id;
            throw error;
        }
    }
}
export async function execute(control, handler) {
    for (let isFirst = true;; isFirst = false) {
        const steps = new RunSteps(control, isFirst);
        const began = performance.now();
        const ended = await attempt(control, steps, handler);
        control.hasEnded = true;
        await steps.quiet();
        const ran = (performance.now() - began) / 1000;
        const how = ended.error instanceof Suspend ? ended.error.how : undefined;
        if (how?.kind !== "wait")
            return endOf(control, steps, ended, ran);
        const over = await suspended(control, how, ran);
        if (over !== undefined)
            return over.end;
        control.restart();
    }
}
async function attempt(control, steps, handler) {
    try {
        return { value: await here.run({ control }, handler, new Run(control, steps)), hasFailed: false };
    }
    catch (error) {
        return { error, hasFailed: true };
    }
}
async function suspended(control, { body }, ran) {
    control.flush();
    try {
        const { state } = await control.link.ask("wait", { ...body, ran }, true);
        if (state === "waiting")
            return { end: undefined };
        if (state === "cancelled")
            control.interrupt("cancelled");
    }
    catch (error) {
        return { end: error instanceof LeaseLost ? undefined : failure(error, true, ran) };
    }
    const { reason } = control;
    return reason === undefined || reason instanceof Cancelled ? undefined : { end: interrupted(reason, reason, ran) };
}
function endOf(control, steps, ended, ran) {
    if (steps.spoiled !== undefined)
        return failure(steps.spoiled, true, ran);
    const { error } = ended;
    if (error instanceof Suspend && error.how.kind === "retry") {
        const { step, delay, error: text } = error.how;
        return { end: "retry-step", step, delay, error: text, ran };
    }
    if (steps.suspends[0] !== undefined)
        return failure(new Final(swallowed(steps.suspends[0], error)), true, ran);
    if (!ended.hasFailed)
        return completion(ended.value, ran);
    if (control.reason !== undefined)
        return interrupted(control.reason, error, ran);
    if (error instanceof Snooze)
        return { end: "snooze", seconds: error.seconds };
    if (error instanceof Cancelled)
        return { end: "give-up", reason: error.message };
    return failure(error, error instanceof Final, ran);
}
function interrupted(reason, error, ran) {
    if (reason instanceof TimeLimit)
        return { end: "fail", type: "TimeLimit", error: reason.message, final: false, ran };
    if (reason instanceof WorkerStopping || reason instanceof LeaseLost)
        return { end: "release", reason: reason.message };
    const isConsequence = error instanceof Interrupted || error instanceof Snooze || (error instanceof Error && error.name === "AbortError");
    return isConsequence ? { end: "give-up" } : failure(error, false, ran);
}
function completion(value, ran) {
    try {
        return value === undefined ? { end: "complete", ran } : { end: "complete", result: encode(value), ran };
    }
    catch (error) {
        const why = error instanceof Unfit ? error.message : String(error);
        return failure(new Final(`the result can't be stored: ${why}`), true, ran);
    }
}
export function failure(error, final, ran) {
    return { end: "fail", type: typeOf(error), error: messageOf(error), traceback: errorText(error), final, ran };
}
function swallowed({ text }, error) {
    const then = error === undefined ? "" : `. It has thrown ${typeOf(error)} instead: ${messageOf(error)}`;
    return `the handler has caught Suspend, by which ${text} ends the run, so that the job goes on later: throw it again (if (error instanceof Suspend) throw error)${then}`;
}
