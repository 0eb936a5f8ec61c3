// The facts of an audit entry beside who, what and why: one line each.

import { local, words } from "./format";
import { stringify, type Json } from "./json";
import type { Audit } from "./types";

const TIMES = ["run_at"]; // in microseconds
const SHOWN_ELSEWHERE = ["bulk", "count", "done", "left"];

function short(name: string, value: Json | undefined): string {
  if (value === undefined || value === null) return "–";
  if (TIMES.includes(name) && typeof value === "number") return local(new Date(value / 1000).toISOString());
  if (typeof value === "string") return value === "" ? "empty" : value;
  if (Array.isArray(value)) return value.length ? value.map((one) => short("", one)).join(", ") : "none";
  return typeof value === "boolean" ? (value ? "yes" : "no") : stringify(value);
}

const isObject = (value: Json | undefined): value is Record<string, Json> => value !== null && typeof value === "object" && !Array.isArray(value) && value.constructor === Object;

export function facts({ data }: Audit): string[] {
  const { before, after, ...rest } = data;
  const changes = isObject(after)
    ? Object.entries(after).map(([name, now]) => `${words(name)}: ${isObject(before) ? `${short(name, before[name])} → ` : ""}${short(name, now)}`)
    : [];
  const others = Object.entries(isObject(after) ? rest : data).filter(([name]) => !SHOWN_ELSEWHERE.includes(name));
  return [
    ...changes,
    ...others.flatMap(([name, value]) =>
      isObject(value) ? Object.entries(value).map(([part, one]) => `${words(name)}, ${words(part)}: ${short(part, one)}`) : [`${words(name)}: ${short(name, value)}`],
    ),
  ];
}
