// The protocol's thread: claims, renews leases, settles, and keeps time. No handler can delay it, because handlers run in the main thread.

import { writeSync } from "node:fs";
import { parentPort, workerData } from "node:worker_threads";
import type { ClaimAnswer, HeartbeatAnswer, HoldBody, RunBody } from "../api.ts";
import { NotAllowed, NotAuthenticated, RequestError } from "../errors.ts";
import { type Ask, backoff, pause, Requests } from "../request.ts";
import { messageOf } from "./errors.ts";
import { type End, LEVELS, type Level, type News, Outbox, type Setup, type ToMain, type ToThread, type Why } from "./messages.ts";
import { timedOut } from "./outcomes.ts";

// Seconds:
const LONG_POLL = 20; // at most; half of the lease, so that a frozen process does not go on getting jobs through an open connection
const LONGEST_PAUSE = 5; // between two tries while the server is away
const MOST_UNBEGUN = 2; // a run that the main thread has not begun by then is given back: another worker may have time for it
const AFTER_TIMEOUT = 5; // for a handler that ends after its signal was aborted
const AFTER_STOP = 1; // the same when the worker stops
const LAST_SETTLES = 5;
const MOST_BLOCKED = 30; // past the timeout of a run; the server stops renewing then

// What one request may have:
const MOST_CLAIMED = 500;
const MOST_RUNS = 1000;
const MOST_ENDS = 500;
const MOST_BYTES = 1 << 20;
const MOST_LINES = 100;
const MOST_KEPT_LINES = 200;
const MOST_REPORTS = 8; // requests under way
const NO_SUCH_VERSION = 1_000_000;

/** A run that this worker has got. It stays until the handler has ended, and the server has acknowledged that. */
interface Held {
  readonly n: number;
  readonly run: RunBody;
  readonly began: number;
  taken: Int32Array;
  index: number;
  isBegun: boolean;
  /** By the clock of this process, in milliseconds. */
  leaseEnd: number;
  timeoutEnd: number;
  failAt: number;
  told: Set<Why>;
  end: End | undefined;
  isRefused: boolean;
  /** The handler has returned or thrown: its slot is free. */
  hasEnded: boolean;
  /** A request that ends the run is under way. Only its answer tells whether the run is lost. */
  isSettling: boolean;
  /** The server has acknowledged the end, or the run is lost. */
  isSettled: boolean;
  news: News | undefined;
  writing: Promise<void> | undefined;
}

const now = (): number => performance.now();
const nameOf = ({ run }: Held): { id: string; version: number } => ({ id: run.id, version: run.version });

class Protocol {
  readonly #setup: Setup;
  readonly #requests: Requests;
  readonly #out: Outbox<ToMain>;
  readonly #lease: number; // milliseconds
  readonly #held = new Map<number, Held>();
  readonly #stopClaim = new AbortController();
  #count = 0;
  #running = 0; // handlers that have not ended
  readonly #byName = new Map<string, Held>(); // by id and version; those that are not settled
  /** Runs that are given back. The database may count them as this worker's until it has stored that, so each keeps a slot. */
  readonly #returning = new Set<Held>();
  #claim: { since: number; isStalled: boolean } | undefined;
  #wake: (() => void) | undefined;
  #lastTick = now();
  #nextBeat = 0;
  #isBeating = false;
  #pinged: number | undefined; // since then the main thread has not answered
  readonly #ends: Held[] = [];
  #isSettling = false;
  #reports = 0;
  readonly #reportsWaiting: (() => void)[] = [];
  #isStopping = false;
  #graceEnd = Infinity;
  #isOver = false;
  #isAway = false;

  constructor(setup: Setup, out: Outbox<ToMain>) {
    this.#setup = setup;
    this.#out = out;
    this.#lease = setup.lease * 1000;
    this.#requests = new Requests(setup.url, { token: setup.token });
  }

  start(): Promise<void> {
    const every = Math.min(Math.max(this.#lease / 12, 50), 250);
    setInterval(() => this.#tick(every), every);
    return this.#claiming();
  }

  hear(message: ToThread): void {
    switch (message.kind) {
      case "pong":
        this.#pinged = undefined;
        this.#wake?.();
        break;
      case "stop":
        void this.#stop(message.grace);
        break;
      default: {
        const held = this.#held.get(message.n);
        if (held === undefined) {
          if (message.kind === "ask") this.#out.add({ kind: "answer", call: message.call, lost: true });
        } else if (message.kind === "end") this.#handlerEnded(held, message.end);
        else if (message.kind === "report") this.#report(held, message.news);
        else void this.#answer(held, message);
      }
    }
  }

  // ── Requests ──

  /** `body`: an object, or JSON text. */
  #send<T>(verb: string, body: object | string, options: Ask = {}): Promise<T> {
    if (verb === "enqueue") return this.#requests.send<T>("POST", "/api/jobs/enqueue", { body, retries: 0, ...options });
    const said = typeof body === "string" ? { text: body } : { body: { worker: this.#setup.name, ...body } };
    return this.#requests.send<T>("POST", `/api/worker/${verb}`, { ...said, retries: 0, ...options });
  }

  /** Send a request until the server answers it. Every request may be repeated. `goOn`: false if it is not worth another try. */
  async #insist<T>(verb: string, body: object | string, goOn: () => boolean = () => true): Promise<T> {
    for (let tries = 0; ; tries++) {
      try {
        const answer = await this.#send<T>(verb, body);
        this.#serverAnswers();
        return answer;
      } catch (error) {
        if (!this.#mayHelp(error, verb) || this.#isOver || !goOn()) throw error;
        await pause(Math.min(backoff(tries, error), LONGEST_PAUSE));
      }
    }
  }

  /** True if the server is away, so that another try may help. An error that no try can mend ends the worker. */
  #mayHelp(error: unknown, verb: string): boolean {
    if (error instanceof NotAuthenticated || error instanceof NotAllowed) {
      if (verb !== "enqueue") this.#giveUp(this.#whyRefused(error));
      return false;
    }
    if (error instanceof RequestError && error.status < 500 && ![404, 408, 429].includes(error.status)) return false;
    if (verb === "enqueue" && error instanceof RequestError && error.status === 404) return false;
    if (!this.#isAway) this.#log("warning", `the server is away: ${messageOf(error)}. The worker tries again until it is back`);
    this.#isAway = true;
    return true;
  }

  #serverAnswers(): void {
    if (this.#isAway) this.#log("info", "the server is back");
    this.#isAway = false;
  }

  #whyRefused(error: RequestError): string {
    const wayOut =
      error.status === 401
        ? "Give a valid token by --token or ROWLOCK_TOKEN: rowlock token create NAME --scope worker"
        : `The token needs the scope worker, for the topics ${this.#setup.lanes.join(", ")}`;
    return `${this.#requests.base} refused the worker: ${error.message}. ${wayOut}`;
  }

  // ── Claim ──

  async #claiming(): Promise<void> {
    for (let tries = 0; !this.#isStopping; ) {
      const limit = this.#free();
      if (limit <= 0) {
        await new Promise<void>((resolve) => (this.#wake = resolve));
        continue;
      }
      const claim = (this.#claim = { since: now(), isStalled: false });
      try {
        const { lanes: topics, lease } = this.#setup;
        const wait = Math.min(LONG_POLL, lease / 2);
        const body = { topics, limit, lease, wait, runs: this.#names() };
        const { items } = await this.#send<ClaimAnswer>("claim", body, { timeout: wait + 15, signal: this.#stopClaim.signal });
        this.#claim = undefined;
        this.#serverAnswers();
        tries = 0;
        await this.#take(items, claim.since);
      } catch (error) {
        if (this.#isStopping) break;
        if (!this.#mayHelp(error, "claim")) {
          this.#giveUp(`the server refused to give jobs: ${messageOf(error)}`);
          break;
        }
        await pause(Math.min(backoff(tries++, error), LONGEST_PAUSE), this.#stopClaim.signal).catch(() => {});
      }
    }
  }

  /** Return how many jobs may be claimed: none ahead of the slots, and none while the main thread is blocked. */
  #free(): number {
    if (this.#pinged !== undefined) return 0;
    return Math.min(this.#setup.concurrency - this.#running - this.#returning.size, MOST_RUNS - this.#held.size, MOST_CLAIMED);
  }

  #names(): { id: string; version: number }[] {
    return [...this.#held.values()].map(nameOf);
  }

  async #take(runs: RunBody[], since: number): Promise<void> {
    const fresh = runs.map((run) => this.#hold(run, since));
    const isLate = since + (2 * this.#lease) / 3 < now(); // this process was frozen: find out whether it still has them
    if (isLate) await this.#beat(fresh);
    const ready: Held[] = [];
    for (const held of fresh) {
      if (!held.isSettled && held.leaseEnd > now() && !this.#isStopping) ready.push(held);
      else this.#giveBack(held, "it came too late");
    }
    if (ready.length === 0) return;
    const taken = new Int32Array(new SharedArrayBuffer(4 * ready.length));
    ready.forEach((held, index) => Object.assign(held, { taken, index }));
    // A process that was frozen wakes up with all its threads at once: the main thread itself must see that it is too late.
    const left = Math.min(MOST_UNBEGUN * 1000, ...ready.map((held) => held.leaseEnd - now()));
    const until = process.hrtime.bigint() + BigInt(Math.floor(left * 1e6));
    this.#out.add({ kind: "start", runs: ready.map(({ n, run }) => ({ n, run })), taken, until });
  }

  #hold(run: RunBody, since: number): Held {
    const other = this.#byName.get(`${run.id} ${run.version}`);
    if (other !== undefined) this.#lose(other); // the database has lost its last seconds, perhaps by a failover: only the newer run counts
    const began = now();
    const held: Held = {
      n: ++this.#count,
      run,
      began,
      taken: NOT_TAKEN,
      index: 0,
      isBegun: false,
      leaseEnd: since + this.#lease,
      timeoutEnd: began + run.timeout * 1000,
      failAt: Infinity,
      told: new Set(),
      end: undefined,
      isRefused: false,
      hasEnded: false,
      isSettling: false,
      isSettled: false,
      news: undefined,
      writing: undefined,
    };
    this.#held.set(held.n, held);
    this.#byName.set(`${run.id} ${run.version}`, held);
    this.#running++;
    return held;
  }

  /** The handler of this run has not begun, and must not any more. */
  #giveBack(held: Held, reason: string): void {
    this.#returning.add(held);
    this.#slotIsFree(held);
    if (held.isSettled) this.#forget(held);
    else this.#settle(held, { end: "release", reason });
  }

  #slotIsFree(held: Held): void {
    if (held.hasEnded) return;
    held.hasEnded = true;
    this.#running--;
    this.#wake?.();
  }

  #forget(held: Held): void {
    held.isSettled = true;
    this.#returning.delete(held);
    const name = `${held.run.id} ${held.run.version}`;
    if (this.#byName.get(name) === held) this.#byName.delete(name);
    if (held.hasEnded) this.#held.delete(held.n);
    this.#wake?.();
  }

  // ── Time ──

  #tick(every: number): void {
    const at = now();
    if (this.#claim !== undefined) {
      // An answer that comes now was not there at the last tick: the lease counts from there. After a stall it may have waited for long.
      this.#claim.isStalled ||= at - this.#lastTick > 3 * every;
      if (!this.#claim.isStalled) this.#claim.since = Math.max(this.#claim.since, this.#lastTick);
    }
    this.#lastTick = at;
    for (const held of [...this.#held.values()]) this.#look(held, at);
    if (at >= this.#nextBeat && !this.#isBeating) void this.#beatAll();
  }

  #look(held: Held, at: number): void {
    if (!held.isBegun && !held.hasEnded && held.taken !== NOT_TAKEN) {
      if (Atomics.load(held.taken, held.index) === 1) held.isBegun = true;
      else if (at - held.began > MOST_UNBEGUN * 1000 && Atomics.compareExchange(held.taken, held.index, 0, 2) === 0) {
        this.#ping();
        this.#giveBack(held, "the worker was too busy to begin it");
      }
    }
    if (!held.hasEnded && at >= held.timeoutEnd) this.#timeOut(held);
    if (!held.hasEnded && at >= held.failAt && held.end === undefined) {
      this.#settle(held, { end: "fail", type: "TimeLimit", error: timedOut(held.run.timeout), final: false, ran: (at - held.began) / 1000 });
    }
    if (!held.isSettled && at >= held.leaseEnd) this.#abort(held, "lost");
    const blocked = this.#pinged === undefined ? 0 : at - this.#pinged;
    if (!held.hasEnded && at >= held.timeoutEnd + MOST_BLOCKED * 1000 && blocked >= MOST_BLOCKED * 1000 && !this.#isOver) {
      this.#isOver = true;
      endProcess(held.run);
    }
  }

  #timeOut(held: Held): void {
    if (held.told.has("timed_out")) return;
    this.#abort(held, "timed_out");
    this.#ping();
    held.failAt = now() + AFTER_TIMEOUT * 1000;
  }

  #abort(held: Held, why: Why): void {
    if (held.told.has(why)) return;
    held.told.add(why);
    if (!held.hasEnded) {
      this.#out.add({ kind: "abort", n: held.n, why });
      this.#log(why === "lost" || why === "timed_out" ? "warning" : "info", ABORTED[why], held);
    }
  }

  #ping(): void {
    this.#pinged ??= now();
    this.#out.add({ kind: "ping" });
  }

  // ── Heartbeat ──

  async #beatAll(): Promise<void> {
    this.#isBeating = true;
    const sent = now();
    const isDone = await this.#beat([...this.#held.values()].filter((held) => !held.isSettled));
    this.#nextBeat = isDone ? sent + this.#lease / 3 : now() + Math.min(this.#lease / 10, 1000);
    this.#isBeating = false;
  }

  /** Return false if the server did not answer. */
  async #beat(all: Held[]): Promise<boolean> {
    for (let n = 0; n < all.length; n += MOST_RUNS) {
      const some = all.slice(n, n + MOST_RUNS);
      const sent = now();
      try {
        const body = { runs: some.map(nameOf), lease: this.#setup.lease };
        const { items } = await this.#send<HeartbeatAnswer>("heartbeat", body, { timeout: Math.max(this.#setup.lease / 3, 1) });
        this.#serverAnswers();
        items.forEach(({ hold }, i) => this.#told(some[i] as Held, hold, sent));
      } catch (error) {
        if (!this.#mayHelp(error, "heartbeat")) this.#log("error", `a heartbeat was refused: ${messageOf(error)}`);
        return false;
      }
    }
    return true;
  }

  /** `sent`: when the request was sent that has renewed the lease. */
  #told(held: Held, hold: HoldBody["hold"], sent?: number): void {
    if (hold === "lost") {
      if (!held.isSettling) this.#lose(held);
      return;
    }
    if (sent !== undefined) held.leaseEnd = sent + this.#lease;
    // A run that undoes something is cancelled where the job waited, which only the handler finds out.
    if (hold === "cancel" && held.run.status !== "cancel_requested") this.#abort(held, "cancelled");
    if (hold === "timeout") this.#timeOut(held);
  }

  #lose(held: Held): void {
    this.#abort(held, "lost");
    this.#forget(held);
  }

  // ── Settle ──

  #handlerEnded(held: Held, end: End | undefined): void {
    this.#slotIsFree(held);
    if (held.isSettled || end === undefined) this.#forget(held);
    else if (held.end === undefined) this.#settle(held, end);
  }

  #settle(held: Held, end: End): void {
    held.end = end;
    held.isSettling = true;
    if (held.writing === undefined) this.#queueEnd(held);
    else void held.writing.finally(() => this.#queueEnd(held));
  }

  #queueEnd(held: Held): void {
    this.#ends.push(held);
    if (this.#isSettling) return;
    this.#isSettling = true;
    queueMicrotask(() => void this.#settling()); // all ends of one message go together
  }

  async #settling(): Promise<void> {
    while (this.#ends.length > 0 && !this.#isOver) {
      let bytes = 0;
      let count = 0;
      for (const held of this.#ends.slice(0, MOST_ENDS)) {
        bytes += Buffer.byteLength(endText(held));
        if (count > 0 && bytes > MOST_BYTES) break;
        count++;
      }
      await this.#settleTogether(this.#ends.splice(0, count));
    }
    this.#isSettling = false;
  }

  async #settleTogether(some: Held[]): Promise<void> {
    try {
      const text = `{"worker":${JSON.stringify(this.#setup.name)},"ends":[${some.map(endText).join()}]}`;
      const { items } = await this.#insist<{ items: { status: string }[] }>("settle", text);
      some.forEach((held, i) => this.#acknowledged(held, items[i]?.status ?? "lost"));
    } catch (error) {
      if (this.#isOver) return;
      if (some.length > 1) for (const one of some) await this.#settleTogether([one]); // one of them is refused
      else await this.#endRefused(some[0] as Held, messageOf(error));
    }
  }

  async #endRefused(held: Held, problem: string): Promise<void> {
    this.#log("error", `the server refused its end: ${problem}`, held);
    if (held.isRefused) return this.#forget(held);
    held.isRefused = true;
    held.end = { end: "fail", type: "Refused", error: `the server refused the end of the run: ${problem}`, final: true, ran: 0 };
    await this.#settleTogether([held]);
  }

  #acknowledged(held: Held, status: string): void {
    this.#forget(held);
    const end = held.end as End;
    if (status === "lost") this.#log("warning", `its ${end.end} did not count: the lease was lost`, held);
    else if (end.end === "fail") this.#log("warning", `${status === "pending" ? "failed, and is tried again" : status}: ${end.type}: ${end.error}`, held);
    else this.#log("debug", status === "pending" ? `goes on later (${end.end})` : status, held);
  }

  // ── Progress and log ──

  #report(held: Held, news: News): void {
    const lines = [...(held.news?.lines ?? []), ...(news.lines ?? [])].slice(-MOST_KEPT_LINES);
    held.news = { ...held.news, ...news, lines };
    held.writing ??= this.#write(held).finally(() => (held.writing = undefined));
  }

  /** Write what the handler has reported. Reports that come meanwhile are written together. */
  async #write(held: Held): Promise<void> {
    if (this.#reports >= MOST_REPORTS) await new Promise<void>((resolve) => this.#reportsWaiting.push(resolve));
    this.#reports++;
    try {
      while (held.news !== undefined && !held.isSettled) {
        const { lines = [], ...progress } = held.news;
        held.news = undefined;
        if (Object.keys(progress).length > 0) await this.#reportOne(held, "progress", progress);
        for (let n = 0; n < lines.length; n += MOST_LINES) await this.#reportOne(held, "log", { lines: lines.slice(n, n + MOST_LINES) });
      }
    } finally {
      this.#reports--;
      this.#reportsWaiting.shift()?.();
    }
  }

  async #reportOne(held: Held, verb: string, body: object): Promise<void> {
    try {
      const { hold } = await this.#insist<HoldBody>(verb, { ...nameOf(held), ...body }, () => !held.isSettled);
      this.#told(held, hold);
    } catch (error) {
      if (!this.#isOver && !held.isSettled) this.#log("warning", `its ${verb} was refused: ${messageOf(error)}`, held);
    }
  }

  // ── Questions of handlers ──

  async #answer(held: Held, { call, verb, text, insist }: Extract<ToThread, { kind: "ask" }>): Promise<void> {
    const last = now() + this.#lease;
    if (insist) held.isSettling = true;
    const goOn = (): boolean => insist || (!held.isSettled && !held.told.has("lost") && now() < last);
    const body = JSON.parse(text) as object;
    const asked = verb === "enqueue" ? body : { ...nameOf(held), ...body };
    try {
      if (insist) await held.writing;
      const value = await this.#insist<object>(verb, asked, goOn);
      if (insist) held.isSettling = false;
      if (verb === "checkpoint") this.#told(held, (value as HoldBody).hold);
      this.#out.add({ kind: "answer", call, value });
    } catch (error) {
      if (insist) held.isSettling = false;
      if (error instanceof RequestError && error.code === "lost") {
        this.#lose(held);
        this.#out.add({ kind: "answer", call, lost: true });
      } else if (error instanceof RequestError && error.status < 500) {
        const { message, status, code, field } = error;
        this.#out.add({ kind: "answer", call, refused: { message, status, code, field } });
      } else this.#out.add({ kind: "answer", call, away: messageOf(error) });
    }
  }

  // ── The end ──

  async #stop(grace: number): Promise<void> {
    this.#graceEnd = Math.min(this.#graceEnd, now() + grace * 1000); // a second stop may leave less time
    if (this.#isStopping) return;
    this.#isStopping = true;
    const claim = this.#claim;
    this.#stopClaim.abort();
    this.#wake?.();
    const recovered = claim === undefined ? undefined : this.#recover(now() + LAST_SETTLES * 1000);
    await this.#until(() => this.#running === 0 || now() >= this.#graceEnd, grace);
    for (const held of this.#held.values()) this.#abort(held, "stopping");
    await this.#until(() => this.#running === 0, AFTER_STOP);
    for (const held of this.#held.values()) {
      if (!held.hasEnded && held.end === undefined && !held.isSettled) this.#settle(held, { end: "release", reason: "the worker stops" });
    }
    await recovered;
    await this.#until(() => [...this.#held.values()].every((held) => held.isSettled), LAST_SETTLES);
    const left = [...this.#held.values()].filter((held) => !held.isSettled).length;
    if (left > 0) this.#log("warning", `${left} runs could not be settled: they end with their leases`);
    await this.#send("goodbye", {}, { timeout: 2 }).catch(() => {});
    this.#finish();
  }

  /** The claim was hung up, and its answer may have been under way. Get the jobs that it named, and give them back. */
  async #recover(end: number): Promise<void> {
    const topics = [`${this.#setup.lanes[0]?.split("@")[0]}@${NO_SUCH_VERSION}`]; // no new ones
    do {
      try {
        const body = { topics, limit: MOST_CLAIMED, lease: this.#setup.lease, runs: this.#names() };
        const { items } = await this.#send<ClaimAnswer>("claim", body, { timeout: Math.max((end - now()) / 1000, 1) });
        for (const run of items) this.#giveBack(this.#hold(run, now()), "the worker stops");
        return;
      } catch {
        await pause(0.2);
      }
    } while (now() < end && !this.#isOver);
  }

  async #until(condition: () => boolean, seconds: number): Promise<void> {
    const end = now() + seconds * 1000;
    while (!condition() && now() < end && !this.#isOver) await pause(0.02);
  }

  /** No further request can help. */
  #giveUp(problem: string): void {
    if (this.#isOver) return;
    for (const held of this.#held.values()) this.#abort(held, "lost");
    this.#finish(problem);
  }

  #finish(problem?: string): void {
    this.#isOver = this.#isStopping = true;
    this.#stopClaim.abort();
    this.#out.add(problem === undefined ? { kind: "stopped" } : { kind: "stopped", problem });
  }

  #log(level: Level, text: string, held?: Held): void {
    if (LEVELS.indexOf(level) < LEVELS.indexOf(this.#setup.logLevel)) return;
    this.#out.add({ kind: "log", level, text: held === undefined ? text : `${held.run.topic} ${held.run.id} ${text}` });
  }
}

const NOT_TAKEN = new Int32Array(1);
const ABORTED: Record<Why, string> = {
  cancelled: "is cancelled",
  timed_out: "has taken longer than its timeout",
  stopping: "must end: the worker stops",
  lost: "has lost its lease",
};

/** Return JSON. The result is JSON already. */
function endText({ run, end }: Held): string {
  const { result, ...rest } = end as End & { result?: string };
  const text = JSON.stringify({ id: run.id, version: run.version, ...rest });
  return result === undefined ? text : `${text.slice(0, -1)},"result":${result}}`;
}

/** A handler blocks the main thread, and its run is over. Nothing can stop it, except for the end of the process. */
function endProcess(run: RunBody): void {
  writeSync(2, `error ${run.topic} ${run.id} blocks the event loop, ${MOST_BLOCKED} s past its timeout of ${run.timeout} s: the process ends\n`);
  setTimeout(() => process.kill(process.pid, "SIGKILL"), 1000); // it blocks outside of JavaScript
  import("node:inspector")
    .then(({ Session }) => {
      const session = new Session();
      session.connectToMainThread(); // interrupts a loop; process.exit in this thread would end this thread alone
      session.post("Runtime.evaluate", { expression: "process.exit(70)" });
    })
    .catch(() => {}); // Bun has no such session
}

if (parentPort !== null) {
  const port = parentPort;
  const protocol = new Protocol(workerData as Setup, new Outbox<ToMain>((messages) => port.postMessage(messages)));
  port.on("message", (messages: ToThread[]) => messages.forEach((message) => protocol.hear(message)));
  void protocol.start();
}
