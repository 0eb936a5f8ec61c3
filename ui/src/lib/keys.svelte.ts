// The keyboard: the keys of each screen, and the targets of g.

import { live } from "./live.svelte";
import { prefs, THEMES } from "./prefs.svelte";
import { go, link } from "./router.svelte";
import { session } from "./session.svelte";

export type Keys = Record<string, () => void>;

export const JUMPS: Record<string, [screen: string, name: string]> = {
  o: ["overview", "Overview"],
  j: ["jobs", "Jobs"],
  f: ["failures", "Failures"],
  t: ["topics", "Topics"],
  p: ["templates", "Templates"],
  c: ["schedules", "Schedules"],
  l: ["flows", "Flows"],
  m: ["limits", "Limits"],
  w: ["workers", "Workers"],
  b: ["bulk", "Bulk actions"],
  a: ["audit", "Audit"],
  k: ["access", "Access & tokens"],
  s: ["settings", "Settings"],
  n: ["new", "New job"],
};

class Keyboard {
  overlay = $state<"" | "palette" | "help">("");
  private screen: Keys = {};
  isSearching = false; // focus the filter of jobs when it appears
  private jumping = -Infinity;

  constructor() {
    addEventListener("keydown", (event) => this.pressed(event));
  }

  /** While a screen is shown, these are its keys. */
  use(keys: Keys): () => void {
    this.screen = keys;
    return () => {
      if (this.screen === keys) this.screen = {};
    };
  }

  private pressed(event: KeyboardEvent): void {
    if ((event.ctrlKey || event.metaKey) && event.key.toLowerCase() === "k") {
      event.preventDefault();
      this.overlay = this.overlay === "palette" ? "" : "palette";
      return;
    }
    if (event.ctrlKey || event.metaKey || event.altKey || isTyping(event.target) || document.querySelector("dialog[open]")) return;
    const jump = JUMPS[event.key];
    if (jump && session.opens(jump[0]) && event.timeStamp - this.jumping < 1500) {
      this.jumping = -Infinity;
      event.preventDefault();
      go(link(jump[0]));
    } else if (event.key === "g") {
      this.jumping = event.timeStamp;
    } else if (event.key === "?") {
      this.overlay = "help";
    } else if (event.key === ".") {
      live.pause(!live.paused);
    } else if (event.key === "t") {
      prefs.set("theme", THEMES[(THEMES.indexOf(prefs.theme) + 1) % THEMES.length]!);
    } else if (event.key === "/" && !this.screen["/"]) {
      event.preventDefault();
      this.isSearching = true;
      go(link("jobs"));
    } else if (this.screen[event.key]) {
      event.preventDefault();
      this.screen[event.key]!();
    }
  }
}

function isTyping(target: EventTarget | null): boolean {
  return target instanceof HTMLElement && (/^(TEXTAREA|SELECT)$/.test(target.tagName) || (target instanceof HTMLInputElement && !/^(checkbox|radio|button)$/.test(target.type)));
}

export const keyboard = new Keyboard();
