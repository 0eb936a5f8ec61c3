// What jobs a list shows, as it stands in the URL, in the filter bar, and in requests.

import type { Query } from "./api";
import { headline } from "./format";
import type { Json } from "./json";
import type { Parameters } from "./router.svelte";
import type { Job } from "./types";

export interface Field {
  name: string; // in the URL and in the API
  label: string; // in the filter bar
  hint: string;
  many: boolean;
}

export const FIELDS: Field[] = [
  { name: "topic", label: "topic", hint: "what kind of work", many: true },
  { name: "payload", label: "payload", hint: "payload.user.id:7, a path and its value", many: true },
  { name: "error", label: "error", hint: "a part of the last error", many: false },
  { name: "tag", label: "tag", hint: "one of its tags", many: true },
  { name: "key", label: "key", hint: "its idempotency key", many: true },
  { name: "id", label: "id", hint: "of a job", many: true },
  { name: "scope", label: "scope", hint: "user, account, …", many: false },
  { name: "scope_id", label: "scope_id", hint: "whose job it is", many: false },
  { name: "fingerprint", label: "failure", hint: "a group of failures", many: false },
  { name: "created_from", label: "created after", hint: "2026-01-31T08:00:00Z, or 15m, 2h, 3d ago", many: false },
  { name: "created_until", label: "created before", hint: "2026-01-31T08:00:00Z, or 15m, 2h, 3d ago", many: false },
  { name: "finished_from", label: "finished after", hint: "2026-01-31T08:00:00Z, or 15m, 2h, 3d ago", many: false },
  { name: "finished_until", label: "finished before", hint: "2026-01-31T08:00:00Z, or 15m, 2h, 3d ago", many: false },
];

export interface Chip {
  field: Field;
  value: string;
}

export function chips(query: URLSearchParams): Chip[] {
  return FIELDS.flatMap((field) => query.getAll(field.name).map((value) => ({ field, value })));
}

export const spoken = ({ field, value }: Chip): string => (isTime(field) && AGO.test(value) ? `${value} ago` : value);

/** What goes to the API; `status` is the tab. */
export function filterQuery(query: URLSearchParams): Query {
  const found: Query = { status: query.getAll("status") };
  for (const { name, many } of FIELDS) found[name] = many ? query.getAll(name) : (query.get(name) ?? undefined);
  for (const { name } of FIELDS.filter(isTime)) if (found[name]) found[name] = moment(found[name] as string);
  return found;
}

/** Its times as they went to the API. A cursor goes on with the same question: "2h ago" would be another one by then. */
export const times = (asked: Query): Parameters => Object.fromEntries(FIELDS.filter(isTime).map(({ name }) => [name, asked[name] as string | undefined]));

/** The same in a body. */
export function filterBody(query: URLSearchParams): Record<string, Json> {
  return Object.fromEntries(Object.entries(filterQuery(query)).filter(([, value]) => value !== undefined && value !== "" && !(Array.isArray(value) && !value.length))) as Record<string, Json>;
}

const UUID = /^[0-9a-f]{8}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{12}$/i;
const AGO = /^(\d+)\s*(s|m|h|d)$/;
const SECONDS: Record<string, number> = { s: 1, m: 60, h: 3600, d: 86_400 };

export const isId = (text: string): boolean => UUID.test(text.trim());

/** What was typed, as a change of the URL; null: it makes no sense yet. */
export function typed(text: string, query: URLSearchParams): Parameters | null {
  const said = text.trim();
  if (!said) return null;
  const found = /^([a-z _A-Z]+?)(?:\.([^:=]+))?\s*[:=]\s*(.+)$/s.exec(said);
  const field = found && FIELDS.find(({ label, name }) => [label, name].includes(found[1]!.trim()));
  if (!found || !field) return { error: said };
  let value = unquoted(found[3]!.trim());
  if (field.name === "payload") value = found[2] ? `${found[2]}=${value}` : value;
  return { [field.name]: field.many ? [...query.getAll(field.name), value] : value };
}

function unquoted(text: string): string {
  return text.length > 1 && text.startsWith('"') && text.endsWith('"') ? text.slice(1, -1) : text;
}

const isTime = ({ name }: Field): boolean => name.endsWith("_from") || name.endsWith("_until");

/** Ages stay as they were typed: a saved "2h" is two hours before whenever it is looked at. */
function moment(text: string): string {
  const ago = AGO.exec(text);
  if (ago) return new Date(Date.now() - Number(ago[1]) * SECONDS[ago[2]!]! * 1000).toISOString();
  const at = new Date(text);
  return Number.isNaN(at.getTime()) ? text : at.toISOString();
}

/** What jobs on the screen have, for suggestions. */
export function known(jobs: Job[]): Record<string, string[]> {
  const found: Record<string, string[]> = {
    error: jobs.flatMap((job) => (job.last_error ? [headline(job.last_error).slice(0, 120)] : [])),
    tag: jobs.flatMap((job) => job.tags),
    key: jobs.flatMap((job) => job.key ?? []),
    scope: jobs.flatMap((job) => job.scope ?? []),
    scope_id: jobs.flatMap((job) => job.scope_id ?? []),
  };
  return Object.fromEntries(Object.entries(found).map(([name, values]) => [name, [...new Set(values)].sort()]));
}

/** Paths into payloads that are on the screen, for suggestions. */
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
