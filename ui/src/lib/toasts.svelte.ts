// Every action says what it did, and how to undo it where that is possible.

import { ApiError } from "./api";

export interface Toast {
  id: number;
  kind: "done" | "problem";
  text: string;
  detail?: string;
  href?: string;
  undo?: () => Promise<unknown>;
}

let last = 0;

class Toasts {
  items = $state.raw<Toast[]>([]);

  add(toast: Omit<Toast, "id">): void {
    const id = ++last;
    this.items = [...this.items.slice(-3), { ...toast, id }];
    setTimeout(() => this.remove(id), toast.kind === "problem" ? 15_000 : 7_000);
  }

  remove(id: number): void {
    this.items = this.items.filter((one) => one.id !== id);
  }
}

export const toasts = new Toasts();

type More = Pick<Toast, "href" | "undo">;

export function done(text: string, more: More = {}): void {
  toasts.add({ kind: "done", text, ...more });
}

export function failed(error: unknown, what = ""): void {
  const text = error instanceof Error ? error.message : String(error);
  const id = error instanceof ApiError ? error.requestId : null;
  toasts.add({ kind: "problem", text: what ? `${what}: ${text}` : text, ...(id ? { detail: `request ${id}` } : {}) });
}

/** Run the action, and show a toast with its success or its error. */
export async function act<T>(what: () => Promise<T>, said: (told: T) => string, more: More | ((told: T) => More) = {}): Promise<T | undefined> {
  try {
    const told = await what();
    done(said(told), typeof more === "function" ? more(told) : more);
    return told;
  } catch (error) {
    failed(error);
    return undefined;
  }
}
