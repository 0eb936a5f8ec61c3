// What the two threads tell each other. The protocol's thread claims, renews and settles. The main thread runs the handlers.

import type { RunBody } from "../api.ts";

export const LEVELS = ["debug", "info", "warning", "error"] as const;
export type Level = (typeof LEVELS)[number];
/** @internal */
export type Why = "cancelled" | "timed_out" | "stopping" | "lost";

/** @internal `n` names a run between the threads: the database may give one id and version twice, after a failover. */
export interface Start {
  n: number;
  run: RunBody;
}

/** @internal What a handler reports. A later one replaces what it names. */
export interface News {
  percent?: number;
  stage?: string;
  message?: string;
  lines?: { text: string; level: Level }[];
}

/** @internal How a run has ended: a call of the protocol. `result`: JSON text. */
export type End =
  | { end: "complete"; result?: string; ran: number }
  | { end: "fail"; type: string; error: string; traceback?: string; final: boolean; ran: number }
  | { end: "snooze"; seconds: number }
  | { end: "retry-step"; step: string; delay: number; error: string; ran: number }
  | { end: "release"; reason: string }
  | { end: "give-up"; reason?: string };

/** @internal */
export type Verb = "steps" | "checkpoint" | "wait" | "callback" | "enqueue";

/** @internal */
export interface Refused {
  message: string;
  status: number;
  code: string;
  field: string | undefined;
}

/** @internal */
export type ToMain =
  /**
   * `taken[i]` belongs to runs[i]: 0 until the main thread begins it (1), or the protocol's thread gives it back (2). `until`: they may begin
   * before this time, by process.hrtime, which both threads share.
   */
  | { kind: "start"; runs: Start[]; taken: Int32Array; until: bigint }
  | { kind: "abort"; n: number; why: Why }
  | { kind: "answer"; call: number; value?: unknown; refused?: Refused; lost?: true; away?: string }
  | { kind: "log"; level: Level; text: string }
  | { kind: "ping" }
  | { kind: "stopped"; problem?: string };

/** @internal */
export type ToThread =
  /** `end` is left out: nothing is to be settled. */
  | { kind: "end"; n: number; end?: End }
  | { kind: "report"; n: number; news: News }
  /** `text`: JSON. `insist`: ask until the server answers, as for the end of a run. */
  | { kind: "ask"; n: number; call: number; verb: Verb; text: string; insist: boolean }
  | { kind: "pong" }
  | { kind: "stop"; grace: number };

/** @internal What the protocol's thread is started with. Times are in seconds. */
export interface Setup {
  url: string;
  token: string | undefined;
  name: string;
  lanes: string[];
  concurrency: number;
  lease: number;
  logLevel: Level;
}

/** @internal Collect messages, and post them as one when the current work is done. */
export class Outbox<T> {
  readonly #post: (messages: T[]) => void;
  #messages: T[] = [];

  constructor(post: (messages: T[]) => void) {
    this.#post = post;
  }

  add(message: T): void {
    if (this.#messages.push(message) === 1) queueMicrotask(() => this.flush());
  }

  flush(): void {
    if (this.#messages.length === 0) return;
    const messages = this.#messages;
    this.#messages = [];
    this.#post(messages);
  }
}
