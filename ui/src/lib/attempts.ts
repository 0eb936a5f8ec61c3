// A job's history, by runs.

import { between } from "./format";
import type { JobEvent, LiveJob, LogLine } from "./types";
import { waitWords } from "./waits";

export interface Attempt {
  version: number;
  number: number; // counts runs: a claim that was released before its start is no run, and a run after a wait continues its attempt
  resumed: boolean; // it continues after a wait
  worker: string | null;
  claimed: string;
  started: string | null;
  ended: string | null;
  outcome: string; // an event; "running"
  error: string | null;
  waitsFor: string | null; // it has ended to wait for this
  logs: LogLine[];
}

const ENDS = ["completed", "failed", "retried", "step_retried", "snoozed", "waited", "wait_cancelled", "released", "rescued", "cancelled", "expired", "cancel_timed_out"];

const UNSTARTED = ["released", "rescued", "cancelled", "cancel_timed_out"]; // without a start, nothing has run

function fromMicros(at: number): string {
  const whole = Math.floor(at / 1_000_000);
  return `${new Date(whole * 1000).toISOString().slice(0, 19)}.${String(at - whole * 1_000_000).padStart(6, "0")}Z`;
}

/** Return how many runs are charged to a job, with the current one. The version also counts claims without a run. */
export function tries({ version, retries, status, started_at: started }: LiveJob): number {
  return Math.min(version, retries + (started && status !== "pending" ? 1 : 0));
}

/** Newest first. */
export function attempts(events: JobEvent[], logs: LogLine[]): Attempt[] {
  const found = new Map<number, Attempt>();
  for (const { event, version, at, by, data } of events) {
    if (event === "claimed") {
      const started = typeof data["started_at"] === "number" ? fromMicros(data["started_at"]) : null;
      found.set(version, { version, number: 0, resumed: false, worker: by, claimed: at, started, ended: null, outcome: "running", error: null, waitsFor: null, logs: logs.filter((line) => line.version === version) });
    } else if (ENDS.includes(event)) {
      const attempt = found.get(version);
      if (attempt && !attempt.ended) {
        attempt.ended = at;
        attempt.outcome = event;
        attempt.error = typeof data["error"] === "string" ? data["error"] : null;
        attempt.waitsFor = typeof data["waits_for"] === "string" ? data["waits_for"] : null;
      }
    }
  }
  const runs = [...found.values()].filter((run) => run.started || run.logs.length || !UNSTARTED.includes(run.outcome));
  runs.forEach((run, n) => {
    const before = runs[n - 1];
    run.resumed = before !== undefined && ["waited", "wait_cancelled"].includes(before.outcome);
    run.number = before ? before.number + (run.resumed ? 0 : 1) : 1;
  });
  return runs.reverse();
}

export interface Piece {
  kind: "waited" | "ran" | "asleep"; // asleep: by its own will
  tone: "" | "ok" | "bad";
  seconds: number;
  title: string;
}

/** From the enqueue until now: when it waited, when it ran. */
export function strip(created: string, runs: Attempt[], until: string): Piece[] {
  const pieces: Piece[] = [];
  let at = created;
  let slept: string | null = null; // what the job waits for since `at`
  const pause = (until: string): void => {
    pieces.push({ kind: slept === null ? "waited" : "asleep", tone: "", seconds: between(at, until) ?? 0, title: slept === null ? "waited" : waitWords(slept) });
  };
  for (const run of [...runs].reverse()) {
    pause(run.started ?? run.claimed);
    at = run.ended ?? until;
    slept = run.waitsFor;
    const tone = run.outcome === "completed" ? "ok" : ["failed", "retried", "step_retried", "rescued", "expired"].includes(run.outcome) ? "bad" : "";
    pieces.push({ kind: "ran", tone, seconds: between(run.started ?? run.claimed, at) ?? 0, title: `attempt ${run.number}: ${run.outcome}` });
  }
  if (slept !== null) pause(until);
  return pieces.filter((piece) => piece.seconds > 0);
}
