import type { EnqueueOptions } from "../types.ts";
import { type Level } from "./messages.ts";
import { type StepContext, type StepOptions } from "./steps.ts";
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
export declare class Run<Payload = any> {
    #private;
    readonly id: string;
    readonly topic: string;
    readonly payload: Payload;
    readonly version: number;
    readonly template_version: number;
    readonly retries: number;
    readonly max_retries: number;
    readonly priority: number;
    readonly tags: string[];
    readonly scope: string | null;
    readonly scope_id: string | null;
    readonly key: string | null;
    readonly trace: string | null;
    readonly created: string;
    readonly run_at: string;
    /** Seconds that one run may take. */
    readonly timeout: number;
    /** Aborted when the run must end. Its reason is Cancelled, TimeLimit, LeaseLost or WorkerStopping. */
    get signal(): AbortSignal;
    /** Throw the reason of `signal` if the run must end. */
    check(): void;
    /** Report the progress, 0 to 100. Call it as often as you like: the worker writes it a few times a second. */
    progress(percent?: number | null, { stage, message }?: {
        stage?: string;
        message?: string;
    }): void;
    /** Add a line to the job's log, which keeps the newest 200. */
    log(text: unknown, { level }?: {
        level?: Level;
    }): void;
    /**
     * Run a step and store its result. If the result is stored already, return it: the function is not called again.
     *
     * A step is found by its name and the number of the call. So call steps in the same order in each run. Calls that several async functions
     * make beside each other need names of their own: job.step(`fetch ${url}`, …)
     */
    step<T>(name: string, run: (context: StepContext) => T | Promise<T>, options?: StepOptions): Promise<T>;
    /** End the run, and go on after so many seconds, or at a time. The job holds no worker meanwhile. */
    sleep(until: number | {
        until: Date | string;
    }): Promise<void>;
    /**
     * Return the data of the next signal of this name. If there is none, end the run until one comes. `schema` is checked when a signal comes
     * while the job waits. It is not checked for one that came earlier.
     */
    waitFor<T = any>(signal: string, { timeout, ...terms }?: WaitOptions<T>): Promise<T>;
    /** Return an address for the outside world. A POST to it sends this signal to the job, once. It is the same in every run. */
    callback(signal: string, options?: CallbackOptions): Promise<string>;
    /** Enqueue another job, and return its id. It inherits the scope. The token needs the scope enqueue. */
    enqueue(topic: string, payload?: object, { signal: _, ...options }?: EnqueueOptions): Promise<string>;
}
