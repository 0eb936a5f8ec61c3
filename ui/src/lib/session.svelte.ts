// Who is logged in.

import { get, onSignedOut, post } from "./api";
import { connection } from "./connection.svelte";
import type { Me } from "./types";

class Session {
  state = $state<"unknown" | "out" | "in" | "unreachable">("unknown");
  me = $state.raw<Me | null>(null);
  isSetUp = $state(true); // there is a first superuser
  problem = $state.raw<unknown>(null); // that keeps us from knowing who it is

  constructor() {
    onSignedOut(() => this.leave());
    connection.back(() => {
      if (this.state === "unreachable") void this.look();
    });
  }

  async look(): Promise<void> {
    try {
      const me = await get<Me>("../_/me");
      this.isSetUp = me.set_up ?? true;
      if (me.kind === "anonymous") this.leave();
      else this.enter(me);
    } catch (error) {
      this.problem = error;
      this.state = "unreachable";
    }
  }

  /** Is it still so? A server that can't be reached is no reason to leave. */
  async check(): Promise<void> {
    const me = await get<Me>("../_/me").catch(() => null);
    if (me?.kind === "anonymous") this.leave();
  }

  enter(me: Me): void {
    this.me = me;
    this.state = "in";
  }

  private leave(): void {
    this.me = null;
    this.state = "out";
  }

  async logIn(email: string, password: string): Promise<void> {
    this.enter(await post<Me>("auth/login", { email, password }));
  }

  async logOut(): Promise<void> {
    await post("auth/logout");
    this.leave();
  }

  /** For some jobs at least: by a scope, or by a rule. */
  may(verb: "read" | "enqueue" | "cancel" | "manage"): boolean {
    return this.me?.can.includes(verb) ?? false;
  }

  /** Which screens there are for whom. An application's own user has the jobs that the rules show. */
  opens(screen: string): boolean {
    if (["jobs", "job"].includes(screen)) return this.may("read");
    if (screen === "new") return this.may("enqueue");
    return ["audit", "access", "settings"].includes(screen) ? this.seesAll : this.can("read");
  }

  /** Somebody who has logged in here; others are logged in by the application, and can't be logged out by us. */
  get isOurs(): boolean {
    return this.me?.kind === "superuser";
  }

  get home(): string {
    return this.can("read") ? "overview" : "jobs";
  }

  /** For all jobs, by a scope. */
  can(scope: string): boolean {
    const { scopes = [], read_only: readOnly = true } = this.me ?? {};
    if (readOnly && scope !== "read") return false;
    return scopes.includes(scope) || scopes.includes("admin") || (scope === "read" && scopes.includes("manage"));
  }

  /** Superusers who only look see what admins see, and change nothing. */
  get seesAll(): boolean {
    return this.me?.scopes.includes("admin") ?? false;
  }
}

export const session = new Session();
