// The filter of a list of jobs: in the URL, in the filter bar, and in requests.

import type { Query } from "./api";
import { headline } from "./format";
import type { Json } from "./json";
import type { Parameters } from "./router.svelte";
import { STATUSES, type Job, type Status } from "./types";

export interface Field {
  name: string; // in the URL and in the API
  label: string; // in the filter bar
  hint: string;
  many: boolean;
}

export const FIELDS: Field[] = [
  { name: "status", label: "status", hint: "the status of the job", many: true },
  { name: "topic", label: "topic", hint: "what kind of work", many: true },
  { name: "payload", label: "payload", hint: "payload.user.id:7, a path and its value", many: true },
  { name: "error", label: "error", hint: "a part of the last error", many: false },
  { name: "tag", label: "tag", hint: "one of its tags", many: true },
  { name: "key", label: "key", hint: "its idempotency key", many: true },
  { name: "id", label: "id", hint: "of a job", many: true },
  { name: "scope", label: "scope", hint: "user, account, …", many: false },
  { name: "scope_id", label: "scope_id", hint: "whose job it is", many: false },
  { name: "flow_id", label: "flow", hint: "the id of a flow", many: false },
  { name: "fingerprint", label: "failure", hint: "a group of failures", many: false },
  { name: "created_from", label: "created after", hint: "2026-01-31T08:00:00Z, or 15m, 2h, 3d ago", many: false },
  { name: "created_until", label: "created before", hint: "2026-01-31T08:00:00Z, or 15m, 2h, 3d ago", many: false },
  { name: "finished_from", label: "finished after", hint: "2026-01-31T08:00:00Z, or 15m, 2h, 3d ago", many: false },
  { name: "finished_until", label: "finished before", hint: "2026-01-31T08:00:00Z, or 15m, 2h, 3d ago", many: false },
];

export const RANGES = { created: ["created_from", "created_until"], finished: ["finished_from", "finished_until"] } as const;
/** Ages that are chosen with one click. */
export const PRESETS: Record<string, string> = { "15m": "15 minutes", "1h": "hour", "24h": "24 hours", "7d": "7 days" };

export interface Chip {
  field: Field;
  value: string;
}

/** The filters of the bar. Tabs and the time range show the others. */
export function chips(query: URLSearchParams): Chip[] {
  return FIELDS.flatMap((field) => {
    const values = query.getAll(field.name);
    if (field.name === "status" && values.length === 1) return [];
    if (field.name === RANGES.created[0] && values[0]! in PRESETS && !query.has(RANGES.created[1])) return [];
    return values.map((value) => ({ field, value }));
  });
}

/** True if there is a filter other than the status. */
export const isFiltered = (query: URLSearchParams): boolean => FIELDS.some(({ name }) => name !== "status" && query.has(name));
/** True for a filter without an index: one request reads only some thousand jobs. */
export const isSearch = (query: URLSearchParams): boolean => ["payload", "error", "tag"].some((name) => query.has(name));

export const spoken = ({ field, value }: Chip): string => (isTime(field) && AGO.test(value) ? `${value} ago` : value);

/** The parameters for the API. */
export function filterQuery(query: URLSearchParams): Query {
  const found: Query = {};
  for (const { name, many } of FIELDS) found[name] = many ? query.getAll(name) : (query.get(name) ?? undefined);
  for (const { name } of FIELDS.filter(isTime)) if (found[name]) found[name] = moment(found[name] as string);
  return found;
}

/** The times as sent to the API. A cursor needs the same times; "2h ago" would be another time by then. */
export const times = (asked: Query): Parameters => Object.fromEntries(FIELDS.filter(isTime).map(({ name }) => [name, asked[name] as string | undefined]));

/** The same filter for a request body. */
export function filterBody(query: URLSearchParams): Record<string, Json> {
  return Object.fromEntries(Object.entries(filterQuery(query)).filter(([, value]) => value !== undefined && value !== "" && !(Array.isArray(value) && !value.length))) as Record<string, Json>;
}

const UUID = /^[0-9a-f]{8}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{12}$/i;
const AGO = /^(\d+)\s*(s|m|h|d)$/;
const SECONDS: Record<string, number> = { s: 1, m: 60, h: 3600, d: 86_400 };

export const isId = (text: string): boolean => UUID.test(text.trim());

const plain = (name: string): string => name.toLowerCase().replace(/[\s_]/g, "");
const LABELS = FIELDS.flatMap(({ label, name }) => [label, name, name.replaceAll("_", "")]);
const TERM = new RegExp(`(?:^|\\s)(?=(?:${LABELS.join("|")})(?:\\.[^\\s:=]+)?\\s*[:=])`, "gi");

/** "status:failed topic:mail" has two terms. Text in quotes is one term. */
export function terms(text: string): string[] {
  const masked = text.replace(/"[^"]*"/g, (quoted) => "\u0001".repeat(quoted.length));
  const begins = [...new Set([0, ...[...masked.matchAll(TERM)].map((found) => found.index)])];
  return begins.map((from, n) => text.slice(from, begins[n + 1])).filter((term) => term.trim());
}

/** Return the typed term as a change of the URL, or an error text. */
export function typed(text: string, query: URLSearchParams): Parameters | string {
  const after = new URLSearchParams(query);
  const changed = new Set<string>();
  for (const term of terms(text)) {
    const found = /^([a-z _]+?)(?:\.([^:=]+))?\s*[:=]\s*(.+)$/is.exec(term.trim());
    const field = found && FIELDS.find(({ label, name }) => [label, name].some((one) => plain(one) === plain(found[1]!)));
    const { name, many } = field ?? { name: "error", many: false };
    let value = unquoted((field ? found[3]! : term).trim());
    if (name === "payload" && found?.[2]) value = `${found[2]}=${value}`;
    if (name === "status") {
      value = value.toLowerCase().replaceAll(" ", "_");
      if (!STATUSES.includes(value as Status)) return `There is no status “${value}”. These are: ${STATUSES.join(", ")}.`;
    }
    if (!many) after.delete(name);
    if (!after.getAll(name).includes(value)) after.append(name, value);
    changed.add(name);
  }
  return Object.fromEntries([...changed].map((name) => [name, after.getAll(name)]));
}

function unquoted(text: string): string {
  return text.length > 1 && text.startsWith('"') && text.endsWith('"') ? text.slice(1, -1) : text;
}

const isTime = ({ name }: Field): boolean => name.endsWith("_from") || name.endsWith("_until");

/** Ages stay as they were typed: a saved "2h" is always two hours before now. */
function moment(text: string): string {
  const ago = AGO.exec(text);
  if (ago) return new Date(Date.now() - Number(ago[1]) * SECONDS[ago[2]!]! * 1000).toISOString();
  const at = new Date(text);
  return Number.isNaN(at.getTime()) ? text : at.toISOString();
}

/** Values of the jobs on the screen, for suggestions. */
export function known(jobs: Job[]): Record<string, string[]> {
  const found: Record<string, string[]> = {
    status: [...STATUSES],
    error: jobs.flatMap((job) => (job.last_error ? [headline(job.last_error).slice(0, 120)] : [])),
    tag: jobs.flatMap((job) => job.tags),
    key: jobs.flatMap((job) => job.key ?? []),
    scope: jobs.flatMap((job) => job.scope ?? []),
    scope_id: jobs.flatMap((job) => job.scope_id ?? []),
  };
  return Object.fromEntries(Object.entries(found).map(([name, values]) => [name, [...new Set(values)].sort()]));
}

/** Paths in the payloads on the screen, for suggestions. */
export function paths(payloads: Record<string, Json>[]): string[] {
  const found = new Set<string>();
  const visit = (value: Json, path: string, depth: number): void => {
    if (value !== null && typeof value === "object" && !Array.isArray(value) && value.constructor === Object && depth < 4) {
      for (const [name, one] of Object.entries(value)) if (/^[\w-]+$/.test(name)) visit(one, path ? `${path}.${name}` : name, depth + 1);
    } else if (path) {
      found.add(path);
    }
  };
  for (const payload of payloads) visit(payload, "", 0);
  return [...found].sort().slice(0, 50);
}
