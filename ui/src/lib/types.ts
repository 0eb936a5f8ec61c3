// The answers of the API (shapes.ts) as the page reads them: values of users are exact JSON, and a status is one that the page knows.

import type { Json } from "./json";
import type * as api from "./shapes";

/** Json wherever the API says that a value may be anything. */
type Read<T> = unknown extends T ? Json : T extends (infer One)[] ? Read<One>[] : T extends object ? { [Name in keyof T]: Read<T[Name]> } : T;
type With<T, Known> = Omit<Read<T>, keyof Known> & Known;

export const STATUSES = [
  "pending", "blocked", "processing", "waiting", "cancel_requested", "completed", "failed", "expired", "cancelled",
] as const satisfies readonly api.Status[];
export type Status = api.Status;

export const STEP_STATES = ["pending", "running", "succeeded", "failed", "skipped", "cancelled"] as const satisfies readonly api.StepBody["state"][];
export type StepState = api.StepBody["state"];

export type LiveJob = With<api.LiveJob, { status: Status }>;
export type Job = With<api.JobBody, { status: Status }>;
export type JobStep = Read<api.StepBody>;
export type JobList = With<api.ListAnswer, { items: Job[] }>;
export type JobEvent = Read<api.Event>;
export type { LogLine, Percentiles, Point, Series } from "./shapes";

export type Counts = api.StatsBody;
export type Stats = api.StatsAnswer;
export type Topic = api.TopicBody;
/** `ahead`: jobs of the same line that run before this one. `before`: the one right before it. */
export type Line = { line: false } | ({ line: true } & Required<Omit<api.LineAnswer, "line">>);

export type Step = Pick<api.TemplatesStepBody, "name"> & Partial<api.TemplatesStepBody>;
export type Unreadable = api.UnreadableBody;
export type Template = With<api.TemplateBody, {
  cancel: Required<api.Cancel>;
  retry: number[] | { quadratic: { unit: number } } | { exponential: { base: number; factor: number; cap: number; jitter: number } };
}>;

export type CronWhen = Required<Pick<api.WhenBody, "cron" | "zone" | "gap" | "overlap">>;
export type EveryWhen = Required<Pick<api.WhenBody, "every" | "anchor">>;
export type ScheduleTime = api.TimeBody;
export type Preview = api.PreviewAnswer;
export type Fire = api.RecentBody;
export type PastFire = api.FiredBody;
export type BackfillTime = api.BackfillItem;
export type Schedule = With<api.ScheduleBody, { when: CronWhen | EveryWhen; options: Required<api.OptionsBody> }>;

export type Flow = api.FlowBody;
export type FlowNode = api.NodeBody;
export type FlowEdge = api.EdgeBody;
export type FlowGraph = api.GraphAnswer;
/** How a job of a flow stands, or the flow. deleted: nothing is known of the job any more. */
export type Shown = Status | "held" | "not_taken" | "deleted" | "running";

export type Limit = api.LimitBody;
export type Limits = api.LimitsAnswer;

export type Worker = api.WorkerBody;
export type Failure = api.FailureBody;
export type Bulk = With<api.BulkInfo, { sample?: Job[] }>;
export type Audit = Read<api.AuditBody>;
export type Token = api.TokenBody;
export type Session = api.SessionBody;
export type Settings = api.SettingsBody;
export type Me = api.MeBody;
