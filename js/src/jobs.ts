import type {
  BatchItem, CloneBody, EnqueuedBody, Event as JobEvent, FlowCreated, ListAnswer, LiveJob, LogLine, RequeueBody, StatsAnswer, UpdateBody, WhyBody,
} from "./api.ts";
import { Conflict, RequestError, WaitTimeout } from "./errors.ts";
import { createFlow, type FlowJob } from "./flows.ts";
import { newId } from "./ids.ts";
import { List } from "./pages.ts";
import { backoff, json, mayRepeat, part, pause, type Requests } from "./request.ts";
import { liveJobs } from "./stream.ts";
import { batches, isOwn, type Named, Together } from "./together.ts";
import type { Abortable, AnyTopics, Asked, EnqueueOptions, Filter, Job, NewJob, TopicMap, TopicOf } from "./types.ts";

const POLL = 25; // seconds that the server may keep a long poll
const LIVE = new Set(["pending", "blocked", "processing", "waiting", "cancel_requested"]);
const ENDED = new Set(["completed", "failed", "expired", "cancelled"]);

/** One of the jobs that `enqueueMany` added. `existing`: a job with this key or id was there already. */
export type Enqueued = BatchItem;
export type Page<Topics extends TopicMap<Topics> = AnyTopics> = Omit<ListAnswer, "items"> & { items: Job<Topics>[] };
/** Names the live job that has this key. */
export interface Key {
  topic: string;
  key: string;
  scope?: string | undefined;
  scopeId?: string | undefined;
}
type Reason = { reason?: string | undefined } & Abortable;

/** The jobs that a filter finds, as they are now. */
export interface View {
  /** The newest first. */
  jobs: LiveJob[];
  /** Those whose state is new. A job that has ended may be here one last time. */
  changed: LiveJob[];
  /** Ids of jobs that are in the view no longer: ended and no longer among the newest, deleted, or not to be seen any more. */
  gone: string[];
}

export class JobsClient<Topics extends TopicMap<Topics> = AnyTopics> {
  readonly #requests: Requests;
  readonly #together: Together;

  /** @internal */
  constructor(requests: Requests) {
    this.#requests = requests;
    this.#together = new Together(requests);
  }

  /**
   * Add a job, and return its id. If a live job has the same key, this is the id of that job.
   * The client makes the id before it sends the request, so a retry adds no second job. Calls that are made at the same time share requests.
   */
  async enqueue<Topic extends TopicOf<Topics>>(topic: Topic, payload: Topics[Topic]["payload"], options: EnqueueOptions = {}): Promise<string> {
    const { signal, ...more } = options;
    const id = more.id ?? newId();
    try {
      return await this.#together.enqueue({ ...more, id, topic, payload } as Named, signal);
    } catch (error) {
      if (more.id === id || !isOwn(error)) throw error;
      return id;
    }
  }

  /**
   * Add many jobs, in requests of up to 1,000 jobs or 1 MiB. Each request adds all of its jobs or none; those of earlier requests stay. To
   * repeat the call safely, give each job an `id`.
   */
  async enqueueMany(jobs: readonly NewJob<Topics>[], { signal }: Abortable = {}): Promise<Enqueued[]> {
    const whole = jobs.map((job) => {
      const named = { ...job, id: job.id ?? newId() };
      return { named, text: json(named) };
    });
    const done: Enqueued[] = [];
    for (const { text, items } of batches(whole)) {
      try {
        const ask = { text, signal, repeatable: true };
        done.push(...(await this.#requests.send<{ items: Enqueued[] }>("POST", "/api/jobs/enqueue/batch", ask)).items);
      } catch (error) {
        if (!isOwn(error) || jobs.slice(done.length, done.length + items.length).some((job) => job.id)) throw renumbered(error, done.length);
        done.push(...items.map(({ named: { id, topic } }) => ({ id, topic, status: null, run_at: null, created: null, existing: false })));
      }
    }
    return done;
  }

  /**
   * Add jobs that run one after the other: all or none. The first ones may be ids of jobs that are there. A payload may hold the result of an
   * earlier job, by its topic: `{ amount: { $result: "charge.amount" } }`.
   */
  async chain(
    jobs: readonly (string | FlowJob<Topics>)[],
    { name = "chain", ifFailed = "cancel", signal }: { name?: string; ifFailed?: "cancel" | "run" | "hold" } & Abortable = {},
  ): Promise<FlowCreated> {
    const links: object[] = [];
    let after: string[] = [];
    for (const job of jobs) {
      if (typeof job !== "string") {
        const id = job.id ?? newId();
        links.push({ ifFailed, ...job, id, after: [...(job.after ?? []), ...after] });
        after = [id];
      } else if (links.length) throw new TypeError("Ids of jobs that are there come first");
      else after.push(job);
    }
    return createFlow(this.#requests, { name, jobs: links }, signal);
  }

  get<Topic extends TopicOf<Topics> = TopicOf<Topics>>(id: string, { signal }: Abortable = {}): Promise<Job<Topics, Topic>> {
    return this.#requests.send("GET", `/api/jobs/${part(id)}`, { signal });
  }

  /**
   * The jobs that meet the filter, the newest first. `limit`: of one page.
   * `for await (const job of client.jobs.list({ status: "failed" })) …`, or `await client.jobs.list().page()`
   */
  list({ signal, ...query }: Filter<Topics> & { limit?: number | undefined } & Abortable = {}): List<Job<Topics>, Page<Topics>> {
    return new List(this.#requests, "/api/jobs", { query, signal });
  }

  /** How many jobs there are, by status. */
  stats({ signal, ...query }: Filter<Topics> & Abortable = {}): Promise<StatsAnswer> {
    return this.#requests.send("GET", "/api/jobs/stats", { query, signal });
  }

  /**
   * Return the job when it has ended: completed, failed, expired or cancelled. Throws WaitTimeout after `timeout` seconds, if given.
   * Once the server has answered, this also waits while the server is away.
   */
  async wait<Topic extends TopicOf<Topics> = TopicOf<Topics>>(
    id: string,
    { timeout = Infinity, signal }: { timeout?: number | undefined } & Abortable = {},
  ): Promise<Job<Topics, Topic>> {
    const path = `/api/jobs/${part(id)}/wait`;
    const until = performance.now() + timeout * 1000;
    for (let early = 0, answered = false; ; ) {
      const began = performance.now();
      const seconds = answered ? Math.min(Math.max((until - began) / 1000, 0), POLL) : 0; // the first answer comes at once
      try {
        const ask = { query: { timeout: seconds }, timeout: seconds + 10, signal, retries: answered ? 0 : undefined };
        const job = await this.#requests.send<Job<Topics, Topic>>("GET", path, ask);
        if (isEnded(job)) return job;
        answered = true;
      } catch (error) {
        if (!answered || !mayRepeat(error)) throw error;
      }
      const now = performance.now();
      if (now >= until) throw new WaitTimeout(`The job ${id} has not ended within ${timeout} s`);
      early = now < began + seconds * 900 ? early + 1 : 0; // the server stops, or is away
      if (early) await pause(Math.min(backoff(Math.min(early - 1, 4)), (until - now) / 1000), signal);
    }
  }

  /**
   * Watch a job: yields its state now and at each change, and ends with the job. It also ends if the job is deleted, or may not be seen any
   * more. Throws NotFound if there is no such job from the beginning. States in quick succession may come as one. `get` has the result.
   *
   * Watch a filter: yields the newest jobs that meet it (50, or `limit`), now and at each change, without end.
   *
   * Both connect again when the connection breaks, and go on from the present state.
   */
  watch(id: string, options?: Abortable): AsyncGenerator<LiveJob, void, void>;
  watch(filter: Filter<Topics> & { limit?: number | undefined }, options?: Abortable): AsyncGenerator<View, void, void>;
  watch(what: string | (Filter<Topics> & { limit?: number | undefined }), { signal }: Abortable = {}): AsyncGenerator<LiveJob | View, void, void> {
    // An id that was forgotten must not watch all jobs.
    return typeof what === "object" && what !== null ? this.#watchView(what, signal) : this.#watchJob(what, signal);
  }

  async *#watchJob(id: string, signal: AbortSignal | undefined): AsyncGenerator<LiveJob, void, void> {
    part(id);
    let last = "";
    for await (const told of liveJobs(this.#requests, { id }, signal)) {
      let [job] = told.items;
      if (job === undefined) {
        if (last !== "") return;
        job = (await this.get(id, { signal })) as LiveJob; // throws NotFound
      }
      const state = JSON.stringify(job);
      if (state !== last) yield job;
      last = state;
      if (isEnded(job)) return;
    }
  }

  async *#watchView(filter: object, signal: AbortSignal | undefined): AsyncGenerator<View, void, void> {
    const states = new Map<string, string>();
    const jobs = new Map<string, LiveJob>();
    for await (const told of liveJobs(this.#requests, filter, signal)) {
      const changed = told.items.filter((job) => states.get(job.id) !== JSON.stringify(job));
      for (const job of changed) {
        jobs.set(job.id, job);
        states.set(job.id, JSON.stringify(job));
      }
      const kept = new Set(told.items.map((job) => job.id));
      const gone = told.reset ? [...jobs.keys()].filter((id) => !kept.has(id)) : told.gone;
      for (const id of gone) {
        jobs.delete(id);
        states.delete(id);
      }
      yield { jobs: [...jobs.values()].sort((a, b) => (a.created < b.created ? 1 : a.created > b.created ? -1 : a.id < b.id ? 1 : -1)), changed, gone };
    }
  }

  /** What happened to the job, the oldest first. */
  events(id: string, { signal }: Abortable = {}): List<JobEvent> {
    return new List(this.#requests, `/api/jobs/${part(id)}/events`, { signal });
  }

  /** The lines that its handlers have logged. */
  logs(id: string, { signal }: Abortable = {}): List<LogLine> {
    return new List(this.#requests, `/api/jobs/${part(id)}/logs`, { signal });
  }

  /** Run a failed, expired or cancelled job again, with changes if there are any. With `version`, only if it has not run since. */
  requeue(id: string, { signal, ...body }: Asked<RequeueBody> & Abortable = {}): Promise<Job<Topics>> {
    return this.#requests.send("POST", `/api/jobs/${part(id)}/requeue`, { body, signal });
  }

  /** Cancel a job: at once, or, if it is running, by asking it to stop. A caller who may not see the job gets its `id` alone. */
  cancel(id: string, { signal, ...body }: Reason = {}): Promise<Job<Topics> | { id: string }> {
    return this.#requests.send("POST", `/api/jobs/${part(id)}/cancel`, { body, signal });
  }

  /** Let a job run that a flow holds. */
  release(id: string, { signal, ...body }: Reason = {}): Promise<Job<Topics>> {
    return this.#requests.send("POST", `/api/jobs/${part(id)}/release`, { body, signal });
  }

  /** Change a pending job. */
  update(id: string, { signal, ...body }: Asked<UpdateBody> & Abortable): Promise<Job<Topics>> {
    return this.#requests.send("PATCH", `/api/jobs/${part(id)}`, { body, signal });
  }

  /** Delete a job that is not running. */
  delete(id: string, { signal, ...query }: Reason = {}): Promise<void> {
    return this.#requests.send("DELETE", `/api/jobs/${part(id)}`, { query, signal });
  }

  /** Add a copy of the job, and return its id. */
  async clone(id: string, { signal, ...body }: Asked<CloneBody> & Abortable = {}): Promise<string> {
    return (await this.#requests.send<EnqueuedBody>("POST", `/api/jobs/${part(id)}/clone`, { body, signal })).id;
  }

  /**
   * Send a signal to a job that waits for it, or will. A signal with the same `id` counts once per job. Without an id, the client makes one, so
   * a retry sends no second signal. Returns false if a signal with your id had come before.
   */
  async signal(to: string | Key, name: string, data: unknown = null, { signal, ...more }: { id?: string | undefined } & Reason = {}): Promise<boolean> {
    const path = typeof to === "string" ? `/api/jobs/${part(to)}/signals/${part(name)}` : `/api/signals/${part(name)}`;
    const query = { ...(typeof to === "string" ? {} : to), ...more, id: more.id ?? newId() };
    try {
      await this.#requests.send("POST", path, { body: data, query, signal, repeatable: true });
      return true;
    } catch (error) {
      if (!(error instanceof Conflict && error.code === "signal_known")) throw error;
      return more.id === undefined;
    }
  }

  /** Why is the job not running? */
  why(id: string, { signal }: Abortable = {}): Promise<WhyBody> {
    return this.#requests.send("GET", `/api/jobs/${part(id)}/why`, { signal });
  }
}

function isEnded(job: { status: string; finished_at: string | null }): boolean {
  return ENDED.has(job.status) || (!LIVE.has(job.status) && job.finished_at !== null); // a status of a later version
}

/** Let a refusal name the place in the whole list, not in its request. */
function renumbered(error: unknown, by: number): unknown {
  if (error instanceof RequestError) {
    for (const name of ["message", "field"] as const) {
      Object.assign(error, { [name]: error[name]?.replace(/^jobs\[(\d+)/, (_, n) => `jobs[${+n + by}`) });
    }
  }
  return error;
}
