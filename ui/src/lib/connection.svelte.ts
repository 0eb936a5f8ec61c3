// Knows whether the server and its database can be reached, from every answer. Sends a probe when no answer has come for
// a while, and repeats it while one of them is away. A hidden tab sends nothing.

export type Part = "server" | "database";

const EVERY = 2000; // milliseconds between two probes
const QUIET = 8000; // milliseconds without an answer, until a probe is sent

class Connection {
  /** When the connection was lost; null while it works. */
  since = $state<number | null>(null);
  missing = $state<Part>("server");
  /** When the server answered last. */
  answered = Date.now();
  private isAsking = false;
  private readonly onBack = new Set<() => void>();

  constructor() {
    setInterval(() => {
      if (!document.hidden && (this.since !== null || Date.now() - this.answered > QUIET)) void this.ask();
    }, EVERY);
  }

  /** Calls `then` each time that the connection is back. */
  back(then: () => void): void {
    this.onBack.add(then);
  }

  works(): void {
    this.answered = Date.now();
    if (this.since === null) return;
    this.since = null;
    for (const then of this.onBack) then();
  }

  fails(missing: Part): void {
    this.missing = missing;
    this.since ??= Date.now();
  }

  /** By the status of an answer and the code of its problem. A 500 does not count: the server has answered. */
  judge(status: number, code: string): void {
    if (code === "store_unavailable") this.fails("database");
    else if ([502, 503, 504].includes(status) && !code) this.fails("server"); // a proxy answers in its place
    else this.works();
  }

  async ask(): Promise<void> {
    if (this.isAsking) return;
    this.isAsking = true;
    try {
      const answer = await fetch("../_/me", { credentials: "same-origin" });
      const told = answer.ok ? {} : ((await answer.json().catch(() => ({}))) as { code?: string });
      this.judge(answer.status, told.code ?? "");
    } catch {
      this.fails("server");
    }
    this.isAsking = false;
  }
}

export const connection = new Connection();
