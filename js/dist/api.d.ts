/** RFC 3339, in UTC. */
export type Time = string;
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
export interface ClaimAnswer {
    items: RunBody[];
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
export interface EnqueueBody {
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
    timeout?: number | null;
    topic: string;
    version?: number | null;
}
/** The new job; or, if `existing`, the job that already had the same key or id. */
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
    timeout?: number | null;
    topic: string;
    version?: number | null;
    when?: string | null;
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
/**
 * `hold`: kept; cancel (the worker holds the run, but must stop it); timeout (the worker holds the run, but its
 * time is over); lost (another worker holds the job, or it has ended).
 */
export interface HoldBody {
    hold: "kept" | "cancel" | "timeout" | "lost";
    id: string;
    version: number;
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
/** A line that a handler has logged. `version` says in which run. */
export interface LogLine {
    at: string;
    level: string;
    text: string;
    version: number;
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
export interface UpdateBody {
    delay?: number;
    payload?: Record<string, unknown>;
    priority?: number | "explicit" | "discovered" | "backfill";
    reason?: string | null;
    run_at?: Time;
    tags?: string[];
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
export interface WhyBody {
    answer: string;
    code: string;
    details: string[];
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
