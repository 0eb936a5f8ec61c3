// What a job waits for, in words. Waits, and addresses for the outside, are listed among its steps.

import type { JobEvent, JobStep } from "./types";

/** False for waits and addresses. */
export const isRealStep = ({ kind }: JobStep): boolean => kind === "step";

/** False for steps and addresses. */
export const isWait = ({ kind }: JobStep): boolean => kind === "signal" || kind === "sleep";

/** For people: "Wait for decision", "Sleep", "Address for decision". */
export const waitTitle = ({ kind, name }: JobStep): string => (kind === "sleep" ? "Sleep" : `${kind === "signal" ? "Wait" : "Address"} for ${name}`);

/** The signal in `waits_for`: "decision" of "signal:decision". null: it sleeps, or doesn't wait. */
export const signalOf = (waitsFor: string | null | undefined): string | null => (waitsFor?.startsWith("signal:") ? waitsFor.slice("signal:".length) : null);

/** Of a job that waits: "waits for decision", "sleeps". */
export function waitWords(waitsFor: string | null | undefined): string {
  const signal = signalOf(waitsFor);
  return signal !== null ? `waits for ${signal}` : waitsFor === "sleep" ? "sleeps" : "waits";
}

const NEVER = "9000"; // a wait without an end has a time beyond all others

/** The time, or null if it never comes. */
export const comes = (at: string | null | undefined): string | null => (at && at < NEVER ? at : null);

/** The outside may still answer at this address. */
export const isOpenAddress = ({ kind, deadline }: JobStep, now: number): boolean => kind === "callback" && !(deadline && Date.parse(deadline) <= now);

/** What happened, of an event that is about a wait; null: the event is about something else. */
export function waitEvent({ event, status, data }: JobEvent): string | null {
  const text = (name: string): string => (typeof data[name] === "string" ? data[name] : "");
  const waited = signalOf(text("waits_for"));
  switch (event) {
    case "waited":
      return status === "pending" ? `goes on at once: ${waited ?? "a signal"} has come` : waitWords(text("waits_for"));
    case "signalled":
      return `got ${text("signal")}`;
    case "resumed":
      if (text("signal")) return `got ${text("signal")}, goes on`;
      return waited === null ? "goes on after its sleep" : `goes on without ${waited}`;
    case "wait_cancelled":
      return "cancelled where it was to wait";
    default:
      return null;
  }
}
