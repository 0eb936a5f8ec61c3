// The shapes of the HTTP API. `make format` writes this file from docs/openapi.json. Do not edit it.

/** RFC 3339, in UTC. */
export type Time = string;

/** `looked_back_to`: how far back a search has looked; `next` continues there. */
export interface AuditAnswer {
  items: AuditBody[];
  looked_back_to: Time | null;
  next: string | null;
}

export interface AuditBody {
  action: string;
  at: Time;
  bulk: string | null;
  by: string;
  data: Record<string, unknown>;
  id: number;
  job_id: string | null;
  reason: string | null;
  topic: string | null;
}

export interface BackfillAnswer {
  items: BackfillItem[];
}

/** Both ends belong to it. `dry_run` false: make the jobs. */
export interface BackfillBody {
  /** Default: true */
  dry_run?: boolean;
  end: Time;
  priority?: number | "explicit" | "discovered" | "backfill" | null;
  reason?: string | null;
  start: Time;
}

/** `job_id`: of the job that the time has. `new`: this request has made it; in a dry run: it would make one. */
export interface BackfillItem {
  fire_at: Time;
  job_id: string | null;
  new: boolean;
}

export interface BatchAnswer {
  items: BatchItem[];
}

export interface BatchBody {
  jobs: EnqueueBody[];
}

/**
 * As for a single job. If `id` is null, a job that the caller may not see took the key at the same moment, and this
 * entry was not enqueued.
 */
export interface BatchItem {
  created: Time | null;
  existing: boolean;
  id: string | null;
  run_at: Time | null;
  status: string | null;
  topic: string;
}

/** The server can't keep up: it last read these jobs `since` seconds ago. The next `jobs` ends this. */
export interface Behind {
  since: number;
}

/** `node`: the name or the id of a job: only this job and those that wait for it. */
export interface BranchBody {
  node?: string | null;
  reason?: string | null;
}

export interface BulkAnswer {
  items: BulkInfo[];
  next: string | null;
}

/**
 * `filter`: by the names of the list's parameters. `everything`: required if there is no filter. `priority` is for
 * reprioritise, `run_at` or `delay` (seconds from the start) for reschedule. `dry_run`: only prepare; start it later.
 */
export interface BulkBody {
  action: "requeue" | "cancel" | "delete" | "reprioritise" | "reschedule";
  delay?: number;
  /** Default: true */
  dry_run?: boolean;
  /** Default: false */
  everything?: boolean;
  /** Default: { created_from: null; created_until: null; error: null; fingerprint: null; finished_from: null; finished_until: null; flow_id: null; id: []; key: []; payload: []; run_at_from: null; run_at_until: null; scope: null; scope_id: null; status: []; tag: []; topic: [] } */
  filter?: JobFilter;
  priority?: number | "explicit" | "discovered" | "backfill";
  reason?: string | null;
  run_at?: Time;
}

/**
 * A bulk action. Of `total` jobs, so many are `done`, `skipped` (`skips` says why) and `left`. `filter`: by the
 * names of the request, in snake_case. `unfit`: jobs that meet the filter, but whose status does not allow the action.
 * `rate`: jobs a second. `sample`: its first jobs, only for a single bulk action.
 */
export interface BulkInfo {
  action: string;
  arguments: Record<string, unknown>;
  by: string;
  created: Time;
  done: number;
  filter: Record<string, unknown>;
  finished_at: Time | null;
  id: string;
  left: number;
  moved_at: Time | null;
  rate: number | null;
  reason: string | null;
  sample?: JobBody[];
  skipped: number;
  skips: Record<string, number>;
  started_at: Time | null;
  started_by: string | null;
  status: string;
  total: number;
  unfit: Record<string, Unfit>;
}

/**
 * One job of it: its status at the time of the preview, and what became of it; None: nothing yet. `holder`: the
 * live job that has its key.
 */
export interface BulkItem {
  holder?: string | null;
  job_id: string;
  outcome?: "changed" | "done" | "gone" | "key_taken" | "locked" | null;
  status: Status;
}

/** `outcome` null: this job is not done yet. `holder`: the live job that has its key. */
export interface BulkItemsAnswer {
  items: BulkItem[];
  next: string | null;
}

/** `url`: unforgeable, and the same after a replay. A caller that has it can answer once. */
export interface CallbackAnswer {
  url: string;
}

/**
 * Ask for an address by which the outside sends a signal. `n`: the n-th address for this signal. `timeout`: seconds
 * until it ends. `schema`: JSON Schema of the data.
 */
export interface CallbackAsked {
  id: string;
  /** Default: 1 */
  n?: number;
  position: number;
  schema?: Record<string, unknown> | null;
  signal: string;
  timeout?: number | null;
  version: number;
  worker: string;
}

/**
 * `state`: wanted (the job waits for the answer, or will); answered; cancelled (the job was cancelled: stop, and
 * acknowledge); ended (the address is too old, or the job has ended without the answer).
 */
export interface CallbackBody {
  state: "wanted" | "answered" | "cancelled" | "ended";
}

/**
 * What a cancel may do. `supported` False: a job can't be cancelled once a run has started. `grace`: seconds that a
 * handler has to end; None: as the worker is set. `mode` "kill": then its child process is killed (process handlers
 * only).
 */
export interface Cancel {
  grace?: number | null;
  /** Default: "cooperative" */
  mode?: "cooperative" | "kill";
  /** Default: true */
  supported?: boolean;
}

/** The whole answer for a caller who may cancel the job, but not see it. */
export interface CancelAnswer {
  id: string;
}

export interface CancelAsked {
  grace?: number | null;
  /** Default: "cooperative" */
  mode?: "cooperative" | "kill";
  /** Default: true */
  supported?: boolean;
}

/**
 * What became of a step. `name` and `n` identify it: the n-th call of this name. `position`: its place among all
 * steps of the job, from 1. `function`: what runs under this name; default: the name. `state`: running (it starts),
 * succeeded (with its `result`), failed (for good, with its `error`), pending (it failed and is tried again: then
 * `retry-step`), cancelled. `retries`: of the step itself. `ran`: seconds since it began. `percent`: the job's
 * progress from now on.
 */
export interface CheckpointBody {
  /** Default: true */
  cancelable?: boolean;
  error?: string | null;
  function?: string | null;
  id: string;
  /** Default: 1 */
  n?: number;
  name: string;
  percent?: number | null;
  position: number;
  /** Default: 0.0 */
  ran?: number;
  result?: unknown;
  /** Default: 0 */
  retries?: number;
  state: "cancelled" | "failed" | "pending" | "running" | "succeeded";
  version: number;
  worker: string;
}

export interface ClaimAnswer {
  items: RunBody[];
}

/**
 * `worker`: a name that the worker chooses anew at each start. `topics`: what it runs. `mail` is version 0 of the
 * topic's template, `mail@1` version 1; a worker gets no other versions than those that it names. `lease`: seconds
 * until other workers may take its jobs, unless it renews the lease; default: the setting lock_duration. `wait`:
 * seconds to wait for work. `runs`: all runs that the worker knows of. Runs that it holds but does not name are
 * returned once more: their answer was lost.
 */
export interface ClaimBody {
  lease?: number | null;
  /** Default: 1 */
  limit?: number;
  runs?: RunName[] | null;
  topics: string[];
  /** Default: 0.0 */
  wait?: number;
  worker: string;
}

/** What is different in the copy. The key is not copied: the original may still hold it. */
export interface CloneBody {
  delay?: number | null;
  key?: string | null;
  max_retries?: number | null;
  payload?: Record<string, unknown> | null;
  priority?: number | "explicit" | "discovered" | "backfill" | null;
  run_at?: Time | null;
  tags?: string[] | null;
  timeout?: number | null;
}

/** `ran`: seconds that the handler took; default: since the claim. */
export interface CompleteBody {
  id: string;
  ran?: number | null;
  result?: unknown;
  version: number;
  worker: string;
}

/**
 * At most `max` jobs run at once, in all workers together. `by`: for each value of this field. `name`: all topics
 * with a limit of this name share it.
 */
export interface Concurrency {
  by?: string | null;
  kind: "concurrency";
  max: number;
  name?: string | null;
}

/**
 * At most `max` jobs run at once, in all workers together. `by`: for each value of this field of a job: scope_id,
 * scope, key, or a field of the payload, such as payload.tenant. `name`: the one in the path, if it is given.
 */
export interface ConcurrencyAsked {
  by?: string | null;
  kind: "concurrency";
  max: number;
  name?: string | null;
}

/**
 * The job runs `seconds` after the last enqueue with its key, but not later than `at_most` seconds after the first
 * one.
 */
export interface DebounceAsked {
  at_most?: number | null;
  seconds: number;
}

/**
 * The job `child` waits for the job `parent`. `ended`: how the parent has ended; null: it has not. `call`: the
 * child has started the parent, by its n-th ctx.gather.
 */
export interface EdgeBody {
  call: number | null;
  child: string;
  ended: string | null;
  if_failed: string;
  parent: string;
  when: string | null;
}

/** How one run has ended. `end`: the name of the single call; the other fields are those of that call. */
export interface EndBody {
  delay?: number | null;
  end: "complete" | "fail" | "give-up" | "release" | "retry-step" | "snooze";
  error?: string | null;
  /** Default: false */
  final?: boolean;
  id: string;
  ran?: number | null;
  reason?: string | null;
  result?: unknown;
  seconds?: number | null;
  step?: string | null;
  traceback?: string | null;
  type?: string | null;
  version: number;
}

/**
 * `status`: that of the job after the run; lost: the worker does not hold the run (any more), and nothing was
 * stored.
 */
export interface EndedBody {
  id: string;
  status: "completed" | "pending" | "failed" | "cancelled" | "lost";
  version: number;
}

export interface EnqueueBody {
  debounce?: DebounceAsked | null;
  delay?: number | null;
  expires_at?: Time | null;
  id?: string | null;
  if_live?: "queue" | "reject" | "replace" | null;
  key?: string | null;
  max_retries?: number | null;
  payload?: Record<string, unknown>;
  priority?: number | "explicit" | "discovered" | "backfill" | null;
  run_at?: Time | null;
  scope?: string | null;
  scope_id?: string | null;
  tags?: string[] | null;
  throttle?: number | null;
  timeout?: number | null;
  topic: string;
  version?: number | null;
}

/**
 * The new job; or, if `existing`, the job that already had the same key or id. With debounce, that job carries the
 * payload now. With throttle, it is the last one that was made with the key.
 */
export interface EnqueuedBody {
  created: Time;
  /** Default: false */
  existing?: boolean;
  id: string;
  run_at: Time;
  status: string;
  topic: string;
}

/** One fact in a job's history. `data` holds what else is known: error, delay, reason, worker, … */
export interface Event {
  at: string;
  by: string | null;
  data: Record<string, unknown>;
  event: string;
  job_id: string;
  seq: number;
  status: Status | null;
  version: number;
}

export interface EventsAnswer {
  items: Event[];
  next: string | null;
}

/**
 * `rule`: the text of the action's own rule. `parts`: each comparison of all rules that can allow the action, with
 * the values of both sides; `holds` null: it depends on the job.
 */
export interface ExplainAnswer {
  allowed: boolean | null;
  parts: ExplainedPart[];
  rule: string;
  why: string;
}

/**
 * May a caller with these claims do this? `rule`: judge this rule instead of the saved ones. `job`: an id, or the
 * columns of a job that does not exist yet.
 */
export interface ExplainBody {
  action: "enqueue" | "view" | "cancel" | "manage";
  claims?: Record<string, unknown>;
  job?: string | Record<string, unknown> | null;
  rule?: string | null;
}

/** `rule`: the setting that has this comparison, or "rule" for the rule in the request. */
export interface ExplainedPart {
  holds: boolean | null;
  left: unknown;
  right: unknown;
  rule: string;
  text: string;
}

/**
 * `type` and `traceback`: in the form of the worker's language. `final`: no retry. `delay`: seconds until the
 * retry, if this server has no retry policy for the topic.
 */
export interface FailBody {
  delay?: number | null;
  error: string;
  /** Default: false */
  final?: boolean;
  id: string;
  ran?: number | null;
  traceback?: string | null;
  type?: string | null;
  version: number;
  worker: string;
}

/** `capped`: there are more dead letters, which were not read. */
export interface FailureAnswer {
  capped: boolean;
  count: number;
  fingerprint: string;
  first: Time;
  frame: string;
  last: Time;
  sample: string;
  title: string;
  topic: string;
  trend: number[];
  type: string;
}

/**
 * Dead letters of one topic with the same type of error at the same place in the application's own code. `sample`:
 * the id of the newest, whose `title` this is. `first` and `last`: when they ended. `trend`: counts by hour or day;
 * the last one is not over yet.
 */
export interface FailureBody {
  count: number;
  fingerprint: string;
  first: Time;
  frame: string;
  last: Time;
  sample: string;
  title: string;
  topic: string;
  trend: number[];
  type: string;
}

/**
 * The largest group first. A group that has grown since an earlier page may be missing, or come twice. `capped`:
 * only the newest dead letters were read. `ungrouped`: how many have no fingerprint yet; a running worker adds it.
 */
export interface FailuresAnswer {
  capped: boolean;
  items: FailureBody[];
  next: string | null;
  ungrouped: number;
}

/** The values of a field take turns. `weights`: how many jobs a value starts in its turn; 1 if it is not named. */
export interface Fair {
  by: string;
  kind: "fair";
  weights?: Record<string, number>;
}

/** The values of a field take turns. `weights`: how many jobs a value starts in its turn; 1 if it is not named. */
export interface FairAsked {
  by: string;
  kind: "fair";
  weights?: Record<string, number>;
}

/**
 * What became of a nominal time, `fire_at`, and when that was decided, `at`. It made the job `job_id`, or none for
 * a `reason`, which `detail` explains. `status`: that of the job now; null: there is none, or it was pruned.
 */
export interface FiredBody {
  at: Time;
  detail: string | null;
  fire_at: Time;
  job_id: string | null;
  kind: "backfill" | "run_now" | "schedule";
  reason: "disabled" | "invalid" | "live" | "missed" | "paused" | null;
  status: "pending" | "blocked" | "processing" | "waiting" | "cancel_requested" | "completed" | "failed" | "expired" | "cancelled" | null;
}

/**
 * A flow. `status`: held means that nothing runs, and a person must decide. `progress`: percent of its jobs that
 * have ended. `jobs`: how many it has had; those that were pruned count as ended. `counts`: jobs that are there, by
 * status. `held`: jobs that wait for a person.
 */
export interface FlowBody {
  by: string | null;
  counts: Record<string, number>;
  created: Time;
  held: number;
  id: string;
  jobs: number;
  name: string;
  progress: number;
  status: "running" | "held" | "completed" | "failed" | "cancelled";
}

/** `changed`: how many jobs. */
export interface FlowChanged {
  changed: number;
}

/**
 * A new flow. Its jobs may stand in any order. `id`: your own id of the flow; if it is sent twice, there is one
 * flow.
 */
export interface FlowCreateBody {
  id?: string | null;
  jobs: FlowJob[];
  name: string;
}

/** `jobs`: by their names in the flow. */
export interface FlowCreated {
  id: string;
  jobs: Record<string, EnqueuedBody>;
  name: string;
}

/**
 * A job of a new flow, with all options of a job. `name`: in `after`, in conditions and on the page; default: from
 * its topic. `after`: the jobs that it waits for: names of jobs of this flow, or ids of other jobs. `if_failed`: what
 * happens if one of them failed, expired or was cancelled. `when`: a condition on how they end, instead of if_failed:
 * `pay.result.amount > 100`. If it is false, the job is cancelled as not taken. `{"$result": "pay.amount"}` in the
 * payload stands for a part of the result of the job `pay`, and implies `after`.
 */
export interface FlowJob {
  after?: string[];
  debounce?: DebounceAsked | null;
  delay?: number | null;
  expires_at?: Time | null;
  id?: string | null;
  /** Default: "cancel" */
  if_failed?: "cancel" | "hold" | "run";
  if_live?: "queue" | "reject" | "replace" | null;
  key?: string | null;
  max_retries?: number | null;
  name?: string | null;
  payload?: Record<string, unknown>;
  priority?: number | "explicit" | "discovered" | "backfill" | null;
  run_at?: Time | null;
  scope?: string | null;
  scope_id?: string | null;
  tags?: string[] | null;
  throttle?: number | null;
  timeout?: number | null;
  topic: string;
  version?: number | null;
  when?: string | null;
}

/** Newest first. */
export interface FlowsAnswer {
  items: FlowBody[];
  next: string | null;
}

export interface GoodbyeBody {
  worker: string;
}

/** A flow, its jobs and what they wait for. Parents come before their children. */
export interface GraphAnswer {
  edges: EdgeBody[];
  flow: FlowBody;
  nodes: NodeBody[];
}

export interface HeartbeatAnswer {
  items: HoldBody[];
}

export interface HeartbeatBody {
  lease?: number | null;
  runs: RunName[];
  worker: string;
}

export interface HistoryAnswer {
  items: FiredBody[];
  next: string | null;
}

/**
 * `hold`: kept; cancel (the worker holds the run, but must stop it); timeout (the worker holds the run, but its
 * time is over); lost (another worker holds the job, or it has ended).
 */
export interface HoldBody {
  hold: "kept" | "cancel" | "timeout" | "lost";
  id: string;
  version: number;
}

/** A job that a worker holds, `since` its claim. */
export interface HolderBody {
  id: string;
  since: Time | null;
  status: "processing" | "cancel_requested";
  topic: string;
  worker: string | null;
}

/**
 * A job. `locked_until`, `last_error` and `redacted` are left out if they are empty. `redacted` names the fields in
 * which something is hidden. `can`: what the caller may do to the job, cancel or manage, whatever its status allows.
 * `steps`: if the job has any. `wait`: what it waits for, in detail. All three are only in GET /api/jobs/{id}.
 * `waits_for`: null, "sleep" or "signal:NAME".
 */
export interface JobBody {
  can?: string[];
  cancel_reason: string | null;
  cancel_requested_at: Time | null;
  claimed_at: Time | null;
  crashes: number;
  created: Time;
  expires_at: Time | null;
  finished_at: Time | null;
  fire_at: Time | null;
  flow_id: string | null;
  id: string;
  if_live: string | null;
  key: string | null;
  last_error?: string;
  locked_by: string | null;
  locked_until?: Time;
  max_retries: number;
  message: string | null;
  payload: Record<string, unknown>;
  priority: number;
  progress: number;
  redacted?: string[];
  result: unknown;
  retries: number;
  run_at: Time;
  schedule_id: string | null;
  scope: string | null;
  scope_id: string | null;
  stage: string | null;
  started_at: Time | null;
  status: string;
  step: string | null;
  steps?: StepBody[];
  tags: string[];
  template_version: number;
  timeout: number;
  topic: string;
  trace: string | null;
  updated: Time;
  version: number;
  wait?: WaitBody;
  waits_for: string | null;
}

/** `payload` is path=value with a JSON value, user.id=7; `error` is a part of last_error. */
export interface JobFilter {
  created_from?: Time | null;
  created_until?: Time | null;
  error?: string | null;
  fingerprint?: string | null;
  finished_from?: Time | null;
  finished_until?: Time | null;
  flow_id?: string | null;
  id?: string[];
  key?: string[];
  payload?: string[];
  run_at_from?: Time | null;
  run_at_until?: Time | null;
  scope?: string | null;
  scope_id?: string | null;
  status?: ("pending" | "blocked" | "processing" | "waiting" | "cancel_requested" | "completed" | "failed" | "expired" | "cancelled")[];
  tag?: string[];
  topic?: string[];
}

/**
 * `seconds`: how long the token is valid. `cancel`: it may also cancel the job. `manage`: it may also cancel,
 * requeue, update and delete the job; the caller needs the scope manage for that, a rule is not enough.
 */
export interface JobTokenBody {
  /** Default: false */
  cancel?: boolean;
  /** Default: false */
  manage?: boolean;
  /** Default: 3600.0 */
  seconds?: number;
}

/** The limits of a topic or of a name. `holders`: jobs that count for them now, at most 20, the newest first. */
export interface LimitAnswer {
  holders: HolderBody[];
  items: LimitBody[];
}

/**
 * A limit and what is used of it now. `source`: code, or put at run time. `code`: the limit in the code that a put
 * one takes the place of. `values`: what was put for certain values. `topics`: those that share it. `used_by`: at most
 * 100 values, those that use most of it first. `used_up`: how many of them can start no job now. `waiting`: jobs of
 * these topics that are due; with `waiting_capped`, at least so many.
 */
export interface LimitBody {
  code: Concurrency | Rate | Fair | null;
  kind: "concurrency" | "fair" | "rate";
  limit: Concurrency | Rate | Fair;
  name: string;
  source: "code" | "put";
  topics: string[];
  used_by: UsedByBody[];
  used_up: number;
  values: ValueLimit[];
  waiting: number;
  waiting_capped: boolean;
}

/**
 * A limit that holds from the next claim on, instead of the one in the code with the same kind and field. `value`:
 * only for this value of the field `by`.
 */
export interface LimitPutBody {
  limit: ConcurrencyAsked | RateAsked | FairAsked;
  reason?: string | null;
  value?: string | null;
}

/**
 * By name. `waiting`: jobs that are due, of topics that have a limit of which nothing is left, be it for one value;
 * with `waiting_capped`, at least so many.
 */
export interface LimitsAnswer {
  items: LimitBody[];
  waiting: number;
  waiting_capped: boolean;
}

/** `cleared`: how many limits that were put. */
export interface LimitsCleared {
  cleared: number;
}

/**
 * Where a live job stands in the line of its key; `line` false: in none. `head`: the job whose turn it is.
 * `before`: the job right before this one. Both are null if there is none, or the caller may not see it. `ahead` and
 * `behind`: how many jobs; with `ahead_capped` or `behind_capped`, at least so many.
 */
export interface LineAnswer {
  ahead?: number;
  ahead_capped?: boolean;
  before?: string | null;
  behind?: number;
  behind_capped?: boolean;
  head?: string | null;
  line: boolean;
}

export interface LineBody {
  /** Default: "info" */
  level?: "debug" | "error" | "info" | "warning";
  text: string;
}

/**
 * Newest first. `next`: the cursor of the next page; null: this is the last page. `partial`: the search stopped at
 * its bound before the page was full. It has not looked at jobs that were created before `looked_back_to`; `next`
 * continues there. `total`: how many jobs meet the filter; with `total_capped`, at least so many.
 */
export interface ListAnswer {
  items: JobBody[];
  limit: number;
  looked_back_to: Time | null;
  next: string | null;
  offset: number;
  partial: boolean;
  total: number;
  total_capped: boolean;
}

/** The state of a job, in short. */
export interface LiveJob {
  created: Time;
  finished_at: Time | null;
  id: string;
  max_retries: number;
  message: string | null;
  priority: number;
  progress: number;
  retries: number;
  run_at: Time;
  stage: string | null;
  started_at: Time | null;
  status: string;
  step: string | null;
  topic: string;
  version: number;
  waits_for: string | null;
}

/**
 * Jobs as they are now. `reset`: these are all; forget earlier ones. `gone`: jobs that are not reported any more.
 * They are no longer among the newest and have ended (then `items` has their end), were deleted, or may no longer be
 * seen.
 */
export interface LiveJobs {
  gone: string[];
  items: LiveJob[];
  /** Default: false */
  reset?: boolean;
}

export interface LogBody {
  id: string;
  lines: LineBody[];
  version: number;
  worker: string;
}

/** A line that a handler has logged. `version` says in which run. */
export interface LogLine {
  at: string;
  level: string;
  text: string;
  version: number;
}

export interface LoginBody {
  email: string;
  password: string;
}

export interface LogsAnswer {
  dropped: number;
  items: LogLine[];
  next: string | null;
}

/**
 * `can`: what the caller may do to all jobs, or by a rule to some: read, enqueue, cancel, manage. `set_up`: the
 * first superuser exists; only in the page's own request, before a login.
 */
export interface MeBody {
  can: string[];
  id: string;
  kind: string;
  name: string;
  read_only: boolean;
  scopes: string[];
  set_up?: boolean;
  topics: string[] | null;
}

/**
 * A job of a flow. If it was deleted or pruned, `topic`, `progress` and the times are null, and `status` is the
 * last that its children know of. `held`: it waits for a person. `taken` false: no true condition has led to it.
 * `outside`: it is not part of the flow, which only waits for it. `call`: a job of the flow has started it, by its
 * n-th ctx.gather.
 */
export interface NodeBody {
  call: number | null;
  created: Time | null;
  finished_at: Time | null;
  held: boolean;
  id: string;
  name: string;
  outside: boolean;
  progress: number | null;
  started_at: Time | null;
  status: "pending" | "blocked" | "processing" | "waiting" | "cancel_requested" | "completed" | "failed" | "expired" | "cancelled" | null;
  taken: boolean;
  topic: string | null;
}

/** What the jobs get; null: the default of their topic. */
export interface OptionsBody {
  key?: string | null;
  max_retries?: number | null;
  priority?: number | null;
  tags?: string[] | null;
  timeout?: number | null;
}

export interface PauseBody {
  reason?: string | null;
  until?: Time | null;
}

export interface PauseInfo {
  at: Time;
  by: string;
  reason: string | null;
  until: Time | null;
}

export interface PausedAnswer {
  paused: boolean;
  topic: string;
}

/** Seconds, off by less than 5 %; None: there was nothing to measure. */
export interface Percentiles {
  p50: number | null;
  p95: number | null;
  p99: number | null;
}

/**
 * What happened in the `step` seconds from `at` on. `retried`: runs that failed or crashed and were put back;
 * `lost`: runs that were taken from a worker that went silent; `requeued`: jobs that had ended and were put back;
 * `deleted`: pending ones that were deleted. So the backlog has grown by enqueued + requeued - completed - failed -
 * expired - cancelled - deleted. `wait` (from when the job was due until its start) and
 * `run` are of runs that ended in that time, by completing or failing.
 */
export interface Point {
  at: string;
  cancelled: number;
  completed: number;
  deleted: number;
  enqueued: number;
  expired: number;
  failed: number;
  lost: number;
  requeued: number;
  retried: number;
  run: Percentiles;
  wait: Percentiles;
}

export interface PreviewAnswer {
  times: TimeBody[];
  words: string;
}

/** `after`: show the times after this one; default: now. */
export interface PreviewBody {
  after?: Time | null;
  end?: Time | null;
  /** Default: 5 */
  limit?: number;
  start?: Time | null;
  when: WhenAsked;
}

/** An error. `code` is stable, for programs; `field` names the part of the request that is wrong. */
export interface ProblemBody {
  code: "admin_is_unbounded" | "backwards" | "bad_arguments" | "bad_characters" | "bad_claim" | "bad_cursor" | "bad_data" | "bad_field" | "bad_fields" | "bad_fingerprint" | "bad_id" | "bad_json" | "bad_lane" | "bad_length" | "bad_link" | "bad_name" | "bad_path" | "bad_pattern" | "bad_payload" | "bad_result" | "bad_rule" | "bad_schema" | "bad_time" | "bad_url" | "bad_value" | "before_start" | "blank_key" | "both_given" | "busy" | "callback_answered" | "callback_cancelled" | "callback_ended" | "callback_late" | "cancel_unsupported" | "cross_origin" | "csrf" | "cycle" | "duplicate_key" | "empty" | "encoded" | "everything" | "flow_key_taken" | "flow_not_found" | "given_twice" | "has_key" | "header_twice" | "headers_too_large" | "http_disabled" | "id_taken" | "in_flow" | "in_the_future" | "insecure" | "integer_range" | "internal" | "is_an_id" | "key_not_text" | "key_taken" | "limit_not_found" | "lone_surrogate" | "lost" | "missing" | "naive_time" | "needs_after" | "needs_by" | "needs_cancel" | "needs_key" | "never" | "no_callback" | "no_limit" | "no_such_path" | "not_a_bool" | "not_a_filter" | "not_a_job" | "not_a_list" | "not_a_number" | "not_a_pair" | "not_a_policy" | "not_a_time" | "not_allowed" | "not_an_email" | "not_an_integer" | "not_an_object" | "not_authenticated" | "not_cancelled" | "not_finite" | "not_found" | "not_here" | "not_json" | "not_migrated" | "not_schedulable" | "not_text" | "not_utf8" | "not_wanted" | "nothing_asked" | "nothing_given" | "nul" | "once_taken" | "other_field" | "other_name" | "out_of_range" | "outcome_unknown" | "past" | "query_too_long" | "read_only" | "redacted" | "schedule_changed" | "schedule_exists" | "schedule_not_found" | "signal_known" | "signals_full" | "steps_too_large" | "store_busy" | "store_full" | "store_unavailable" | "streams_taken" | "taken" | "template_disabled" | "template_exists" | "template_frozen" | "template_not_found" | "template_unreadable" | "time_range" | "too_broad" | "too_common" | "too_deep" | "too_large" | "too_long" | "too_many" | "too_many_calls" | "too_many_logins" | "too_many_parameters" | "too_many_steps" | "too_many_streams" | "too_many_tokens" | "too_many_waiting" | "too_slow" | "twice" | "unknown_action" | "unknown_blank" | "unknown_field" | "unknown_name" | "unknown_node" | "unknown_option" | "unknown_outcome" | "unknown_parent" | "unknown_scope" | "unknown_setting" | "unknown_status" | "unknown_step" | "unknown_version" | "unknown_zone" | "unreadable" | "version_passed" | "with_debounce" | "with_if_live" | "with_once" | "wrong_audience" | "wrong_content_type" | "wrong_host" | "wrong_login" | "wrong_method" | "wrong_state";
  detail: string;
  field?: string;
  request_id: string;
  status: number;
  title: string;
  type: string;
}

/** Fields that are left out stay as they are. */
export interface ProgressBody {
  id: string;
  message?: string | null;
  percent?: number | null;
  stage?: string | null;
  version: number;
  worker: string;
}

/**
 * At most `max` jobs start in any `per` seconds, retries and resumed jobs included. `burst`: at most so many of
 * them at once; then they are spread evenly. `by` and `name`: as for Concurrency.
 */
export interface Rate {
  burst?: number | null;
  by?: string | null;
  kind: "rate";
  max: number;
  name?: string | null;
  per: number;
}

/**
 * At most `max` jobs start in any `per` seconds. `burst`: at most so many of them at once; then they are spread
 * evenly. `by` and `name`: as for concurrency.
 */
export interface RateAsked {
  burst?: number | null;
  by?: string | null;
  kind: "rate";
  max: number;
  name?: string | null;
  per: number;
}

export interface Ready {
  problem?: string | null;
  status: string;
}

export interface ReasonBody {
  reason?: string | null;
}

export interface RecentBody {
  fire_at: Time;
  job_id: string | null;
  kind: "backfill" | "run_now" | "schedule";
  reason: "disabled" | "invalid" | "live" | "missed" | "paused" | null;
  status: "pending" | "blocked" | "processing" | "waiting" | "cancel_requested" | "completed" | "failed" | "expired" | "cancelled" | null;
}

export interface ReleaseBody {
  id: string;
  reason?: string | null;
  version: number;
  worker: string;
}

/** Fields that are left out stay as they are. */
export interface ReportBody {
  message?: string | null;
  percent?: number | null;
  stage?: string | null;
}

/**
 * What is different in its next run. `version`: requeue only if the job has not run again since. Results of steps
 * that have succeeded are kept, unless the payload changes. `from_step`: this step (`name`, or `name#2` for its second
 * call) and those behind it run again. `keep_steps` false: all steps run again.
 */
export interface RequeueBody {
  delay?: number;
  from_step?: string | null;
  /** Default: true */
  keep_steps?: boolean;
  payload?: Record<string, unknown>;
  priority?: number | "explicit" | "discovered" | "backfill";
  reason?: string | null;
  run_at?: Time;
  tags?: string[];
  version?: number | null;
}

/** End the run, and run the job again after `delay` seconds, because a step failed that has retries of its own. */
export interface RetryStepBody {
  delay: number;
  error: string;
  id: string;
  ran?: number | null;
  step: string;
  version: number;
  worker: string;
}

/** The job, its history and its log, with nothing hidden. */
export interface RevealAnswer {
  events: Event[];
  job: JobBody;
  logs: LogLine[];
}

/** `reason` stands in the audit. */
export interface RevealBody {
  reason: string;
}

export interface RunAsked {
  id: string;
  version: number;
  worker: string;
}

/**
 * A job to run; `id` and `version` name the run. `template_version`: the version of its topic's template. `step`:
 * the one that was marked last; null: no step is stored. `lease`: seconds until it must be renewed. `status`:
 * processing; or cancel_requested: the job was cancelled while it waited, and runs once more to undo what its steps
 * have done. Replay it, and stop where it waited.
 */
export interface RunBody {
  created: Time;
  id: string;
  key: string | null;
  lease: number;
  max_retries: number;
  payload: Record<string, unknown>;
  priority: number;
  retries: number;
  run_at: Time;
  scope: string | null;
  scope_id: string | null;
  status: "processing" | "cancel_requested";
  step: string | null;
  tags: string[];
  template_version: number;
  timeout: number;
  topic: string;
  trace: string | null;
  version: number;
}

/** One run of a job. `version`: from the claim. */
export interface RunName {
  id: string;
  version: number;
}

/**
 * A schedule. `words`: its times in words. `source`: code declares it (`owner` is the module), or it was put (api).
 * `absent`: the code does not declare it any more. `revision` grows with each change, not with fires. `upto`: every
 * time up to this one is decided. `next_run_at`: null if it never fires again; its state is then over. `next_times`:
 * the next five. `recent`: what became of the last 30 times, newest first. `redacted`: parts of the payload are
 * hidden.
 */
export interface ScheduleBody {
  absent: boolean;
  created: Time;
  description: string | null;
  end: Time | null;
  id: string;
  if_live: "allow" | "queue" | "reject" | "replace";
  jitter: number;
  last_job_id: string | null;
  last_run_at: Time | null;
  missed: "all" | "last" | "skip";
  most: number;
  name: string;
  next_run_at: Time | null;
  next_times: TimeBody[];
  options: OptionsBody;
  owner: string | null;
  pause_reason: string | null;
  paused_at: Time | null;
  paused_by: string | null;
  payload: Record<string, unknown>;
  recent: RecentBody[];
  redacted: boolean;
  resumed_at: Time | null;
  revision: number;
  scope: string | null;
  scope_id: string | null;
  source: "api" | "code";
  start: Time | null;
  state: "active" | "over" | "paused";
  topic: string;
  updated: Time;
  upto: Time;
  version: number | null;
  when: WhenBody;
  within: number | null;
  words: string;
  zone_data: string;
}

/**
 * The whole definition. What is left out gets its default; only `payload` stays as it is then, because parts of it
 * may be hidden. `revision`: that of the schedule which you have read; if it has another one by now, nothing is
 * changed. `name`, `scope` and `scope_id` can't change: leave them out, or give them as they are.
 */
export interface ScheduleChangeBody {
  description?: string | null;
  end?: Time | null;
  /** Default: "allow" */
  if_live?: "allow" | "queue" | "reject" | "replace";
  /** Default: 0.0 */
  jitter?: number;
  key?: string | null;
  max_retries?: number | null;
  /** Default: "last" */
  missed?: "all" | "last" | "skip";
  /** Default: 100 */
  most?: number;
  name?: string;
  payload?: Record<string, unknown>;
  priority?: number | "explicit" | "discovered" | "backfill" | null;
  reason?: string | null;
  revision: number;
  scope?: string | null;
  scope_id?: string | null;
  start?: Time | null;
  tags?: string[] | null;
  timeout?: number | null;
  topic: string;
  version?: number | null;
  when: WhenAsked;
  within?: number | null;
}

/**
 * A new schedule. Texts in the payload may have blanks: {{fire_at}}, {{fire_at_local}}, {{fire_date}},
 * {{schedule}}, {{scope}}, {{scope_id}}.
 */
export interface ScheduleCreateBody {
  description?: string | null;
  end?: Time | null;
  /** Default: "allow" */
  if_live?: "allow" | "queue" | "reject" | "replace";
  /** Default: 0.0 */
  jitter?: number;
  key?: string | null;
  max_retries?: number | null;
  /** Default: "last" */
  missed?: "all" | "last" | "skip";
  /** Default: 100 */
  most?: number;
  name: string;
  payload?: Record<string, unknown>;
  priority?: number | "explicit" | "discovered" | "backfill" | null;
  reason?: string | null;
  scope?: string | null;
  scope_id?: string | null;
  start?: Time | null;
  tags?: string[] | null;
  timeout?: number | null;
  topic: string;
  version?: number | null;
  when: WhenAsked;
  within?: number | null;
}

export interface SchedulesAnswer {
  items: ScheduleBody[];
  next: string | null;
}

/** `points`: one for every `step` seconds from `since` until `until`, the oldest first. */
export interface Series {
  from: string;
  points: Point[];
  step: number;
  topic: string | null;
  until: string;
}

export interface SessionBody {
  client: string;
  created: Time;
  email: string;
  ends: Time;
  id: string;
  seen: Time;
}

export interface SessionsAnswer {
  items: SessionBody[];
  next: string | null;
}

/** `given` names the settings that were set; the others have their defaults. */
export interface SettingsBody {
  allowed_topics: string[];
  cancel_rule: string;
  enqueue_rule: string;
  given: string[];
  http_enabled: boolean;
  lock_duration: number;
  manage_rule: string;
  poll_interval: number;
  public_url: string;
  redact: string[];
  view_rule: string;
  worker_pool_size: number;
}

/** Given settings change; null means the default. */
export interface SettingsPatch {
  allowed_topics?: string[] | null;
  cancel_rule?: string | null;
  enqueue_rule?: string | null;
  http_enabled?: boolean | null;
  lock_duration?: number | null;
  manage_rule?: string | null;
  poll_interval?: number | null;
  public_url?: string | null;
  reason?: string | null;
  redact?: string[] | null;
  view_rule?: string | null;
  worker_pool_size?: number | null;
}

/** In the order of the request. */
export interface SettleAnswer {
  items: EndedBody[];
}

export interface SettleBody {
  ends: EndBody[];
  worker: string;
}

/** `status`: that of the job after the run. */
export interface SettledBody {
  id: string;
  status: "completed" | "pending" | "failed" | "cancelled";
  version: number;
}

export interface SetupBody {
  email: string;
  password: string;
  token: string;
}

export interface SnoozeBody {
  id: string;
  seconds: number;
  version: number;
  worker: string;
}

export interface StatsAnswer {
  avg_execution_time: number | null;
  blocked: number;
  cancel_requested: number;
  cancelled: number;
  capped: string[];
  completed: number;
  expired: number;
  failed: number;
  oldest_wait: number | null;
  pending: number;
  processing: number;
  success_rate: number | null;
  topics: Record<string, StatsBody>;
  topics_capped: boolean;
  waiting: number;
}

/**
 * `capped` names the numbers that mean "at least". `success_rate`: completed jobs among completed, failed and
 * expired ones. `avg_execution_time`: milliseconds of completed runs. `oldest_wait`: seconds that the oldest ready job
 * has waited, since it was due or, if later, created.
 */
export interface StatsBody {
  avg_execution_time: number | null;
  blocked: number;
  cancel_requested: number;
  cancelled: number;
  capped: string[];
  completed: number;
  expired: number;
  failed: number;
  oldest_wait: number | null;
  pending: number;
  processing: number;
  success_rate: number | null;
  waiting: number;
}

export type Status = "blocked" | "cancel_requested" | "cancelled" | "completed" | "expired" | "failed" | "pending" | "processing" | "waiting";

export interface StepAsked {
  /** Default: true */
  cancelable?: boolean;
  name: string;
  timeout?: number | null;
  title?: string | null;
  /** Default: 1.0 */
  weight?: number;
}

/** A step as an earlier run, or this one, has stored it. `version`: the run that wrote it last. */
export interface StoredStepBody {
  cancelable: boolean;
  error: string | null;
  finished_at: Time | null;
  function: string;
  n: number;
  name: string;
  position: number;
  result: unknown;
  retries: number;
  started_at: Time;
  state: string;
  version: number;
}

/** `reason`: stopping (the server stops; connect again), or the code of the problem that a new request would get. */
export interface StreamEnd {
  reason: string;
}

/** `version`: only this one; default: all versions of the topic. */
export interface SwitchBody {
  reason?: string | null;
  version?: number | null;
}

/**
 * The definition of a topic in one version. `source`: a worker has published it (code), or a caller of this API has
 * created it (api). `ready`: jobs of this version that are due and wait for a worker; with `ready_capped`, at least so
 * many. `workers`: live workers that have this version.
 */
export interface TemplateBody {
  cancel: Cancel;
  debounce: Window | null;
  description: string | null;
  enabled: boolean;
  external: boolean;
  if_live: "queue" | "reject" | "replace" | null;
  key: string[] | null;
  limits: (Concurrency | Rate | Fair)[];
  max_retries: number;
  once: boolean;
  priority: number;
  ready: number;
  ready_capped: boolean;
  result: Record<string, unknown> | null;
  retention: number | null;
  retry: number[] | Record<string, unknown>;
  schedulable: boolean;
  schema: Record<string, unknown> | null;
  source: "api" | "code";
  steps: TemplatesStepBody[];
  throttle: number | null;
  timeout: number;
  title: string | null;
  topic: string;
  version: number;
  workers: string[];
}

/**
 * A definition. Names of other systems are understood as well: type, name, timeoutSeconds, repeatable, dedupeKeys,
 * concurrencyPolicy, retryPolicy, cancelPolicy.
 */
export interface TemplateCreateBody {
  cancel?: CancelAsked;
  debounce?: DebounceAsked | null;
  description?: string | null;
  enabled?: boolean;
  external?: boolean;
  if_live?: "queue" | "reject" | "replace" | null;
  key?: string[] | null;
  limits?: (Concurrency | Rate | Fair)[];
  max_retries?: number;
  once?: boolean;
  priority?: number | "explicit" | "discovered" | "backfill";
  reason?: string | null;
  result?: Record<string, unknown> | null;
  retention?: number | null;
  retry?: number[] | Record<string, unknown>;
  schedulable?: boolean;
  schema?: Record<string, unknown> | null;
  steps?: StepAsked[];
  throttle?: number | null;
  timeout?: number;
  title?: string | null;
  topic: string;
  version?: number;
}

/**
 * The fields to change. `schema` and `result`: JSON Schemas of payload and result. `retry`: a list of seconds,
 * {"quadratic": {"unit": 60}} or {"exponential": {…}}. `key`: the fields of the payload that make the job's key.
 * `external`: only workers of the worker protocol run its jobs.
 */
export interface TemplatePatch {
  cancel?: CancelAsked;
  debounce?: DebounceAsked | null;
  description?: string | null;
  enabled?: boolean;
  external?: boolean;
  if_live?: "queue" | "reject" | "replace" | null;
  key?: string[] | null;
  limits?: (Concurrency | Rate | Fair)[];
  max_retries?: number;
  once?: boolean;
  priority?: number | "explicit" | "discovered" | "backfill";
  reason?: string | null;
  result?: Record<string, unknown> | null;
  retention?: number | null;
  retry?: number[] | Record<string, unknown>;
  schedulable?: boolean;
  schema?: Record<string, unknown> | null;
  steps?: StepAsked[];
  throttle?: number | null;
  timeout?: number;
  title?: string | null;
}

export interface TemplatesAnswer {
  items: TemplateBody[];
  unreadable?: UnreadableBody[];
}

/**
 * A nominal time. `local`: on the clocks of its zone. `note`: what a change of the clocks does to it. `skipped`: it
 * does not exist, and makes no job.
 */
export interface TimeBody {
  at: Time;
  local: Time;
  note: string | null;
  skipped: boolean;
}

/** `token`: its text, only in the answer that creates it. */
export interface TokenBody {
  created: Time;
  created_by: string;
  enqueue: string[] | null;
  expires_at: Time | null;
  id: string;
  job: string | null;
  last_used: Time | null;
  name: string;
  scope: string | null;
  scope_id: string | null;
  scopes: string[];
  token?: string;
  topics: string[] | null;
}

/**
 * For a program: `name` and `scopes`, maybe `topics` and `expires_at`. For a browser: `job`, or `scope` and
 * `scope_id`, the jobs that it sees. It may `cancel` them, and `enqueue` jobs of these topics, which get its scope. It
 * is good for so many `seconds` (900 if it is left out). A browser's token needs no name.
 */
export interface TokenCreateBody {
  cancel?: boolean | null;
  enqueue?: string[] | null;
  expires_at?: Time | null;
  job?: string | null;
  name?: string | null;
  scope?: string | null;
  scope_id?: string | null;
  scopes?: ("read" | "enqueue" | "cancel" | "manage" | "templates" | "schedules" | "flows" | "limits" | "tokens" | "worker" | "admin")[] | null;
  seconds?: number | null;
  topics?: string[] | null;
}

export interface TokensAnswer {
  items: TokenBody[];
  next: string | null;
}

/** `workers`: how many live workers run this topic. */
export interface TopicBody {
  avg_execution_time: number | null;
  blocked: number;
  cancel_requested: number;
  cancelled: number;
  capped: string[];
  completed: number;
  expired: number;
  failed: number;
  oldest_wait: number | null;
  paused: PauseInfo | null;
  pending: number;
  processing: number;
  success_rate: number | null;
  topic: string;
  waiting: number;
  workers: number;
}

export interface TopicsAnswer {
  capped: boolean;
  items: TopicBody[];
  next: string | null;
}

/** How many jobs meet the filter, but have a status that forbids the action. `more`: there are at least so many. */
export interface Unfit {
  count: number;
  /** Default: false */
  more?: boolean;
}

/**
 * A record that should hold a template, and can't be read by this release. Jobs of its topic are refused, unless
 * the client has the task. Publish or create the template again.
 */
export interface UnreadableBody {
  problem: string;
  topic: string;
  version: number | null;
}

export interface Up {
  status: string;
}

export interface UpdateBody {
  delay?: number;
  payload?: Record<string, unknown>;
  priority?: number | "explicit" | "discovered" | "backfill";
  reason?: string | null;
  run_at?: Time;
  tags?: string[];
}

/**
 * What one value of the limit's field uses. `value` "": the limit is by no field, or these jobs have no value.
 * `max`: for this value; of fair turns, its weight. `free_at`: when a rate lets the next job start; null: now, or when
 * a job ends.
 */
export interface UsedByBody {
  free_at: Time | null;
  max: number;
  used: number;
  value: string;
}

export interface ValueLimit {
  limit: Concurrency | Rate | Fair;
  value: string;
}

/**
 * `state`: ended (the wait is over; `data` is the signal's, the default, or null after a sleep); timed_out (no
 * signal came in time); cancelled (the job was cancelled: undo, then give up); waiting (the run has ended here: report
 * nothing more about it; the job is claimed again when the wait is over).
 */
export interface WaitAnswer {
  data?: unknown;
  id: string;
  state: "ended" | "timed_out" | "cancelled" | "waiting";
  version: number;
}

/**
 * The handler waits. `signal`: for this signal; or `sleep`: for so many seconds; or `until`: until this time. `n`:
 * the n-th wait for this signal, or the n-th sleep. `position`: its place among all steps and waits of the job, from
 * 1. `timeout`: seconds until a wait for a signal ends by itself; default: never. `default`: the data that it has
 * then; without it, the answer is `timed_out`. `schema`: JSON Schema of the data, checked when a signal comes. `ran`:
 * seconds that the run took. `peek`: do not end the run if the wait is not over. The worker can then unwind the
 * handler first, and asks again without `peek`.
 */
export interface WaitAsked {
  id: string;
  /** Default: 1 */
  n?: number;
  /** Default: false */
  peek?: boolean;
  position: number;
  ran?: number | null;
  schema?: Record<string, unknown> | null;
  signal?: string | null;
  sleep?: number | null;
  timeout?: number | null;
  until?: Time | null;
  version: number;
  worker: string;
}

/**
 * What a job waits for. `kind`: sleep, or signal, which `signal` names. `until`: when the wait ends by itself;
 * null: never. `timeout`: its whole length in seconds. `schema`: of the data that it takes; null: any JSON.
 */
export interface WaitBody {
  kind: "sleep" | "signal";
  schema: Record<string, unknown> | null;
  signal: string | null;
  timeout: number | null;
  until: Time | null;
}

/** `cron` with `zone`, `gap` and `overlap`; or `every`, in seconds, with `anchor`. */
export interface WhenAsked {
  anchor?: Time | null;
  cron?: string | null;
  every?: number | null;
  gap?: "next" | "skip" | null;
  overlap?: "both" | "first" | "second" | null;
  zone?: string | null;
}

/** `cron`, `zone`, `gap` and `overlap`; or `every`, in seconds, and `anchor`. */
export interface WhenBody {
  anchor?: Time | null;
  cron?: string;
  every?: number;
  gap?: "next" | "skip";
  overlap?: "both" | "first" | "second";
  zone?: string;
}

export interface WhyBody {
  answer: string;
  code: string;
  details: string[];
}

/** A checked Debounce, as a template stores it. */
export interface Window {
  at_most?: number | null;
  seconds: number;
}

/**
 * `live`: the worker reported within its own lease, and is not stopping. `holds`: jobs that a dead worker still
 * holds, among the 1000 that dead workers have held longest.
 */
export interface WorkerBody {
  concurrency: number;
  holds: string[];
  host: string;
  lease: number;
  live: boolean;
  name: string;
  pid: number;
  rowlock: string;
  running: number;
  seen: Time | null;
  started: Time | null;
  stopping: boolean;
  topics: string[];
}

/** By position. A step that has succeeded must not run again: its result is here. */
export interface WorkerStepsAnswer {
  items: StoredStepBody[];
}

export interface WorkersAnswer {
  items: WorkerBody[];
  next: string | null;
}

/**
 * A step of a job. `n`: the n-th call of this name. `position`: its place among all steps; null: it is declared,
 * but was not reached. `skipped`: the job has ended without it. `retries` and `max_retries`: of the step itself.
 * `title`, `timeout`, `weight` and `max_retries`: as the topic's template declares them.
 *
 * `kind`: step; sleep or signal (a wait, which is open while it is running); callback (an address for the outside).
 * `name` is then the signal's, `timeout` that of the wait, `result` the signal's data. `deadline`: when it ends by
 * itself; null: never. `schema`: of the data that an open wait takes. `label`: the name by which `from_step` of a
 * requeue finds it.
 */
export interface StepBody {
  cancelable: boolean;
  deadline: Time | null;
  error: string | null;
  finished_at: Time | null;
  kind: "step" | "sleep" | "signal" | "callback";
  label: string;
  max_retries: number | null;
  n: number;
  name: string;
  position: number | null;
  result: unknown;
  retries: number;
  schema: Record<string, unknown> | null;
  started_at: Time | null;
  state: "pending" | "running" | "succeeded" | "failed" | "skipped" | "cancelled";
  timeout: number | null;
  title: string | null;
  weight: number | null;
}

export interface TemplatesStepBody {
  cancelable: boolean;
  name: string;
  timeout: number | null;
  title: string | null;
  weight: number;
}

/** The query of GET /api/audit */
export interface ListAuditQuery {
  /** Default: 20 */
  limit?: number;
  cursor?: string;
  bulk?: string;
  search?: string;
}

/** The query of GET /api/bulk */
export interface ListBulkQuery {
  /** Default: 20 */
  limit?: number;
  cursor?: string;
}

/** The query of GET /api/bulk/{id}/items */
export interface ListBulkItemsQuery {
  /** Default: 20 */
  limit?: number;
  cursor?: string;
  outcome?: "done" | "changed" | "gone" | "key_taken" | "locked" | "unrun";
}

/** The query of GET /api/events */
export interface StreamEventsQuery {
  topic?: string[];
  status?: ("pending" | "blocked" | "processing" | "waiting" | "cancel_requested" | "completed" | "failed" | "expired" | "cancelled")[];
  id?: string[];
  key?: string[];
  tag?: string[];
  payload?: string[];
  error?: string;
  scope?: string;
  scope_id?: string;
  flow_id?: string;
  created_from?: Time;
  created_until?: Time;
  run_at_from?: Time;
  run_at_until?: Time;
  finished_from?: Time;
  finished_until?: Time;
  fingerprint?: string;
  /** Default: 50 */
  limit?: number;
  /** Default: true */
  stats?: boolean;
  seconds?: number;
}

/** The query of GET /api/failures */
export interface ListFailuresQuery {
  /** Default: 20 */
  limit?: number;
  cursor?: string;
  topic?: string[];
  since?: Time;
  /** Default: "hour" */
  trend?: "day" | "hour";
}

/** The query of GET /api/failures/{fingerprint} */
export interface GetFailureQuery {
  since?: Time;
  /** Default: "hour" */
  trend?: "day" | "hour";
}

/** The query of GET /api/flows */
export interface ListFlowsQuery {
  /** Default: 20 */
  limit?: number;
  cursor?: string;
  name?: string;
}

/** The query of DELETE /api/flows/{id} */
export interface DeleteFlowQuery {
  reason?: string;
}

/** The query of GET /api/jobs */
export interface ListJobsQuery {
  topic?: string[];
  status?: ("pending" | "blocked" | "processing" | "waiting" | "cancel_requested" | "completed" | "failed" | "expired" | "cancelled")[];
  id?: string[];
  key?: string[];
  tag?: string[];
  payload?: string[];
  error?: string;
  scope?: string;
  scope_id?: string;
  flow_id?: string;
  created_from?: Time;
  created_until?: Time;
  run_at_from?: Time;
  run_at_until?: Time;
  finished_from?: Time;
  finished_until?: Time;
  fingerprint?: string;
  /** Default: 20 */
  limit?: number;
  /** Default: 0 */
  offset?: number;
  cursor?: string;
}

/** The query of GET /api/jobs/stats */
export interface GetStatsQuery {
  topic?: string[];
  status?: ("pending" | "blocked" | "processing" | "waiting" | "cancel_requested" | "completed" | "failed" | "expired" | "cancelled")[];
  id?: string[];
  key?: string[];
  tag?: string[];
  payload?: string[];
  error?: string;
  scope?: string;
  scope_id?: string;
  flow_id?: string;
  created_from?: Time;
  created_until?: Time;
  run_at_from?: Time;
  run_at_until?: Time;
  finished_from?: Time;
  finished_until?: Time;
  fingerprint?: string;
}

/** The query of DELETE /api/jobs/{id} */
export interface DeleteJobQuery {
  reason?: string;
}

/** The query of GET /api/jobs/{id}/events */
export interface GetEventsQuery {
  /** Default: 200 */
  limit?: number;
  cursor?: string;
}

/** The query of GET /api/jobs/{id}/logs */
export interface GetLogsQuery {
  /** Default: 200 */
  limit?: number;
  cursor?: string;
}

/** The query of POST /api/jobs/{id}/signals/{name} */
export interface SignalJobQuery {
  id?: string;
  reason?: string;
}

/** The query of GET /api/jobs/{id}/wait */
export interface WaitForJobQuery {
  /** Default: 25.0 */
  timeout?: number;
}

/** The query of DELETE /api/limits/{name} */
export interface ClearLimitQuery {
  kind?: "concurrency" | "fair" | "rate";
  field?: string;
  value?: string;
  reason?: string;
}

/** The query of GET /api/schedules */
export interface ListSchedulesQuery {
  /** Default: 20 */
  limit?: number;
  cursor?: string;
  topic?: string;
  scope?: string;
  scope_id?: string;
  state?: "active" | "over" | "paused";
  text?: string;
  absent?: boolean;
}

/** The query of DELETE /api/schedules/{id} */
export interface DeleteScheduleQuery {
  reason?: string;
}

/** The query of GET /api/schedules/{id}/history */
export interface GetHistoryQuery {
  /** Default: 50 */
  limit?: number;
  cursor?: string;
  before?: Time;
}

/** The query of GET /api/schedules/{id}/preview */
export interface PreviewScheduleQuery {
  /** Default: 5 */
  limit?: number;
  after?: Time;
}

/** The query of GET /api/sessions */
export interface ListSessionsQuery {
  /** Default: 20 */
  limit?: number;
  cursor?: string;
}

/** The query of POST /api/signals/{name} */
export interface SignalKeyQuery {
  id?: string;
  reason?: string;
  topic?: string;
  key?: string;
  scope?: string;
  scope_id?: string;
}

/** The query of GET /api/stats/series */
export interface GetSeriesQuery {
  topic?: string;
  range?: "15m" | "1h" | "6h" | "24h" | "7d" | "30d" | "90d";
  from?: Time;
  until?: Time;
  step?: number;
}

/** The query of GET /api/templates */
export interface ListTemplatesQuery {
  topic?: string;
}

/** The query of GET /api/tokens */
export interface ListTokensQuery {
  /** Default: 20 */
  limit?: number;
  cursor?: string;
}

/** The query of GET /api/topics */
export interface ListTopicsQuery {
  /** Default: 20 */
  limit?: number;
  cursor?: string;
}

/** The query of GET /api/workers */
export interface ListWorkersQuery {
  /** Default: 20 */
  limit?: number;
  cursor?: string;
}
