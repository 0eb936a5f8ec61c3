// The answers of the API: see docs/http.md.

import type { Json } from "./json";

export const STATUSES = [
  "pending", "blocked", "processing", "waiting", "cancel_requested", "completed", "failed", "expired", "cancelled",
] as const;
export type Status = (typeof STATUSES)[number];

export interface LiveJob {
  id: string;
  topic: string;
  status: Status;
  version: number;
  progress: number;
  stage: string | null;
  message: string | null;
  step: string | null;
  waits_for: string | null; // "sleep", "signal:decision"; run_at is when the wait ends by itself
  priority: number;
  retries: number;
  max_retries: number;
  created: string;
  run_at: string;
  started_at: string | null;
  finished_at: string | null;
}

export interface Job extends LiveJob {
  payload: Record<string, Json>;
  expires_at: string | null;
  key: string | null;
  scope: string | null;
  scope_id: string | null;
  tags: string[];
  result: Json;
  crashes: number;
  timeout: number;
  locked_by: string | null;
  locked_until?: string;
  cancel_requested_at: string | null;
  cancel_reason: string | null;
  flow_id: string | null;
  updated: string;
  claimed_at: string | null;
  trace: string | null;
  template_version: number;
  if_live: "queue" | "replace" | null;
  schedule_id: string | null; // of the schedule that has made it, for the time `fire_at`
  fire_at: string | null;
  last_error?: string;
  redacted?: string[];
  can?: string[]; // only in the answer for a single job
  steps?: JobStep[]; // only there, and only if the job has steps
  wait?: { kind: "sleep" | "signal"; signal: string | null; until: string | null; timeout: number | null; schema: Record<string, Json> | null }; // only there
}

export const STEP_STATES = ["pending", "running", "succeeded", "failed", "skipped", "cancelled"] as const;
export type StepState = (typeof STEP_STATES)[number];

/** A step of a job; or a wait, or an address for the outside, whose `name` is the signal's. `n`: the n-th call of this name. `position`: null for a
 declared step that was not reached. `label`: the name by which a requeue finds it. `deadline`: when a wait or an address ends by itself. */
export interface JobStep {
  kind: "step" | "sleep" | "signal" | "callback";
  name: string;
  label: string;
  n: number;
  position: number | null;
  title: string | null;
  state: StepState;
  timeout: number | null;
  weight: number | null;
  cancelable: boolean;
  retries: number;
  max_retries: number | null;
  error: string | null;
  result: Json;
  started_at: string | null;
  finished_at: string | null;
  deadline: string | null;
}

export interface JobList {
  items: Job[];
  total: number;
  total_capped: boolean;
  partial: boolean;
  next: string | null;
  looked_back_to: string | null;
}

export type Counts = Record<Status, number> & {
  success_rate: number | null;
  avg_execution_time: number | null;
  oldest_wait: number | null;
  capped: string[];
};

export type Stats = Counts & { topics: Record<string, Counts>; topics_capped: boolean };

export type Topic = Counts & {
  topic: string;
  paused: { at: string; until: string | null; reason: string | null; by: string } | null;
  workers: number;
};

/** `ahead`: jobs of the same line that run before this one. `before`: the one right before it. */
export type Line =
  | { line: false }
  | { line: true; head: string | null; ahead: number; ahead_capped: boolean; behind: number; behind_capped: boolean; before: string | null };

export interface Step {
  name: string;
  title?: string | null;
  timeout?: number | null;
  weight?: number;
  cancelable?: boolean;
}

/** A record that should hold a template, and that this release can't read. */
export interface Unreadable {
  topic: string;
  version: number | null;
  problem: string;
}

export interface Template {
  topic: string;
  version: number;
  enabled: boolean;
  source: "code" | "api";
  title: string | null;
  description: string | null;
  schema: Record<string, Json> | null;
  result: Record<string, Json> | null;
  steps: Step[];
  max_retries: number;
  retry: number[] | { quadratic: { unit: number } } | { exponential: { base: number; factor: number; cap: number; jitter: number } };
  timeout: number;
  priority: number;
  cancel: { supported: boolean; grace: number | null; mode: "cooperative" | "kill" };
  key: string[] | null;
  if_live: "reject" | "queue" | "replace" | null;
  once: boolean;
  schedulable: boolean;
  external: boolean;
  retention: number | null;
  limits: Json[];
  ready: number;
  ready_capped: boolean;
  workers: string[];
}

export interface CronWhen {
  cron: string;
  zone: string;
  gap: "next" | "skip";
  overlap: "first" | "second" | "both";
}
export interface EveryWhen {
  every: number; // seconds
  anchor: string | null;
}

/** A nominal time. `local`: on the clocks of the schedule's zone. `note`: what a change of the clocks does to it. `skipped`: it makes no job. */
export interface ScheduleTime {
  at: string;
  local: string;
  note: string | null;
  skipped: boolean;
}

export interface Preview {
  words: string;
  times: ScheduleTime[];
}

/** What became of a nominal time: a job, or a reason why there is none. `status`: of the job; null: the job is deleted. */
export interface Fire {
  fire_at: string;
  kind: "schedule" | "run_now" | "backfill";
  job_id: string | null;
  reason: "live" | "missed" | "paused" | "disabled" | "invalid" | null;
  status: Status | null;
}

/** `at`: when it was decided. */
export interface PastFire extends Fire {
  at: string;
  detail: string | null;
}

export interface BackfillTime {
  fire_at: string;
  job_id: string | null;
  new: boolean;
}

export interface Schedule {
  id: string;
  name: string;
  scope: string | null;
  scope_id: string | null;
  topic: string;
  version: number | null;
  payload: Record<string, Json>;
  when: CronWhen | EveryWhen;
  options: { priority: number | null; max_retries: number | null; timeout: number | null; tags: string[] | null; key: string | null }; // null: the topic's
  start: string | null;
  end: string | null;
  jitter: number; // seconds
  missed: "last" | "skip" | "all";
  most: number;
  within: number | null;
  if_live: "allow" | "reject" | "queue" | "replace";
  description: string | null;
  revision: number;
  owner: string | null; // the module whose code declares it
  absent: boolean; // the code declares it no more
  paused_at: string | null;
  resumed_at: string | null;
  paused_by: string | null;
  pause_reason: string | null;
  upto: string;
  next_run_at: string | null;
  last_run_at: string | null;
  last_job_id: string | null;
  created: string;
  updated: string;
  state: "active" | "paused" | "over";
  source: "api" | "code";
  words: string;
  next_times: ScheduleTime[];
  recent: Fire[];
  redacted: boolean; // parts of the payload are hidden
}

export interface JobEvent {
  seq: number;
  at: string;
  event: string;
  status: Status | null;
  version: number;
  by: string | null;
  data: Record<string, Json>;
}

export interface LogLine {
  at: string;
  version: number;
  level: string;
  text: string;
}

export interface Worker {
  name: string;
  host: string;
  pid: number;
  topics: string[];
  concurrency: number;
  running: number;
  lease: number;
  stopping: boolean;
  rowlock: string;
  started: string | null;
  seen: string | null;
  live: boolean;
  holds: string[];
}

export interface Percentiles {
  p50: number | null;
  p95: number | null;
  p99: number | null;
}

export interface Point {
  at: string;
  enqueued: number;
  completed: number;
  failed: number;
  expired: number;
  cancelled: number;
  retried: number;
  lost: number;
  requeued: number;
  deleted: number;
  wait: Percentiles;
  run: Percentiles;
}

export interface Series {
  from: string;
  until: string;
  step: number;
  points: Point[];
}

export interface Failure {
  fingerprint: string;
  topic: string;
  type: string;
  frame: string;
  title: string;
  count: number;
  first: string;
  last: string;
  trend: number[];
  sample: string;
}

export interface Bulk {
  id: string;
  action: string;
  status: string;
  arguments: Record<string, Json>;
  filter: Record<string, Json>;
  reason: string | null;
  by: string;
  created: string;
  started_at: string | null;
  finished_at: string | null;
  total: number;
  done: number;
  skipped: number;
  left: number;
  skips: Record<string, number>;
  unfit: Record<string, { count: number; more: boolean }>;
  rate: number | null;
  sample?: Job[];
}

export interface Audit {
  id: number;
  at: string;
  by: string;
  action: string;
  job_id: string | null;
  topic: string | null;
  reason: string | null;
  data: Record<string, Json>;
}

export interface Token {
  id: string;
  name: string;
  scopes: string[];
  topics: string[] | null;
  job: string | null;
  created: string;
  created_by: string;
  expires_at: string | null;
  last_used: string | null;
  token?: string;
}

export interface Session {
  id: string;
  email: string;
  created: string;
  seen: string;
  ends: string;
  client: string;
}

export interface Settings {
  http_enabled: boolean;
  enqueue_rule: string;
  view_rule: string;
  cancel_rule: string;
  manage_rule: string;
  allowed_topics: string[];
  worker_pool_size: number;
  poll_interval: number;
  lock_duration: number;
  public_url: string;
  redact?: string[];
  given: string[];
}

export interface Me {
  kind: string;
  id: string;
  name: string;
  scopes: string[];
  can: string[]; // for all jobs, or for some by a rule
  read_only: boolean;
  set_up?: boolean; // only while no user is logged in
}
