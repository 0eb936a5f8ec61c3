export { Cancelled, Final, Interrupted, LeaseLost, Snooze, StepFailed, StepLimit, Suspend, TimeLimit, WaitTimeout, WorkerStopping, } from "./worker/outcomes.js";
export { Worker } from "./worker/worker.js";
