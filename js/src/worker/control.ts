// Whether a run must end, and the handler's way to the protocol's thread.

import { AsyncLocalStorage } from "node:async_hooks";
import type { RunBody } from "../api.ts";
import type { News, Verb, Why } from "./messages.ts";
import { Cancelled, Interrupted, LeaseLost, TimeLimit, WorkerStopping } from "./outcomes.ts";

const REPORT_EVERY = 200; // milliseconds
const MOST_LINES = 200; // that a job keeps

/** @internal The run, and the step of it, in which the code is that asks. */
export const here = new AsyncLocalStorage<{ control: Control; step?: string }>();

/** @internal */
export interface Link {
  /** Ask the server. `insist`: until it answers, however long that takes. */
  ask<T>(verb: Verb, body: object, insist?: boolean): Promise<T>;
  report(news: News): void;
}

/** @internal */
export class Control {
  readonly body: RunBody;
  readonly link: Link;
  /** Why the run must end. */
  reason: Interrupted | undefined;
  /** The job was cancelled while it waited: this run is to undo what earlier ones have done. */
  isUndo: boolean;
  hasEnded = false;
  #controller: AbortController | undefined;
  #news: News | undefined;
  #reported = -Infinity;
  #timer: NodeJS.Timeout | undefined;

  constructor(body: RunBody, link: Link) {
    this.body = body;
    this.link = link;
    this.isUndo = body.status === "cancel_requested";
  }

  get signal(): AbortSignal {
    if (this.#controller === undefined) {
      this.#controller = new AbortController();
      if (this.reason !== undefined) this.#controller.abort(this.reason);
    }
    return this.#controller.signal;
  }

  /** The first reason is kept. Only a lost lease replaces it: it says that nothing counts any more. */
  interrupt(why: Why): void {
    if (this.reason !== undefined && why !== "lost") return;
    this.reason = reasonOf(why, this.body);
    this.#controller?.abort(this.reason);
  }

  /** Start the handler again. A cancel takes effect where the handler comes to something new. */
  restart(): void {
    this.hasEnded = false;
    this.#controller = undefined;
    if (this.reason instanceof Cancelled) {
      this.reason = undefined;
      this.isUndo = true;
    }
  }

  /** Throw if the run must end. `cancelable` false: a cancel doesn't end it. */
  check(cancelable = true): void {
    if (this.reason !== undefined && (cancelable || !(this.reason instanceof Cancelled))) throw this.reason;
  }

  /** The handler has come to a step or a wait of which no end is stored. Throw if the run must end. */
  beginAnew(cancelable = true): void {
    if (this.isUndo) this.interrupt("cancelled");
    this.check(cancelable);
  }

  /** Also while the handler blocks the event loop: then no timer helps, and the next report takes this one along. */
  report({ lines, ...progress }: News): void {
    this.#news = { ...this.#news, ...progress };
    if (lines !== undefined) this.#news.lines = [...(this.#news.lines ?? []).slice(-MOST_LINES), ...lines];
    const left = this.#reported + REPORT_EVERY - performance.now();
    if (left <= 0) this.flush();
    else this.#timer ??= setTimeout(() => this.flush(), left);
  }

  /** Hand over what was reported. */
  flush(): void {
    clearTimeout(this.#timer);
    this.#timer = undefined;
    if (this.#news === undefined) return;
    this.#reported = performance.now();
    this.link.report(this.#news);
    this.#news = undefined;
  }
}

function reasonOf(why: Why, body: RunBody): Interrupted {
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
