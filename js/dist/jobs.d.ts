import type { BatchItem, CloneBody, Event as JobEvent, FlowCreated, ListAnswer, LiveJob, LogLine, RequeueBody, StatsAnswer, UpdateBody, WhyBody } from "./api.ts";
import { type FlowJob } from "./flows.ts";
import { List } from "./pages.ts";
import type { Abortable, AnyTopics, Asked, EnqueueOptions, Filter, Job, NewJob, TopicMap, TopicOf } from "./types.ts";
/** One of the jobs that `enqueueMany` added. `existing`: a job with this key or id was there already. */
export type Enqueued = BatchItem;
export type Page<Topics extends TopicMap<Topics> = AnyTopics> = Omit<ListAnswer, "items"> & {
    items: Job<Topics>[];
};
/** Names the live job that has this key. */
export interface Key {
    topic: string;
    key: string;
    scope?: string | undefined;
    scopeId?: string | undefined;
}
type Reason = {
    reason?: string | undefined;
} & Abortable;
/** The jobs that a filter finds, as they are now. */
export interface View {
    /** The newest first. */
    jobs: LiveJob[];
    /** Those whose state is new. A job that has ended may be here one last time. */
    changed: LiveJob[];
    /** Ids of jobs that are in the view no longer: ended and no longer among the newest, deleted, or not to be seen any more. */
    gone: string[];
}
export declare class JobsClient<Topics extends TopicMap<Topics> = AnyTopics> {
    #private;
    /**
     * Add a job, and return its id. If a live job has the same key, this is the id of that job.
     * The client makes the id before it sends the request, so a retry adds no second job. Calls that are made at the same time share requests.
     */
    enqueue<Topic extends TopicOf<Topics>>(topic: Topic, payload: Topics[Topic]["payload"], options?: EnqueueOptions): Promise<string>;
    /**
     * Add many jobs, in requests of up to 1,000 jobs or 1 MiB. Each request adds all of its jobs or none; those of earlier requests stay. To
     * repeat the call safely, give each job an `id`.
     */
    enqueueMany(jobs: readonly NewJob<Topics>[], { signal }?: Abortable): Promise<Enqueued[]>;
    /**
     * Add jobs that run one after the other: all or none. The first ones may be ids of jobs that are there. A payload may hold the result of an
     * earlier job, by its topic: `{ amount: { $result: "charge.amount" } }`.
     */
    chain(jobs: readonly (string | FlowJob<Topics>)[], { name, ifFailed, signal }?: {
        name?: string;
        ifFailed?: "cancel" | "run" | "hold";
    } & Abortable): Promise<FlowCreated>;
    get<Topic extends TopicOf<Topics> = TopicOf<Topics>>(id: string, { signal }?: Abortable): Promise<Job<Topics, Topic>>;
    /**
     * The jobs that meet the filter, the newest first. `limit`: of one page.
     * `for await (const job of client.jobs.list({ status: "failed" })) …`, or `await client.jobs.list().page()`
     */
    list({ signal, ...query }?: Filter<Topics> & {
        limit?: number | undefined;
    } & Abortable): List<Job<Topics>, Page<Topics>>;
    /** How many jobs there are, by status. */
    stats({ signal, ...query }?: Filter<Topics> & Abortable): Promise<StatsAnswer>;
    /**
     * Return the job when it has ended: completed, failed, expired or cancelled. Throws WaitTimeout after `timeout` seconds, if given.
     * Once the server has answered, this also waits while the server is away.
     */
    wait<Topic extends TopicOf<Topics> = TopicOf<Topics>>(id: string, { timeout, signal }?: {
        timeout?: number | undefined;
    } & Abortable): Promise<Job<Topics, Topic>>;
    /**
     * Watch a job: yields its state now and at each change, and ends with the job. It also ends if the job is deleted, or may not be seen any
     * more. Throws NotFound if there is no such job from the beginning. States in quick succession may come as one. `get` has the result.
     *
     * Watch a filter: yields the newest jobs that meet it (50, or `limit`), now and at each change, without end.
     *
     * Both connect again when the connection breaks, and go on from the present state.
     */
    watch(id: string, options?: Abortable): AsyncGenerator<LiveJob, void, void>;
    watch(filter: Filter<Topics> & {
        limit?: number | undefined;
    }, options?: Abortable): AsyncGenerator<View, void, void>;
    /** What happened to the job, the oldest first. */
    events(id: string, { signal }?: Abortable): List<JobEvent>;
    /** The lines that its handlers have logged. */
    logs(id: string, { signal }?: Abortable): List<LogLine>;
    /** Run a failed, expired or cancelled job again, with changes if there are any. With `version`, only if it has not run since. */
    requeue(id: string, { signal, ...body }?: Asked<RequeueBody> & Abortable): Promise<Job<Topics>>;
    /** Cancel a job: at once, or, if it is running, by asking it to stop. A caller who may not see the job gets its `id` alone. */
    cancel(id: string, { signal, ...body }?: Reason): Promise<Job<Topics> | {
        id: string;
    }>;
    /** Let a job run that a flow holds. */
    release(id: string, { signal, ...body }?: Reason): Promise<Job<Topics>>;
    /** Change a pending job. */
    update(id: string, { signal, ...body }: Asked<UpdateBody> & Abortable): Promise<Job<Topics>>;
    /** Delete a job that is not running. */
    delete(id: string, { signal, ...query }?: Reason): Promise<void>;
    /** Add a copy of the job, and return its id. */
    clone(id: string, { signal, ...body }?: Asked<CloneBody> & Abortable): Promise<string>;
    /**
     * Send a signal to a job that waits for it, or will. A signal with the same `id` counts once per job. Without an id, the client makes one, so
     * a retry sends no second signal. Returns false if a signal with your id had come before.
     */
    signal(to: string | Key, name: string, data?: unknown, { signal, ...more }?: {
        id?: string | undefined;
    } & Reason): Promise<boolean>;
    /** Why is the job not running? */
    why(id: string, { signal }?: Abortable): Promise<WhyBody>;
}
export {};
