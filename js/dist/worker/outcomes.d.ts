import { RowlockError } from "../errors.ts";
/** `throw new Final("no such customer")`: the job has failed, and is not retried. */
export declare class Final extends RowlockError {
}
/** `throw new Snooze(30)`: run the job again after so many seconds, or at a time. It costs no retry. */
export declare class Snooze extends RowlockError {
    readonly seconds: number;
    constructor(until: number | Date);
}
/** A step has used up its own retries. Catch it to undo what other steps have done. If it leaves the handler, the job fails for good. */
export declare class StepFailed extends Final {
    readonly step: string;
    /** The text of the step's error, with its stack. */
    readonly error: string;
    constructor(step: string, error: string, options?: ErrorOptions);
}
/** A step, or its result, is beyond a limit. The job fails for good, also if the handler catches this. */
export declare class StepLimit extends Final {
}
/** `job.waitFor` has no default, and no signal came in time. If it leaves the handler, the job fails for good. */
export declare class WaitTimeout extends Final {
    readonly signal: string;
    constructor(signal: string);
}
/**
 * Goes through the handler when a wait, or the backoff of a step, ends the run. The job goes on later. `finally` blocks run. A `catch` block must
 * throw it again: `if (error instanceof Suspend) throw error`.
 */
export declare class Suspend extends RowlockError {
    /** Which call ends the run. */
    readonly text: string;
}
/** This run must end. Catching it only delays the end. */
export declare class Interrupted extends RowlockError {
}
/** An operator or a program has cancelled the job. */
export declare class Cancelled extends Interrupted {
    constructor(reason?: string);
}
/** The run has taken longer than the timeout of its job. */
export declare class TimeLimit extends Interrupted {
    constructor(seconds: number);
}
/** The worker stops. Another one runs the job again, and the job keeps its retries. */
export declare class WorkerStopping extends Interrupted {
    constructor();
}
/** Another worker may run the job now. What this run does won't count. */
export declare class LeaseLost extends Interrupted {
    constructor(run: {
        id: string;
        version: number;
    });
}
