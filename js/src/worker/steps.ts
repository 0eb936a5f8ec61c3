// The steps and waits of one start of a handler. What is stored is returned. The rest is run and stored, or ends the run.

import type { StoredStepBody, WaitAnswer } from "../api.ts";
import { RequestError, RowlockError } from "../errors.ts";
import { type Control, here } from "./control.ts";
import { errorText } from "./errors.ts";
import { encode, Unfit } from "./json.ts";
import { Cancelled, Final, Interrupted, LeaseLost, Snooze, StepFailed, StepLimit, Suspend, type Suspension, WaitTimeout } from "./outcomes.ts";

const MARK_AFTER = 250; // milliseconds after which the page shows a step as running
const AFTER_TIMEOUT = 5_000; // milliseconds for a step that ends after its signal was aborted
const LONGEST_TIMER = 2 ** 31 - 1; // milliseconds; setTimeout fires at once beyond it
const LONGEST_NAME = 200;
const LIMITS = new Set(["too_many_steps", "too_large", "steps_too_large"]);

export interface StepOptions {
  /** Seconds. A step that takes longer fails. */
  timeout?: number | undefined;
  /** false: a cancel waits for its end, and it may run after a cancel, to undo. Default: true */
  cancelable?: boolean | undefined;
  /** Retries of its own. Default: 3 if there are `delays`, else none */
  maxRetries?: number | undefined;
  /** Seconds before each retry; the last one repeats. Default: 1, 4, 9 … minutes */
  delays?: readonly number[] | undefined;
}

export interface StepContext {
  /** Aborted when the step must end. */
  signal: AbortSignal;
}

interface Call {
  name: string;
  n: number;
  position: number;
  label: string;
}

/** @internal */
export class RunSteps {
  readonly #control: Control;
  #rows: Promise<Map<string, StoredStepBody>> | undefined;
  readonly #counts = new Map<string, number>();
  #position = 0;
  readonly #running = new Set<Call>();
  #whenQuiet: (() => void)[] = [];
  readonly #waits = new Map<Call, Suspension & { kind: "wait" }>();
  /** Why the run ends, if it ends here and goes on later. */
  readonly suspends: Suspend[] = [];
  /** The job must fail by this error, also if the handler catches it. */
  spoiled: Final | undefined;

  constructor(control: Control, isFirst: boolean) {
    this.#control = control;
    if (control.body.step === null && isFirst) this.#rows = Promise.resolve(new Map());
  }

  // ── The call ──

  /** Number the call: at once, so that the order of the calls counts. */
  #begin(verb: string, name: string): Call {
    const inside = here.getStore();
    if (this.#control.hasEnded) throw new RowlockError(`${verb}: the handler has ended. Await it in the handler`);
    if (inside?.control === this.#control && inside.step !== undefined) throw new RowlockError(`${verb} inside of the step ${inside.step}: only the handler may call it`);
    const n = (this.#counts.get(name) ?? 0) + 1;
    this.#counts.set(name, n);
    return { name, n, position: ++this.#position, label: n === 1 ? name : `${name}#${n}` };
  }

  async #stored(call: Call): Promise<StoredStepBody | undefined> {
    this.#rows ??= this.#control.link.ask<{ items: StoredStepBody[] }>("steps", {}).then(({ items }) => new Map(items.map((row) => [keyOf(row), row])));
    return (await this.#rows).get(keyOf(call));
  }

  // ── Steps ──

  async step<T>(name: string, run: (context: StepContext) => T | Promise<T>, options: StepOptions = {}): Promise<T> {
    checkStep(name, run, options);
    const call = this.#begin(`job.step(${JSON.stringify(name)})`, name);
    try {
      return (await this.#findOrRun(call, run, options)) as T;
    } catch (error) {
      if (error instanceof StepLimit) this.spoiled ??= error;
      throw error;
    }
  }

  async #findOrRun(call: Call, run: (context: StepContext) => unknown, options: StepOptions): Promise<unknown> {
    const row = await this.#stored(call);
    if (row?.state === "succeeded") return row.result;
    if (row?.state === "failed") throw new StepFailed(call.label, row.error ?? "");
    if (this.suspends[0] !== undefined) throw this.suspends[0]; // the handler has caught it
    this.#control.beginAnew(options.cancelable);
    this.#running.add(call);
    try {
      return await new OneStep(this.#control, call, options, row?.retries ?? 0).run(run);
    } catch (error) {
      if (error instanceof Suspend) {
        this.suspends.push(error);
        this.#leave(call);
        await this.quiet();
        throw this.#suspension();
      }
      throw error;
    } finally {
      this.#leave(call);
    }
  }

  /** Steps that are tried again come before waits, which the next run finds open. The run goes on when every step may be tried again. */
  #suspension(): Suspend {
    const delay = ({ how }: Suspend): number => (how.kind === "retry" ? how.delay : -1);
    return this.suspends.reduce((first, one) => (delay(one) > delay(first) ? one : first));
  }

  // ── Waits ──

  async sleep(until: number | { until: Date | string }): Promise<void> {
    const isNumber = typeof until === "number";
    if (isNumber && !(until >= 0)) throw new TypeError(`job.sleep needs seconds from 0 on, or { until: a Date }, not ${until}`);
    const time = isNumber ? undefined : new Date(until.until);
    if (time !== undefined && Number.isNaN(time.getTime())) throw new TypeError("job.sleep: until must be a Date, or a text such as 2030-01-31T09:00:00Z");
    const seconds = time === undefined ? (until as number) : (time.getTime() - Date.now()) / 1000;
    await this.#wait("job.sleep", "@sleep", seconds, time === undefined ? { sleep: until } : { until: time.toISOString() }, "");
  }

  waitFor(signal: string, timeout: number | undefined, terms: object): Promise<unknown> {
    return this.#wait(`job.waitFor(${JSON.stringify(signal)})`, `@signal:${signal}`, timeout ?? Infinity, { signal, timeout, ...terms }, signal);
  }

  async #wait(text: string, name: string, seconds: number, terms: object, signal: string): Promise<unknown> {
    const call = this.#begin(text, name);
    const row = await this.#stored(call);
    if (row?.state === "succeeded") return row.result;
    if (row?.state === "failed") throw new WaitTimeout(signal);
    const body = { ...terms, n: call.n, position: call.position };
    for (;;) {
      if (this.suspends.length > 0) throw this.#suspension();
      this.#control.beginAnew();
      this.#running.add(call);
      try {
        const { state, data } = await this.#control.link.ask<WaitAnswer>("wait", { ...body, peek: true });
        if (state === "ended") return data;
        if (state === "timed_out") throw new WaitTimeout(signal);
        if (state === "cancelled") this.#control.interrupt("cancelled");
        this.#control.check();
        if (this.#control.hasEnded) throw new RowlockError(`${text}: the handler has ended`);
        this.#waits.set(call, { kind: "wait", seconds, body });
        this.#running.delete(call);
        if (this.#running.size === 0) this.suspends.push(new Suspend(text, this.#firstWait()));
      } finally {
        this.#leave(call);
      }
      await this.quiet(); // a step runs beside it, or another wait asks
    }
  }

  /** The job waits for one of the waits that are open: the one that ends first by itself, so that none can be missed for ever. */
  #firstWait(): Suspension {
    return [...this.#waits.values()].reduce((first, one) => (one.seconds < first.seconds ? one : first));
  }

  async callback(signal: string, terms: object): Promise<string> {
    const call = this.#begin(`job.callback(${JSON.stringify(signal)})`, `@callback:${signal}`);
    if (this.suspends[0] !== undefined) throw this.suspends[0];
    if ((await this.#stored(call))?.state !== "succeeded") this.#control.beginAnew();
    const body = { signal, ...terms, n: call.n, position: call.position };
    return (await this.#beside(call, () => this.#control.link.ask<{ url: string }>("callback", body))).url;
  }

  // ── What runs beside each other ──

  /** Let the run not end before this has. */
  async #beside<T>(call: Call, work: () => Promise<T>): Promise<T> {
    this.#running.add(call);
    try {
      return await work();
    } finally {
      this.#leave(call);
    }
  }

  #leave(call: Call): void {
    this.#running.delete(call);
    if (this.#running.size > 0) return;
    const waiting = this.#whenQuiet;
    this.#whenQuiet = [];
    for (const resolve of waiting) resolve();
  }

  /** Resolve when no step runs. */
  quiet(): Promise<void> {
    return this.#running.size === 0 ? Promise.resolve() : new Promise((resolve) => this.#whenQuiet.push(resolve));
  }
}

/** One call of a step of which no end is stored. */
class OneStep {
  readonly #control: Control;
  readonly #call: Call;
  readonly #options: StepOptions;
  readonly #cancelable: boolean;
  readonly #maxRetries: number | undefined;
  #retries: number;
  #began = performance.now();

  constructor(control: Control, call: Call, options: StepOptions, retries: number) {
    this.#control = control;
    this.#call = call;
    this.#options = options;
    this.#cancelable = options.cancelable ?? true;
    this.#maxRetries = options.maxRetries ?? (options.delays === undefined ? undefined : 3);
    this.#retries = retries;
  }

  async run(work: (context: StepContext) => unknown): Promise<unknown> {
    let marking: Promise<unknown> | undefined;
    if (!this.#cancelable) await this.#mark("running"); // from now on a cancel waits for its end
    const timer = this.#cancelable ? setTimeout(() => (marking = this.#mark("running").catch(() => {})), MARK_AFTER) : undefined;
    this.#began = performance.now();
    let result: unknown;
    try {
      result = JSON.parse(encode(await this.#called(work))) as unknown; // the first run sees what a later one will see
    } catch (error) {
      clearTimeout(timer);
      await marking;
      throw await this.#failure(error instanceof Unfit ? new StepLimit(`the result of the step ${this.#call.label} can't be stored: ${error.message}`) : error);
    }
    clearTimeout(timer);
    await marking;
    await this.#mark("succeeded", { result });
    return result;
  }

  /** Call the function. Past its timeout the step fails when the function ends, or 5 s later. */
  async #called(work: (context: StepContext) => unknown): Promise<unknown> {
    const timeout = this.#options.timeout ?? Infinity;
    const outer = this.#control.signal;
    const own = new AbortController();
    const interrupt = (): void => {
      if (this.#reason !== undefined) own.abort(this.#reason);
    };
    outer.addEventListener("abort", interrupt);
    interrupt();
    let timer: NodeJS.Timeout | undefined;
    const late = new Promise<never>((_, reject) => {
      if (timeout * 1000 > LONGEST_TIMER) return;
      timer = setTimeout(() => {
        own.abort(this.#tooLate());
        timer = setTimeout(() => reject(this.#tooLate()), AFTER_TIMEOUT);
      }, timeout * 1000);
    });
    const isLate = (): boolean => performance.now() - this.#began > timeout * 1000;
    try {
      const value = await Promise.race([here.run({ control: this.#control, step: this.#call.label }, work, { signal: own.signal }), late]);
      if (isLate()) throw this.#tooLate();
      return value;
    } catch (error) {
      throw isLate() && !(error instanceof Interrupted) ? this.#tooLate() : error;
    } finally {
      clearTimeout(timer);
      outer.removeEventListener("abort", interrupt);
    }
  }

  /** Why the step must end. A cancel doesn't end one that is not cancelable. */
  get #reason(): Interrupted | undefined {
    const { reason } = this.#control;
    return reason instanceof Cancelled && !this.#cancelable ? undefined : reason;
  }

  #tooLate(): Error {
    const error = new Error(`the step ${this.#call.label} has taken longer than its timeout of ${this.#options.timeout} s`);
    error.name = "TimeoutError";
    return error;
  }

  /** Store what the failure means. Return what the handler is to see. */
  async #failure(error: unknown): Promise<unknown> {
    const reason = this.#reason;
    if (reason instanceof LeaseLost) return this.#maxRetries === undefined ? error : reason;
    if (error instanceof StepLimit) return error;
    if (reason !== undefined || error instanceof Snooze || error instanceof Interrupted || this.#maxRetries === undefined) {
      await this.#mark(reason instanceof Cancelled ? "cancelled" : "pending", { error: errorText(error) }).catch(() => {});
      // A step with retries of its own is not to blame if the run must end: its error may be a consequence.
      return reason instanceof Cancelled || (reason !== undefined && this.#maxRetries !== undefined) ? reason : error;
    }
    try {
      return await this.#failByPolicy(error, this.#maxRetries);
    } catch (problem) {
      return problem; // it could not be stored
    }
  }

  async #failByPolicy(cause: unknown, maxRetries: number): Promise<Error> {
    const error = errorText(cause);
    if (this.#retries >= maxRetries || cause instanceof Final) {
      await this.#mark("failed", { error });
      return new StepFailed(this.#call.label, error, { cause });
    }
    this.#retries += 1;
    await this.#mark("pending", { error });
    const { delays } = this.#options;
    const delay = delays === undefined ? this.#retries ** 2 * 60 : (delays[Math.min(this.#retries, delays.length) - 1] as number);
    return new Suspend(`the step ${this.#call.label}`, { kind: "retry", step: this.#call.label, delay, error });
  }

  async #mark(state: string, more: object = {}): Promise<void> {
    const { name, n, position } = this.#call;
    const ran = (performance.now() - this.#began) / 1000;
    try {
      await this.#control.link.ask("checkpoint", { name, n, position, state, retries: this.#retries, cancelable: this.#cancelable, ran, ...more });
    } catch (error) {
      if (error instanceof RequestError && LIMITS.has(error.code)) throw new StepLimit(error.message);
      throw error;
    }
  }
}

const keyOf = ({ name, n }: { name: string; n: number }): string => `${n} ${name}`;

function checkStep(name: string, run: unknown, { timeout, maxRetries, delays }: StepOptions): void {
  if (typeof name !== "string" || name === "" || name.length > LONGEST_NAME || /^@|[#\p{Cc}]/u.test(name)) {
    throw new TypeError(`${JSON.stringify(name)} can't name a step: use 1 to ${LONGEST_NAME} characters, without # and control characters, and no @ at its beginning`);
  }
  if (typeof run !== "function") throw new TypeError(`job.step(${JSON.stringify(name)}) needs a function`);
  if (timeout !== undefined && !(timeout > 0)) throw new TypeError(`timeout of the step ${name}: must be seconds above 0, not ${timeout}`);
  if (maxRetries !== undefined && !(Number.isInteger(maxRetries) && maxRetries >= 0)) throw new TypeError(`maxRetries of the step ${name}: must be a whole number from 0 on, not ${maxRetries}`);
  if (delays !== undefined && !(delays.length > 0 && delays.every((delay) => delay >= 0))) throw new TypeError(`delays of the step ${name}: must be a list of seconds from 0 on`);
}
