// One run of a job: what the handler gets, and what its end means.

import type { EnqueuedBody, RunBody, WaitAnswer } from "../api.ts";
import { Conflict } from "../errors.ts";
import { newId } from "../ids.ts";
import type { EnqueueOptions } from "../types.ts";
import { type Control, here } from "./control.ts";
import { errorText, messageOf, typeOf } from "./errors.ts";
import { encode, Unfit } from "./json.ts";
import { type End, LEVELS, type Level } from "./messages.ts";
import { Cancelled, Final, Interrupted, LeaseLost, Snooze, Suspend, type Suspension, TimeLimit, WorkerStopping } from "./outcomes.ts";
import { RunSteps, type StepContext, type StepOptions } from "./steps.ts";

export interface CallbackOptions {
  /** Seconds. */
  timeout?: number | undefined;
  /** JSON Schema of the data. */
  schema?: Record<string, unknown> | undefined;
}

export interface WaitOptions<T> extends CallbackOptions {
  /** What the handler gets after the timeout. Without it, WaitTimeout is thrown. */
  default?: T;
}

/** A handler: what it returns becomes the result of the job. What it throws fails the run. */
export type Handler<Payload = any> = (job: Run<Payload>) => unknown;

/** The job, as a handler gets it. `version` counts its runs. */
export class Run<Payload = any> {
  declare readonly id: string;
  declare readonly topic: string;
  declare readonly payload: Payload;
  declare readonly version: number;
  declare readonly template_version: number;
  declare readonly retries: number;
  declare readonly max_retries: number;
  declare readonly priority: number;
  declare readonly tags: string[];
  declare readonly scope: string | null;
  declare readonly scope_id: string | null;
  declare readonly key: string | null;
  declare readonly trace: string | null;
  declare readonly created: string;
  declare readonly run_at: string;
  /** Seconds that one run may take. */
  declare readonly timeout: number;
  readonly #control: Control;
  readonly #steps: RunSteps;

  /** @internal */
  constructor(control: Control, steps: RunSteps) {
    const { lease: _lease, step: _step, status: _status, ...body }: RunBody = control.body;
    Object.assign(this, body);
    this.#control = control;
    this.#steps = steps;
  }

  /** Aborted when the run must end. Its reason is Cancelled, TimeLimit, LeaseLost or WorkerStopping. */
  get signal(): AbortSignal {
    return this.#control.signal;
  }

  /** Throw the reason of `signal` if the run must end. */
  check(): void {
    this.#control.check();
  }

  /** Report the progress, 0 to 100. Call it as often as you like: the worker writes it a few times a second. */
  progress(percent?: number | null, { stage, message }: { stage?: string; message?: string } = {}): void {
    if (percent !== undefined && percent !== null && !(percent >= 0 && percent <= 100)) throw new TypeError(`percent: must be a number from 0 to 100, not ${String(percent)}`);
    this.#control.report({
      ...(typeof percent === "number" && { percent }),
      ...(stage !== undefined && { stage: String(stage) }),
      ...(message !== undefined && { message: String(message) }),
    });
  }

  /** Add a line to the job's log, which keeps the newest 200. */
  log(text: unknown, { level = "info" }: { level?: Level } = {}): void {
    if (!LEVELS.includes(level)) throw new TypeError(`level: must be one of ${LEVELS.join(", ")}, not ${String(level)}`);
    this.#control.report({ lines: [{ text: String(text), level }] });
  }

  /**
   * Run a step and store its result. If the result is stored already, return it: the function is not called again.
   *
   * A step is found by its name and the number of the call. So call steps in the same order in each run. Calls that several async functions
   * make beside each other need names of their own: job.step(`fetch ${url}`, …)
   */
  step<T>(name: string, run: (context: StepContext) => T | Promise<T>, options?: StepOptions): Promise<T> {
    return this.#steps.step(name, run, options);
  }

  /** End the run, and go on after so many seconds, or at a time. The job holds no worker meanwhile. */
  sleep(until: number | { until: Date | string }): Promise<void> {
    return this.#steps.sleep(until);
  }

  /**
   * Return the data of the next signal of this name. If there is none, end the run until one comes. `schema` is checked when a signal comes
   * while the job waits. It is not checked for one that came earlier.
   */
  waitFor<T = any>(signal: string, { timeout, ...terms }: WaitOptions<T> = {}): Promise<T> {
    return this.#steps.waitFor(signal, timeout, terms) as Promise<T>;
  }

  /** Return an address for the outside world. A POST to it sends this signal to the job, once. It is the same in every run. */
  callback(signal: string, options: CallbackOptions = {}): Promise<string> {
    return this.#steps.callback(signal, options);
  }

  /** Enqueue another job, and return its id. It inherits the scope. The token needs the scope enqueue. */
  async enqueue(topic: string, payload: object = {}, { signal: _, ...options }: EnqueueOptions = {}): Promise<string> {
    const inherited = { ...(this.scope !== null && { scope: this.scope }), ...(this.scope_id !== null && { scope_id: this.scope_id }) };
    const id = options.id ?? newId(); // a repeated request adds no second job
    try {
      return (await this.#control.link.ask<EnqueuedBody>("enqueue", { ...inherited, ...options, id, topic, payload })).id;
    } catch (error) {
      if (!options.id && error instanceof Conflict && error.field === "id") return id;
      throw error;
    }
  }
}

/** @internal Run the handler, and return how its run has ended. undefined: there is nothing to settle. */
export async function execute(control: Control, handler: Handler): Promise<End | undefined> {
  for (let isFirst = true; ; isFirst = false) {
    const steps = new RunSteps(control, isFirst);
    const began = performance.now();
    const ended = await attempt(control, steps, handler);
    control.hasEnded = true;
    await steps.quiet(); // what it has left behind must not run beside the next run
    const ran = (performance.now() - began) / 1000;
    const how = ended.error instanceof Suspend ? ended.error.how : undefined;
    if (how?.kind !== "wait") return endOf(control, steps, ended, ran);
    const over = await suspended(control, how, ran);
    if (over !== undefined) return over.end;
    control.restart();
  }
}

type Ended = { value: unknown; error?: undefined; hasFailed: false } | { error: unknown; hasFailed: true };

async function attempt(control: Control, steps: RunSteps, handler: Handler): Promise<Ended> {
  try {
    return { value: await here.run({ control }, handler, new Run(control, steps)), hasFailed: false };
  } catch (error) {
    return { error, hasFailed: true };
  }
}

/** End the run: the job waits. Return undefined if the wait is over by now, and the handler is to be started again. */
async function suspended(control: Control, { body }: Suspension & { kind: "wait" }, ran: number): Promise<{ end: End | undefined } | undefined> {
  control.flush();
  try {
    const { state } = await control.link.ask<WaitAnswer>("wait", { ...body, ran }, true);
    if (state === "waiting") return { end: undefined };
    if (state === "cancelled") control.interrupt("cancelled");
  } catch (error) {
    return { end: error instanceof LeaseLost ? undefined : failure(error, true, ran) };
  }
  const { reason } = control;
  return reason === undefined || reason instanceof Cancelled ? undefined : { end: interrupted(reason, reason, ran) };
}

function endOf(control: Control, steps: RunSteps, ended: Ended, ran: number): End {
  if (steps.spoiled !== undefined) return failure(steps.spoiled, true, ran);
  const { error } = ended;
  if (error instanceof Suspend && error.how.kind === "retry") {
    const { step, delay, error: text } = error.how;
    return { end: "retry-step", step, delay, error: text, ran };
  }
  if (steps.suspends[0] !== undefined) return failure(new Final(swallowed(steps.suspends[0], error)), true, ran);
  if (!ended.hasFailed) return completion(ended.value, ran);
  if (control.reason !== undefined) return interrupted(control.reason, error, ran);
  if (error instanceof Snooze) return { end: "snooze", seconds: error.seconds };
  if (error instanceof Cancelled) return { end: "give-up", reason: error.message };
  return failure(error, error instanceof Final, ran);
}

/** The run was told to end, and the handler has thrown an error. */
function interrupted(reason: Interrupted, error: unknown, ran: number): End {
  if (reason instanceof TimeLimit) return { end: "fail", type: "TimeLimit", error: reason.message, final: false, ran };
  if (reason instanceof WorkerStopping || reason instanceof LeaseLost) return { end: "release", reason: reason.message };
  const isConsequence = error instanceof Interrupted || error instanceof Snooze || (error instanceof Error && error.name === "AbortError");
  return isConsequence ? { end: "give-up" } : failure(error, false, ran);
}

function completion(value: unknown, ran: number): End {
  try {
    return value === undefined ? { end: "complete", ran } : { end: "complete", result: encode(value), ran };
  } catch (error) {
    const why = error instanceof Unfit ? error.message : String(error);
    return failure(new Final(`the result can't be stored: ${why}`), true, ran);
  }
}

/** @internal */
export function failure(error: unknown, final: boolean, ran: number): End {
  return { end: "fail", type: typeOf(error), error: messageOf(error), traceback: errorText(error), final, ran };
}

function swallowed({ text }: Suspend, error: unknown): string {
  const then = error === undefined ? "" : `. It has thrown ${typeOf(error)} instead: ${messageOf(error)}`;
  return `the handler has caught Suspend, by which ${text} ends the run, so that the job goes on later: throw it again (if (error instanceof Suspend) throw error)${then}`;
}
