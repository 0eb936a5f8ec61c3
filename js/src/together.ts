// Enqueues that are made at the same time, or while others are under way, share requests. One request for each would take Node 0.4 ms of
// its one core. Every call still ends when its own job is stored, with its own id or its own error.

import type { BatchItem, EnqueuedBody } from "./api.ts";
import { BadRequest, Conflict, NotAllowed, NotFound, RequestError } from "./errors.ts";
import { json, type Requests, unlessAborted } from "./request.ts";

const MOST_JOBS = 1000; // of one request
const MOST_BYTES = 1 << 20; // of its body; the server takes 64 KiB more
const UNDER_WAY = 2; // requests; what comes meanwhile waits for the next one

export type Named = { id: string; topic: string };

interface Call {
  /** The job as it was when the call was made: the caller may change the payload since. */
  text: string;
  resolve: (id: string) => void;
  reject: (error: unknown) => void;
  signal: AbortSignal | undefined;
}

export class Together {
  readonly #requests: Requests;
  #calls: Call[] = [];
  #underWay = 0;
  #isAsked = false;

  constructor(requests: Requests) {
    this.#requests = requests;
  }

  /** Return the id of the new job, or of the live job that has its key. An abort ends the call at once; its job may be stored all the same. */
  async enqueue(job: Named, signal: AbortSignal | undefined): Promise<string> {
    const text = json(job); // now: a job that it can't write must not take the others along
    return unlessAborted(
      new Promise((resolve, reject) => {
        this.#calls.push({ text, signal, resolve, reject });
        this.#ask();
      }),
      signal,
    );
  }

  /** Send what has come, when the program has made all calls that it makes now. */
  #ask(): void {
    if (this.#isAsked || this.#underWay >= UNDER_WAY || this.#calls.length === 0) return;
    this.#isAsked = true;
    queueMicrotask(() => {
      this.#isAsked = false;
      const calls = this.#calls.filter(({ signal }) => !signal?.aborted);
      this.#calls = [];
      if (calls.length === 0) return;
      this.#underWay++;
      void this.#send(calls).finally(() => {
        this.#underWay--;
        this.#ask();
      });
    });
  }

  async #send(calls: Call[]): Promise<void> {
    for (const { text, items } of batches(calls)) await this.#sendSome(items, text);
  }

  async #sendSome(calls: Call[], text: string): Promise<void> {
    if (calls.length === 1) return this.#sendOne(calls[0] as Call);
    try {
      const { items } = await this.#requests.send<{ items: BatchItem[] }>("POST", "/api/jobs/enqueue/batch", { text, repeatable: true });
      await Promise.all(calls.map((call, n) => (items[n]?.id ? call.resolve(items[n].id) : this.#sendOne(call))));
    } catch (error) {
      // The server adds all jobs of a request or none. One of them is wrong: each alone, so that only that one is refused.
      if (isAboutJobs(error)) await Promise.all(calls.map((call) => this.#sendOne(call)));
      else for (const call of calls) call.reject(error);
    }
  }

  async #sendOne({ text, resolve, reject }: Call): Promise<void> {
    try {
      resolve((await this.#requests.send<EnqueuedBody>("POST", "/api/jobs/enqueue", { text, repeatable: true })).id);
    } catch (error) {
      reject(error);
    }
  }
}

/** True if the server refuses an id that this client has made: then an earlier try added the job, and this caller may add jobs but not see them. */
export const isOwn = (error: unknown): boolean => error instanceof RequestError && error.code === "key_taken" && error.field === "id";

const isAboutJobs = (error: unknown): boolean =>
  error instanceof BadRequest || error instanceof Conflict || error instanceof NotAllowed || error instanceof NotFound;

/** Cut jobs, each with its JSON text, into the bodies of requests. */
export function* batches<Item extends { text: string }>(jobs: Iterable<Item>): Generator<{ text: string; items: Item[] }> {
  const encoder = new TextEncoder();
  let items: Item[] = [];
  let texts: string[] = [];
  let bytes = 0;
  for (const job of jobs) {
    const { text } = job;
    const size = text.length * 3 < MOST_BYTES / MOST_JOBS ? text.length * 3 : encoder.encode(text).length;
    if (items.length && (items.length === MOST_JOBS || bytes + size > MOST_BYTES)) {
      yield { text: `{"jobs":[${texts.join()}]}`, items };
      [items, texts, bytes] = [[], [], 0];
    }
    items.push(job);
    texts.push(text);
    bytes += size + 1;
  }
  if (items.length) yield { text: `{"jobs":[${texts.join()}]}`, items };
}
