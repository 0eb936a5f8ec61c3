// Schedules in words, and the actions on them.

import { ApiError, call, post } from "./api";
import { plural, span } from "./format";
import { link } from "./router.svelte";
import { act } from "./toasts.svelte";
import type { CronWhen, EveryWhen, Fire, Schedule } from "./types";

export const HERE = Intl.DateTimeFormat().resolvedOptions().timeZone; // the viewer's zone
export const isCron = (when: CronWhen | EveryWhen): when is CronWhen => "cron" in when;
export const zoneOf = ({ when }: Pick<Schedule, "when">): string => (isCron(when) ? when.zone : "UTC");

const formats = new Map<string, Intl.DateTimeFormat>();

function formatOf(zone: string): Intl.DateTimeFormat {
  let found = formats.get(zone);
  if (!found) {
    const parts = { weekday: "short", year: "numeric", month: "2-digit", day: "2-digit", hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" } as const;
    try {
      found = new Intl.DateTimeFormat("en-GB", { ...parts, timeZone: zone });
    } catch {
      found = new Intl.DateTimeFormat("en-GB", { ...parts, timeZone: "UTC", timeZoneName: "short" }); // this browser doesn't know the zone
    }
    formats.set(zone, found);
  }
  return found;
}

/** "Sun 2026-03-29 03:00", on the clocks of a zone; with seconds only if there are some. */
export function inZone(at: string, zone: string = HERE): string {
  const part = Object.fromEntries(formatOf(zone).formatToParts(new Date(at)).map(({ type, value }) => [type, value]));
  const seconds = part["second"] === "00" ? "" : `:${part["second"]}`;
  return `${part["weekday"]} ${part["year"]}-${part["month"]}-${part["day"]} ${part["hour"]}:${part["minute"]}${seconds}${part["timeZoneName"] ? ` ${part["timeZoneName"]}` : ""}`;
}

/** True if the clocks of both zones show the same at this time. */
export const isSameClock = (at: string, zone: string): boolean => inZone(at, zone) === inZone(at);

export const expression = ({ when }: Pick<Schedule, "when">): string => (isCron(when) ? when.cron : `every ${span(when.every)}`);

// ── What became of a time ──

export const OUTCOMES = ["completed", "failed", "running", "pending", "cancelled", "deleted", "live", "missed", "paused", "disabled", "invalid"] as const;
export type Outcome = (typeof OUTCOMES)[number];

export function outcome({ job_id: job, reason, status }: Pick<Fire, "job_id" | "reason" | "status">): Outcome {
  if (!job) return reason ?? "missed";
  switch (status) {
    case null:
      return "deleted";
    case "failed":
    case "expired":
      return "failed";
    case "completed":
    case "cancelled":
      return status;
    case "pending":
    case "blocked":
      return "pending";
    default:
      return "running";
  }
}

/** For a list of counts: "27 completed, 2 missed". */
export const SHORT: Record<Outcome, string> = {
  completed: "completed", failed: "failed", running: "running", pending: "pending", cancelled: "cancelled", deleted: "with a deleted job",
  live: "skipped", missed: "missed", paused: "while paused", disabled: "disabled", invalid: "refused",
};

export const REASONS: Record<NonNullable<Fire["reason"]>, string> = {
  live: "Skipped: the last job was not over",
  missed: "Missed: no worker and no server was there in time",
  paused: "The schedule was paused",
  disabled: "The topic's template was disabled",
  invalid: "The job was refused",
};

export const KINDS: Record<Fire["kind"], string> = { schedule: "", run_now: "run now", backfill: "backfill" };

/** "completed", "skipped: …", for the title of a square. */
export function outcomeWords(fire: Fire): string {
  const kind = KINDS[fire.kind] ? ` (${KINDS[fire.kind]})` : "";
  if (!fire.job_id) return REASONS[fire.reason ?? "missed"] + kind;
  return (fire.status === null ? "its job is deleted" : fire.status.replace("_", " ")) + kind;
}

export function tally(fires: readonly Fire[]): [Outcome, number][] {
  const counts = new Map<Outcome, number>();
  for (const fire of fires) counts.set(outcome(fire), (counts.get(outcome(fire)) ?? 0) + 1);
  return OUTCOMES.flatMap((one) => (counts.has(one) ? [[one, counts.get(one)!] as [Outcome, number]] : []));
}

export const tallyWords = (fires: readonly Fire[]): string => tally(fires).map(([one, n]) => `${n} ${SHORT[one]}`).join(", ");

export const oldestFirst = (fires: readonly Fire[]): Fire[] => [...fires].sort((a, b) => Date.parse(a.fire_at) - Date.parse(b.fire_at));

// ── Policies ──

export const MISSED: Record<Schedule["missed"], string> = {
  last: "one job, for the newest missed time",
  skip: "no job",
  all: "a job for each missed time, oldest first",
};

export const IF_LIVE_JOB: Record<Schedule["if_live"], string> = {
  allow: "make the next job all the same",
  reject: "skip this time",
  queue: "one job waits until the last one is over",
  replace: "cancel the last one, and make the new one",
};

export const GAP: Record<CronWhen["gap"], string> = {
  next: "fire right after the gap",
  skip: "skip this time",
};

export const OVERLAP: Record<CronWhen["overlap"], string> = {
  first: "fire the first time",
  second: "fire the second time",
  both: "fire both times",
};

export function missedWords({ missed, most, within }: Pick<Schedule, "missed" | "most" | "within">): string {
  if (missed !== "all") return MISSED[missed];
  return `${MISSED.all}, ${plural(most, "job")} at most${within === null ? "" : `, for times of the last ${span(within)}`}`;
}

/** True if the schedule can be changed here, and not in the code only. */
export const isOurs = ({ owner, absent }: Pick<Schedule, "owner" | "absent">): boolean => owner === null || absent;
export const scopeWords = ({ scope, scope_id: id }: Pick<Schedule, "scope" | "scope_id">): string => [scope, id].filter(Boolean).join(" ");

// ── Actions ──

export const path = (id: string, verb = ""): string => `schedules/${encodeURIComponent(id)}${verb && `/${verb}`}`;
const said = (reason?: string): { reason?: string } => (reason ? { reason } : {});

export const scheduleActions = {
  pause: ({ id, name }: Schedule, reason: string, then: () => void) =>
    act(() => post(path(id, "pause"), said(reason)), () => `${name} is paused`, { undo: () => post(path(id, "resume"), { reason: "pause undone" }).then(then) }),
  resume: ({ id, name }: Schedule) => act(() => post(path(id, "resume"), {}), () => `${name} is resumed: the times of the pause are not caught up`),
  runNow: ({ id, name }: Schedule) =>
    act(() => post<Fire>(path(id, "run"), {}), (fire) => (fire.job_id ? `A job of ${name} is made` : `No job: the last job of ${name} is not over`), (fire) => (fire.job_id ? { href: link("job", fire.job_id) } : {})),
  delete: ({ id, name }: Schedule, reason: string) => act(() => call("DELETE", path(id), { query: { reason } }).then(() => true), () => `${name} is deleted`),
};

/** The problem that the server has with a field, without the field's name. */
export function problemAt(error: unknown, ...fields: string[]): string | undefined {
  if (!(error instanceof ApiError) || error.field === null || !fields.includes(error.field)) return undefined;
  return error.message.startsWith(`${error.field}: `) ? error.message.slice(error.field.length + 2) : error.message;
}
