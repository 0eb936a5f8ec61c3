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
