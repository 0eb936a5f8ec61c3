// One stream of server-sent events per page, for the jobs on its screen. Without streams the page polls every few seconds.

import { address, type Query } from "./api";
import { connection } from "./connection.svelte";
import { session } from "./session.svelte";
import type { Counts, LiveJob, Stats } from "./types";

export interface Told {
  items: LiveJob[];
  gone: string[];
  reset: boolean;
}

export type Connection = "connecting" | "live" | "polling" | "lost" | "paused";

const PATIENCE = [500, 1000, 2000, 4000, 8000]; // milliseconds before another try
const POLL = 3000;
const TRIES_BEFORE_POLLING = 3;

class Live {
  state = $state<Connection>("connecting");
  stats = $state.raw<Stats | null>(null); // of the whole queue
  counts = $state.raw<Counts | null>(null); // of the topic, if the screen shows one alone
  behind = $state<number | null>(null);
  paused = $state(false);
  private query: Query | null = null;
  private heard: (told: Told) => void = () => {};
  private source: EventSource | null = null;
  private timer: ReturnType<typeof setTimeout> | undefined;
  private failures = 0;

  constructor() {
    document.addEventListener("visibilitychange", () => {
      if (this.query === null || this.paused) return;
      if (document.hidden) this.close();
      else this.open();
    });
    connection.back(() => {
      this.failures = 0;
      if (!this.paused && !document.hidden) this.open();
    });
  }

  /** Replace the query of the stream. */
  watch(query: Query, heard: (told: Told) => void = () => {}): () => void {
    this.query = query;
    this.heard = heard;
    this.counts = null;
    if (!this.paused) this.open();
    return () => {
      if (this.query === query) {
        this.query = null;
        this.close();
      }
    };
  }

  pause(paused: boolean): void {
    this.paused = paused;
    if (paused) {
      this.close();
      this.state = "paused";
    } else if (this.query !== null) {
      this.open();
    }
  }

  private open(): void {
    this.close();
    if (this.query === null) return;
    if (this.failures >= TRIES_BEFORE_POLLING) {
      void this.poll();
      return;
    }
    if (this.state !== "live") this.state = this.failures ? "lost" : "connecting";
    const source = (this.source = new EventSource(address("events", this.query)));
    source.onopen = () => {
      this.failures = 0;
      this.state = "live";
    };
    source.addEventListener("jobs", (event) => this.tell(event.data as string));
    source.addEventListener("stats", (event) => this.count(event.data as string));
    source.addEventListener("behind", (event) => (this.behind = (JSON.parse(event.data as string) as { since: number }).since));
    source.addEventListener("end", () => this.again());
    source.onerror = () => this.again();
  }

  private count(data: string): void {
    connection.works();
    const told = JSON.parse(data) as Stats;
    const { topic } = this.query ?? {};
    if (Array.isArray(topic) && topic.length === 1) this.counts = told;
    else this.stats = told;
  }

  private tell(data: string): void {
    connection.works();
    this.behind = null;
    this.heard(JSON.parse(data) as Told);
  }

  private again(): void {
    this.close();
    this.state = "lost";
    if (this.failures === 0) void session.check(); // shows the login if the session has ended
    const wait = PATIENCE[Math.min(this.failures++, PATIENCE.length - 1)]!;
    this.timer = setTimeout(() => this.open(), wait * (0.75 + Math.random() / 2));
  }

  /** Poll: request the same events once. Try to stream again now and then. */
  private async poll(): Promise<void> {
    const query = this.query;
    try {
      const answer = await fetch(address("events", { ...query, seconds: 0 }), { credentials: "same-origin" });
      if (!answer.ok) throw new Error(answer.statusText);
      const text = await answer.text();
      if (query !== this.query || this.paused) return;
      this.state = "polling";
      for (const [, name, data] of text.matchAll(/event: (\w+)\ndata: (.*)\n/g)) {
        if (name === "jobs") this.tell(data!);
        else if (name === "stats") this.count(data!);
      }
      if (++this.failures % 10 === 0) this.failures = TRIES_BEFORE_POLLING - 1;
    } catch {
      if (query !== this.query || this.paused) return;
      this.state = "lost";
      this.failures = TRIES_BEFORE_POLLING - 1;
    }
    this.timer = setTimeout(() => this.open(), POLL);
  }

  private close(): void {
    clearTimeout(this.timer);
    this.source?.close();
    this.source = null;
  }
}

export const live = new Live();
