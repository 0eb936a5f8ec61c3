// Who is logged in.

import { get, onSignedOut, post } from "./api";
import { connection } from "./connection.svelte";
import type { Me } from "./types";

class Session {
  state = $state<"unknown" | "out" | "in" | "unreachable">("unknown");
  me = $state.raw<Me | null>(null);
  isSetUp = $state(true); // there is a first superuser
  problem = $state.raw<unknown>(null); // why the user is not known

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

  /** Check that the session still exists. An unreachable server does not end it. */
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

  /** True if a scope or a rule allows it for some jobs at least. */
  may(verb: "read" | "enqueue" | "cancel" | "manage"): boolean {
    return this.me?.can.includes(verb) ?? false;
  }

  /** True if the user may open the screen. A user of the application sees the jobs that the rules show. */
  opens(screen: string): boolean {
    if (["jobs", "job"].includes(screen)) return this.may("read");
    if (screen === "new") return this.may("enqueue");
    if (["new-schedule", "edit-schedule"].includes(screen)) return this.can("schedules");
    return ["audit", "access", "settings"].includes(screen) ? this.seesAll : this.can("read");
  }

  /** True for a superuser who logged in here. The application logs its own users in and out. */
  get isOurs(): boolean {
    return this.me?.kind === "superuser";
  }

  get home(): string {
    return this.can("read") ? "overview" : "jobs";
  }

  /** True if a scope allows it for all jobs. */
  can(scope: string): boolean {
    const { scopes = [], read_only: readOnly = true } = this.me ?? {};
    if (readOnly && scope !== "read") return false;
    return scopes.includes(scope) || scopes.includes("admin") || (scope === "read" && scopes.includes("manage"));
  }

  /** Read-only superusers see the same as admins, and change nothing. */
  get seesAll(): boolean {
    return this.me?.scopes.includes("admin") ?? false;
  }
}

export const session = new Session();
