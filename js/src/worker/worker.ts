// The worker in the main thread: it starts the protocol's thread, and runs the handlers of the jobs that the thread has claimed.

import { randomUUID } from "node:crypto";
import { hostname } from "node:os";
import { Worker as Thread } from "node:worker_threads";
import { ConnectionFailed, refusal, RowlockError } from "../errors.ts";
import { Requests } from "../request.ts";
import { Control, here, type Link } from "./control.ts";
import { type Handlers, laneOf, readHandlers, type Workers } from "./handlers.ts";
import { type Level, Outbox, type Setup, type Start, type ToMain, type ToThread } from "./messages.ts";
import { LeaseLost } from "./outcomes.ts";
import { execute, failure, type Handler } from "./run.ts";

export interface WorkerOptions {
  /** The address of the server. Default: ROWLOCK_API */
  url?: string | undefined;
  /** A token with the scope worker. Default: ROWLOCK_TOKEN */
  token?: string | undefined;
  /** Handlers that run at the same time, 1 to 1,000. Default: 10 */
  concurrency?: number | undefined;
  /** Seconds until other workers may take the jobs of a worker that has died, 1 to 300. Default: 30 */
  lease?: number | undefined;
  /** What its name begins with. The rest is new at each start. Default: the name of the host */
  name?: string | undefined;
  /** Which of the topics to run. Default: all */
  topics?: readonly string[] | undefined;
  /** Gets one line per event. Default: nothing is logged */
  log?: ((level: Level, text: string) => void) | undefined;
  /** The least important events that `log` gets. Default: info */
  logLevel?: Level | undefined;
}

interface Question {
  control: Control;
  resolve: (value: any) => void;
  reject: (error: unknown) => void;
}

export class Worker {
  /** The name under which the server knows this worker. */
  readonly name: string;
  readonly topics: readonly string[];
  /** Resolves when the worker has stopped. Rejects if it can't go on: the token is refused, for example. */
  readonly done: Promise<void>;
  readonly #handlers: Handlers;
  readonly #setup: Setup;
  readonly #log: (level: Level, text: string) => void;
  readonly #runs = new Map<number, Control>();
  readonly #questions = new Map<number, Question>();
  readonly #out: Outbox<ToThread>;
  #calls = 0;
  #thread: Thread | undefined;
  #finish!: (problem?: Error) => void;

  constructor(workers: Workers, options: WorkerOptions = {}) {
    this.#handlers = readHandlers(workers, options.topics);
    this.topics = [...this.#handlers.keys()];
    this.name = newName(options.name ?? hostname());
    this.#log = options.log ?? (() => {});
    this.#setup = {
      ...server(options),
      name: this.name,
      lanes: [...this.topics],
      concurrency: within("concurrency", options.concurrency ?? 10, 1, 1000, true),
      lease: within("lease", options.lease ?? 30, 1, 300),
      logLevel: options.logLevel ?? "info",
    };
    this.#out = new Outbox((messages) => this.#thread?.postMessage(messages));
    this.done = new Promise((resolve, reject) => {
      this.#finish = (problem) => {
        void this.#thread?.terminate();
        for (const { reject, control } of this.#questions.values()) reject(new LeaseLost(control.body));
        problem === undefined ? resolve() : reject(problem);
      };
    });
  }

  /** The address of the server. */
  get url(): string {
    return this.#setup.url;
  }

  /** Begin to claim jobs. */
  async start(): Promise<void> {
    if (this.#thread !== undefined) throw new RowlockError("The worker was started before");
    const thread = (this.#thread = new Thread(new URL("./thread.js", import.meta.url), { workerData: this.#setup }));
    thread.on("message", (messages: ToMain[] | object) => {
      if (Array.isArray(messages)) messages.forEach((message) => this.#hear(message)); // node --watch has messages of its own
    });
    thread.on("error", (error) => this.#finish(error));
    thread.on("exit", () => this.#finish(new RowlockError("The thread of the worker has ended")));
    await Promise.race([new Promise((resolve) => thread.once("online", resolve)), this.done]);
  }

  /**
   * Claim nothing more. Handlers have `grace` seconds to end. Then their signals are aborted, and what has not ended a second later is given
   * back, which costs no retry. Resolves when all of that is stored.
   */
  async stop({ grace = 25 }: { grace?: number | undefined } = {}): Promise<void> {
    if (this.#thread === undefined) return;
    this.#out.add({ kind: "stop", grace: within("grace", grace, 0, 86_400) });
    await this.done;
  }

  /** An error of a handler that no code has caught: the run to which it belongs has failed. Return false if it belongs to none. */
  blame(error: unknown): boolean {
    const control = here.getStore()?.control;
    for (const [n, one] of this.#runs) {
      if (one !== control) continue;
      one.flush();
      this.#out.add({ kind: "end", n, end: failure(error, false, 0) });
      this.#runs.delete(n);
      return true;
    }
    return false;
  }

  #hear(message: ToMain): void {
    switch (message.kind) {
      case "start":
        message.runs.forEach((start, i) => {
          if (process.hrtime.bigint() >= message.until) return; // this thread was blocked, or the process frozen: the other thread gives it back
          if (Atomics.compareExchange(message.taken, i, 0, 1) === 0) void this.#run(start);
        });
        break;
      case "abort":
        this.#runs.get(message.n)?.interrupt(message.why);
        break;
      case "answer":
        this.#answer(message);
        break;
      case "ping":
        this.#out.add({ kind: "pong" });
        break;
      case "log":
        this.#log(message.level, message.text);
        break;
      case "stopped":
        this.#finish(message.problem === undefined ? undefined : new RowlockError(message.problem));
    }
  }

  async #run({ n, run }: Start): Promise<void> {
    const link: Link = {
      ask: (verb, body, insist = false) =>
        new Promise((resolve, reject) => {
          const text = JSON.stringify(body); // it may have values of the handler that can't be posted
          this.#questions.set(++this.#calls, { control, resolve, reject });
          this.#out.add({ kind: "ask", n, call: this.#calls, verb, text, insist });
        }),
      report: (news) => {
        this.#out.add({ kind: "report", n, news });
        this.#out.flush(); // the handler may block the event loop from now on
      },
    };
    const control = new Control(run, link);
    this.#runs.set(n, control);
    const end = await execute(control, this.#handlers.get(laneOf(run)) as Handler);
    if (!this.#runs.delete(n)) return; // it was blamed for an error
    control.flush();
    this.#out.add({ kind: "end", n, ...(end !== undefined && { end }) });
  }

  #answer({ call, value, refused, lost, away }: Extract<ToMain, { kind: "answer" }>): void {
    const question = this.#questions.get(call);
    this.#questions.delete(call);
    if (lost) question?.reject(new LeaseLost(question.control.body));
    else if (away !== undefined) question?.reject(new ConnectionFailed(away));
    else if (refused !== undefined) {
      const { status, message: detail, code, field } = refused;
      question?.reject(refusal(new Response(null, { status }), JSON.stringify({ detail, code, field })));
    } else question?.resolve(value);
  }
}

function server(options: WorkerOptions): { url: string; token: string | undefined } {
  const url = options.url ?? process.env["ROWLOCK_API"];
  if (!url) throw new TypeError("The worker needs the address of a server, such as http://127.0.0.1:8090: the option url, or ROWLOCK_API");
  const token = options.token ?? process.env["ROWLOCK_TOKEN"];
  if (!token) throw new TypeError("The worker needs a token: the option token, or ROWLOCK_TOKEN. Make one: rowlock token create NAME --scope worker");
  return { url: new Requests(url, { token }).base, token };
}

function newName(prefix: string): string {
  return `${prefix.replace(/[^A-Za-z0-9_.:-]/g, "-").slice(0, 70)}-${process.pid}-${randomUUID().slice(0, 8)}`;
}

function within(name: string, value: number, least: number, most: number, isWhole = false): number {
  if (value >= least && value <= most && (!isWhole || Number.isInteger(value))) return value;
  throw new TypeError(`${name}: must be a ${isWhole ? "whole " : ""}number from ${least} to ${most}, not ${String(value)}`);
}
