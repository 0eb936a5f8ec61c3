// The errors by which a handler ends its run, and the reasons for which the worker ends one.

import { RowlockError } from "../errors.ts";

/** `throw new Final("no such customer")`: the job has failed, and is not retried. */
export class Final extends RowlockError {
  static {
    this.prototype.name = "Final";
  }
}

/** `throw new Snooze(30)`: run the job again after so many seconds, or at a time. It costs no retry. */
export class Snooze extends RowlockError {
  static {
    this.prototype.name = "Snooze";
  }

  readonly seconds: number;

  constructor(until: number | Date) {
    const seconds = until instanceof Date ? Math.max(0, (until.getTime() - Date.now()) / 1000) : until;
    if (!(seconds >= 0 && Number.isFinite(seconds))) throw new TypeError(`Snooze needs seconds from 0 on, or a Date, not ${String(until)}`);
    super(`snoozed for ${seconds} s`);
    this.seconds = seconds;
  }
}

/** A step has used up its own retries. Catch it to undo what other steps have done. If it leaves the handler, the job fails for good. */
export class StepFailed extends Final {
  static {
    this.prototype.name = "StepFailed";
  }

  readonly step: string;
  /** The text of the step's error, with its stack. */
  readonly error: string;

  constructor(step: string, error: string, options?: ErrorOptions) {
    super(`the step ${step} has failed for good: ${error.slice(error.lastIndexOf("\n") + 1)}`, options);
    this.step = step;
    this.error = error;
  }
}

/** A step, or its result, is beyond a limit. The job fails for good, also if the handler catches this. */
export class StepLimit extends Final {
  static {
    this.prototype.name = "StepLimit";
  }
}

/** `job.waitFor` has no default, and no signal came in time. If it leaves the handler, the job fails for good. */
export class WaitTimeout extends Final {
  static {
    this.prototype.name = "WaitTimeout";
  }

  readonly signal: string;

  constructor(signal: string) {
    super(`the signal ${signal} had not come when the wait ended`);
    this.signal = signal;
  }
}

/** @internal How a suspended run ends: a step is tried again later, or the job waits. */
export type Suspension = { kind: "retry"; step: string; delay: number; error: string } | { kind: "wait"; seconds: number; body: object };

/**
 * Goes through the handler when a wait, or the backoff of a step, ends the run. The job goes on later. `finally` blocks run. A `catch` block must
 * throw it again: `if (error instanceof Suspend) throw error`.
 */
export class Suspend extends RowlockError {
  static {
    this.prototype.name = "Suspend";
  }

  /** Which call ends the run. */
  readonly text: string;
  /** @internal */
  readonly how: Suspension;

  /** @internal */
  constructor(text: string, how: Suspension) {
    super(`${text} ends the run here, and the job goes on later: let this pass`);
    this.text = text;
    this.how = how;
  }
}

/** This run must end. Catching it only delays the end. */
export class Interrupted extends RowlockError {
  static {
    this.prototype.name = "Interrupted";
  }
}

/** An operator or a program has cancelled the job. */
export class Cancelled extends Interrupted {
  static {
    this.prototype.name = "Cancelled";
  }

  constructor(reason?: string) {
    super(reason === undefined ? "cancelled" : `cancelled: ${reason}`);
  }
}

/** The run has taken longer than the timeout of its job. */
export class TimeLimit extends Interrupted {
  static {
    this.prototype.name = "TimeLimit";
  }

  constructor(seconds: number) {
    super(timedOut(seconds));
  }
}

/** The worker stops. Another one runs the job again, and the job keeps its retries. */
export class WorkerStopping extends Interrupted {
  static {
    this.prototype.name = "WorkerStopping";
  }

  constructor() {
    super("the worker is stopping; another one runs the job again, and it keeps its retries");
  }
}

/** Another worker may run the job now. What this run does won't count. */
export class LeaseLost extends Interrupted {
  static {
    this.prototype.name = "LeaseLost";
  }

  constructor(run: { id: string; version: number }) {
    super(`run ${run.version} of job ${run.id} lost its lease`);
  }
}

/** @internal */
export const timedOut = (seconds: number): string => `Timed out: the handler ran for more than ${seconds} s`;
