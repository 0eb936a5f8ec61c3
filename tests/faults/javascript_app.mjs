// The handlers of the suite `javascript`. Every run of them is on record, in the lines that tests/proof/recorder.py reads.

import { randomBytes } from "node:crypto";
import { openSync, writeSync } from "node:fs";
import { setTimeout as sleep } from "node:timers/promises";
import { Cancelled, Final, Snooze, Suspend, Worker } from "../../js/dist/worker.js";

const WAIT = 20; // seconds; producers signal every job that waits, much sooner

let me; // as the server calls this worker; handlers are not told
const { start } = Worker.prototype;
Worker.prototype.start = function () {
  me = `${this.name}@${process.env.ROWLOCK_PROOF_OWNER}`;
  return start.call(this);
};

// ── The record ──

const mark = randomBytes(3).toString("hex"); // a pid may come again when many are killed, and its numbers begin anew
const file = openSync(`${process.env.ROWLOCK_PROOF_RECORD}/${process.pid}-${mark}.jsonl`, "a", 0o600);
const suspended = new Map(); // by job: the run whose handler a wait has stopped
let count = 0;

/** Microseconds by CLOCK_MONOTONIC, which all processes of a machine share. */
const now = () => Number(process.hrtime.bigint() / 1000n);

/** One write for each line, so that a process that is killed loses nothing that it has written. */
const write = (line) => writeSync(file, `${JSON.stringify(line)}\n`);

const stepBegins = (job, name) => write({ kind: "step", job_id: job.id, version: job.version, name, at: now() });

/** Record a run. A handler that the worker starts again in the same run, because its signal came while it was stopped, goes on with its run. */
export const recorded = (handler) => async (job) => {
  const before = suspended.get(job.id);
  suspended.delete(job.id);
  const n = before?.version === job.version ? before.n : ++count;
  if (n !== before?.n) write({ kind: "begun", n, worker: me, job_id: job.id, version: job.version, at: now() });
  const told = () => (job.signal.aborted ? job.signal.reason.name : null);
  try {
    const result = await handler(job);
    write({ kind: "ended", n, at: now(), result, told: told() });
    return result;
  } catch (error) {
    if (error instanceof Suspend) suspended.set(job.id, { version: job.version, n });
    write({ kind: "ended", n, at: now(), error: String(error), told: told() });
    throw error;
  }
};

/** The name of this worker, as its leases have it. */
export const workerName = () => me;

/** What a run returns: no other run can have made it. */
export const output = (job) => ({ job: job.id, run: job.version });

// ── The handlers: their names say what they do ──

async function nap(job) {
  await sleep(job.payload.seconds * 1000, undefined, { signal: job.signal });
  return output(job);
}

export const handlers = {
  async quick(job) {
    return output(job);
  },

  nap,
  brief: nap,

  /** Goes on, whatever it is told. */
  async deaf(job) {
    job.progress(50, { stage: "half", message: "way" });
    job.log("so far, so good");
    await sleep(job.payload.seconds * 1000);
    return output(job);
  },

  /** Blocks the event loop. */
  async blocks(job) {
    const end = performance.now() + job.payload.seconds * 1000;
    while (performance.now() < end);
    return output(job);
  },

  async flaky(job) {
    if (job.version < job.payload.good_from) throw new Error("the bank is away");
    return output(job);
  },

  async hopeless() {
    throw new Final("the card was refused");
  },

  async snoozing(job) {
    if (job.version === 1) throw new Snooze(0.05);
    return output(job);
  },

  async giving_up() {
    throw new Cancelled("the order was withdrawn");
  },

  /** Takes steps: a plain one, one that fails at first and has retries of its own, and a longer one. */
  async stepping(job) {
    const fetched = await job.step("fetch", async () => {
      stepBegins(job, "fetch");
      await sleep(10);
      return job.version;
    });
    const ask = () => {
      stepBegins(job, "ask");
      if (job.version === fetched) throw new Error("the bank is away");
      return fetched;
    };
    const asked = await job.step("ask", ask, { delays: [0.05], maxRetries: 20 });
    const sent = await job.step("send", async () => {
      stepBegins(job, "send");
      await sleep((job.payload.seconds ?? 0.3) * 1000);
      return "sent";
    });
    if (asked !== fetched || sent !== "sent") throw new Final(`the steps returned ${fetched}, ${asked} and ${sent}`);
    return output(job);
  },

  async napping(job) {
    await job.sleep(0.2);
    return output(job);
  },

  /** Takes a step, waits for a signal, and sleeps. Undoes the step if the job is cancelled while it waits. */
  async waiting(job) {
    const reserved = await job.step("reserve", () => {
      stepBegins(job, "reserve");
      return job.version;
    });
    if (reserved > job.version) throw new Final(`run ${reserved} has reserved`);
    try {
      const got = await job.waitFor("go", { timeout: WAIT, default: null });
      await job.sleep(0.05);
      return { ...output(job), got };
    } catch (error) {
      if (error instanceof Cancelled) await job.step("unreserve", () => job.version, { cancelable: false });
      throw error;
    }
  },
};

export const workers = Object.fromEntries(Object.entries(handlers).map(([topic, handler]) => [topic, recorded(handler)]));
