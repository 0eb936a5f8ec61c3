import { type Control } from "./control.ts";
import { Final, Suspend } from "./outcomes.ts";
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
export declare class RunSteps {
    #private;
    /** Why the run ends, if it ends here and goes on later. */
    readonly suspends: Suspend[];
    /** The job must fail by this error, also if the handler catches it. */
    spoiled: Final | undefined;
    constructor(control: Control, isFirst: boolean);
    step<T>(name: string, run: (context: StepContext) => T | Promise<T>, options?: StepOptions): Promise<T>;
    sleep(until: number | {
        until: Date | string;
    }): Promise<void>;
    waitFor(signal: string, timeout: number | undefined, terms: object): Promise<unknown>;
    callback(signal: string, terms: object): Promise<string>;
    /** Resolve when no step runs. */
    quiet(): Promise<void>;
}
