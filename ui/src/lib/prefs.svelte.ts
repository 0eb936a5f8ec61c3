// Preferences, stored in this browser. The page also works in a browser that stores nothing.

function kept<T>(name: string, otherwise: T): T {
  try {
    const text = localStorage.getItem(`rowlock.${name}`);
    return text === null ? otherwise : (JSON.parse(text) as T);
  } catch {
    return otherwise;
  }
}

function keep(name: string, value: unknown): void {
  try {
    localStorage.setItem(`rowlock.${name}`, JSON.stringify(value));
  } catch {
    // private windows
  }
}

export const THEMES = ["system", "light", "dark"] as const;
export type Theme = (typeof THEMES)[number];
export type Times = "relative" | "local" | "utc";

/** A named filter of jobs: the parameters of its address. */
export interface View {
  name: string;
  query: string;
}

class Prefs {
  theme = $state<Theme>(kept("theme", "system"));
  times = $state<Times>(kept("times", "relative"));
  columns = $state<string[]>(kept("columns", ["topic", "payload", "status", "tries", "created", "duration"]));
  views = $state.raw<View[]>(kept("views", []));

  set<K extends "theme" | "times" | "columns" | "views">(name: K, value: Prefs[K]): void {
    (this as Pick<Prefs, K>)[name] = value;
    keep(name, value);
    if (name === "theme") this.paint();
  }

  paint(): void {
    if (this.theme === "system") document.documentElement.removeAttribute("data-theme");
    else document.documentElement.dataset.theme = this.theme;
    dispatchEvent(new Event("rowlock-theme"));
  }
}

export const prefs = new Prefs();
prefs.paint();
