import { RowlockError } from "../errors.js";
export class Final extends RowlockError {
    static {
        this.prototype.name = "Final";
    }
}
export class Snooze extends RowlockError {
    static {
        this.prototype.name = "Snooze";
    }
    seconds;
    constructor(until) {
        const seconds = until instanceof Date ? Math.max(0, (until.getTime() - Date.now()) / 1000) : until;
        if (!(seconds >= 0 && Number.isFinite(seconds)))
            throw new TypeError(`Snooze needs seconds from 0 on, or a Date, not ${String(until)}`);
        super(`snoozed for ${seconds} s`);
        this.seconds = seconds;
    }
}
export class StepFailed extends Final {
    static {
        this.prototype.name = "StepFailed";
    }
    step;
    error;
    constructor(step, error, options) {
        super(`the step ${step} has failed for good: ${error.slice(error.lastIndexOf("\n") + 1)}`, options);
        this.step = step;
        this.error = error;
    }
}
export class StepLimit extends Final {
    static {
        this.prototype.name = "StepLimit";
    }
}
export class WaitTimeout extends Final {
    static {
        this.prototype.name = "WaitTimeout";
    }
    signal;
    constructor(signal) {
        super(`the signal ${signal} had not come when the wait ended`);
        this.signal = signal;
    }
}
export class Suspend extends RowlockError {
    static {
        this.prototype.name = "Suspend";
    }
    text;
    how;
    constructor(text, how) {
        super(`${text} ends the run here, and the job goes on later: let this pass`);
        this.text = text;
        this.how = how;
    }
}
export class Interrupted extends RowlockError {
    static {
        this.prototype.name = "Interrupted";
    }
}
export class Cancelled extends Interrupted {
    static {
        this.prototype.name = "Cancelled";
    }
    constructor(reason) {
        super(reason === undefined ? "cancelled" : `cancelled: ${reason}`);
    }
}
export class TimeLimit extends Interrupted {
    static {
        this.prototype.name = "TimeLimit";
    }
    constructor(seconds) {
        super(timedOut(seconds));
    }
}
export class WorkerStopping extends Interrupted {
    static {
        this.prototype.name = "WorkerStopping";
    }
    constructor() {
        super("the worker is stopping; another one runs the job again, and it keeps its retries");
    }
}
export class LeaseLost extends Interrupted {
    static {
        this.prototype.name = "LeaseLost";
    }
    constructor(run) {
        super(`run ${run.version} of job ${run.id} lost its lease`);
    }
}
export const timedOut = (seconds) => `Timed out: the handler ran for more than ${seconds} s`;
