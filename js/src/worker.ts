// Workers in JavaScript and TypeScript: "rowlock/worker".

export type { StepContext, StepOptions } from "./worker/steps.ts";
export type { Register, Workers } from "./worker/handlers.ts";
export type { Level } from "./worker/messages.ts";
export {
  Cancelled, Final, Interrupted, LeaseLost, Snooze, StepFailed, StepLimit, Suspend, TimeLimit, WaitTimeout, WorkerStopping,
} from "./worker/outcomes.ts";
export type { CallbackOptions, Handler, Run, WaitOptions } from "./worker/run.ts";
export { Worker, type WorkerOptions } from "./worker/worker.ts";
