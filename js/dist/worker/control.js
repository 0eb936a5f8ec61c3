import { AsyncLocalStorage } from "node:async_hooks";
import { Cancelled, Interrupted, LeaseLost, TimeLimit, WorkerStopping } from "./outcomes.js";
const REPORT_EVERY = 200;
const MOST_LINES = 200;
export const here = new AsyncLocalStorage();
export class Control {
    body;
    link;
    reason;
    isUndo;
    hasEnded = false;
    #controller;
    #news;
    #reported = -Infinity;
    #timer;
    constructor(body, link) {
        this.body = body;
        this.link = link;
        this.isUndo = body.status === "cancel_requested";
    }
    get signal() {
        if (this.#controller === undefined) {
            this.#controller = new AbortController();
            if (this.reason !== undefined)
                this.#controller.abort(this.reason);
        }
        return this.#controller.signal;
    }
    interrupt(why) {
        if (this.reason !== undefined && why !== "lost")
            return;
        this.reason = reasonOf(why, this.body);
        this.#controller?.abort(this.reason);
    }
    restart() {
        this.hasEnded = false;
        this.#controller = undefined;
        if (this.reason instanceof Cancelled) {
            this.reason = undefined;
            this.isUndo = true;
        }
    }
    check(cancelable = true) {
        if (this.reason !== undefined && (cancelable || !(this.reason instanceof Cancelled)))
            throw this.reason;
    }
    beginAnew(cancelable = true) {
        if (this.isUndo)
            this.interrupt("cancelled");
        this.check(cancelable);
    }
    report({ lines, ...progress }) {
        this.#news = { ...this.#news, ...progress };
        if (lines !== undefined)
            this.#news.lines = [...(this.#news.lines ?? []).slice(-MOST_LINES), ...lines];
        const left = this.#reported + REPORT_EVERY - performance.now();
        if (left <= 0)
            this.flush();
        else
            this.#timer ??= setTimeout(() => this.flush(), left);
    }
    flush() {
        clearTimeout(this.#timer);
        this.#timer = undefined;
        if (this.#news === undefined)
            return;
        this.#reported = performance.now();
        this.link.report(this.#news);
        this.#news = undefined;
    }
}
function reasonOf(why, body) {
    switch (why) {
        case "cancelled":
            return new Cancelled();
        case "timed_out":
            return new TimeLimit(body.timeout);
        case "stopping":
            return new WorkerStopping();
        case "lost":
            return new LeaseLost(body);
    }
}
