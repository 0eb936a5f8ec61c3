// Templates in words, and the actions on them.

import { patch, post } from "./api";
import { capped, plural, span, words } from "./format";
import { stringify } from "./json";
import { rows } from "./schema";
import { act } from "./toasts.svelte";
import type { Template } from "./types";

const MOST_DELAYS = 5; // that are spelled out

/** "after 30 s, 2 min": the delays before the retries, as far as there are retries. */
export function retryWords({ max_retries: most, retry }: Pick<Template, "max_retries" | "retry">): string {
  if (most === 0) return "none: the first failure is final";
  const delays = Array.from({ length: Math.min(most, MOST_DELAYS) }, (_, n) => delay(retry, n + 1));
  const last = Array.isArray(retry) && most > retry.length ? retry.at(-1)! : null;
  const told = last === null ? delays : delays.slice(0, (retry as number[]).length);
  const rest = last !== null && told.length ? (told.length === 1 ? " each time" : `, then every ${span(last)}`) : most > MOST_DELAYS ? " …" : "";
  const chance = !Array.isArray(retry) && "exponential" in retry && retry.exponential.jitter ? `, less up to ${Math.round(retry.exponential.jitter * 100)} % by chance` : "";
  return `${most}: after ${told.map(span).join(", ")}${rest}${chance}`;
}

/** The first delays, for a list. */
export function delaysInShort({ max_retries: most, retry }: Template): string {
  const delays = Array.from({ length: Math.min(most, 2) }, (_, n) => span(delay(retry, n + 1)));
  return `${delays.join(", ")}${most > 2 ? " …" : ""}`;
}

function delay(retry: Template["retry"], n: number): number {
  if (Array.isArray(retry)) return retry[Math.min(n, retry.length) - 1] ?? 0;
  if ("quadratic" in retry) return retry.quadratic.unit * n * n;
  const { base, factor, cap } = retry.exponential;
  return Math.min(cap, base * factor ** (n - 1));
}

export function cancelWords({ cancel: { supported, grace, mode } }: Template): string {
  if (!supported) return "only before the first run";
  const after = grace === null ? "after the worker's own grace" : `after ${span(grace)}`;
  return mode === "kill" ? `the handler is asked to stop; ${after} its process is killed` : grace === null ? "the handler is asked to stop" : `the handler is asked to stop, and has ${span(grace)} for it`;
}

export function keyWords({ key }: Pick<Template, "key">): string {
  if (key === null) return "only if the caller gives one";
  return key.length ? `made from ${key.join(", ")}` : "one per scope";
}

export const IF_LIVE: Record<string, string> = {
  reject: "no new job: the answer is the live job with the same key",
  queue: "the new job stands in line behind the others with the same key",
  replace: "the new job replaces the others with the same key",
  debounce: "a newer enqueue replaces the job with the same key that has not started",
};

const debounceWords = ({ seconds, at_most: most }: NonNullable<Template["debounce"]>): string =>
  `debounce: ${IF_LIVE["debounce"]}; it runs ${span(seconds)} later${typeof most === "number" ? `, at most ${span(most)} after the first` : ""}`;

const policyWords = ({ if_live: policy, key, debounce }: Template): string =>
  debounce ? debounceWords(debounce) : policy ? `${policy}: ${IF_LIVE[policy]}` : key === null ? "reject, for a job with a key" : `reject: ${IF_LIVE["reject"]}`;

/** All fields of a template that are not a schema or steps, in words. */
export function facts(template: Template): [name: string, said: string][] {
  return [
    ["Retries", retryWords(template)],
    ["Timeout", `${span(template.timeout)} for one attempt`],
    ["Priority", String(template.priority)],
    ["Cancel", cancelWords(template)],
    ["Key", keyWords(template)],
    ["If live", policyWords(template)],
    ...(template.throttle === null ? [] : [["Throttle", `one job per key in ${span(template.throttle)}`] as [string, string]]),
    ["Once", template.once ? "one job per key, ever" : "no"],
    ["Schedules", template.schedulable ? "allowed" : "refused"],
    ["Retention", template.retention === null ? "as for all topics" : `finished jobs stay for ${span(template.retention)}`],
    ...(template.limits.length ? [["Limits", stringify(template.limits)] as [string, string]] : []),
  ];
}

/** "214 jobs of version 1: no live worker has it"; undefined if nothing waits in vain. */
export function stranded({ ready, ready_capped: isCapped, version, workers }: Template): string | undefined {
  if (!ready || workers.length) return undefined;
  return `${capped(ready, isCapped)} ${ready === 1 ? "job" : "jobs"} of version ${version}: no live worker has it`;
}

export const stepWords = ({ timeout, weight, cancelable }: Template["steps"][number]): string =>
  [timeout === undefined || timeout === null ? "" : `timeout ${span(timeout)}`, (weight ?? 1) === 1 ? "" : `weight ${weight}`, (cancelable ?? true) ? "" : "finishes before a cancel"].filter(Boolean).join(", ");

export interface Compared {
  group: string;
  name: string;
  left: string;
  right: string;
}

/** Both versions, field by field. An empty text: this version has no such field. */
export function compare(left: Template, right: Template): Compared[] {
  const groups: [string, (template: Template) => [string, string][]][] = [
    ["Definition", (one) => [["Title", one.title ?? ""], ["Description", one.description ?? ""], ["Enabled", one.enabled ? "yes" : "no"], ["Source", one.source], ...facts(one)]],
    ["Payload", (one) => schemaFacts(one.schema)],
    ["Result", (one) => schemaFacts(one.result)],
    ["Steps", (one) => one.steps.map((step, n) => [step.name, [`${n + 1}.`, step.title, stepWords(step)].filter(Boolean).join(" ")])],
  ];
  return groups.flatMap(([group, tell]) => {
    const [a, b] = [tell(left), tell(right)];
    const [inLeft, inRight] = [new Map(a), new Map(b)];
    const names = [...a.map(([name]) => name), ...b.map(([name]) => name).filter((name) => !inLeft.has(name))];
    return names.map((name) => ({ group, name, left: inLeft.get(name) ?? "", right: inRight.get(name) ?? "" }));
  });
}

const schemaFacts = (schema: Template["schema"]): [string, string][] =>
  schema ? rows(schema).map((row) => [row.path, [row.required ? `${row.type}, required` : row.type, ...row.notes, row.description].filter(Boolean).join(" · ")]) : [];

export function schemaWords(schema: Template["schema"]): string {
  if (!schema) return "free-form";
  const top = rows(schema).filter((row) => row.depth === 0);
  return top.length ? plural(top.length, "field") : "no fields";
}

const path = (topic: string, rest: string | number): string => `templates/${topic.split("/").map(encodeURIComponent).join("/")}/${rest}`;

export const templateActions = {
  switch: ({ topic, version }: Template, to: "enable" | "disable", reason: string, then: () => void) => {
    const send = (verb: string, why?: string): Promise<unknown> => post(path(topic, verb), { version, ...(why ? { reason: why } : {}) });
    return act(() => send(to, reason), () => (to === "enable" ? `${topic}, version ${version}, is enabled` : `${topic}, version ${version}, is disabled: new jobs are refused`), {
      undo: () => send(to === "enable" ? "disable" : "enable", `${to} undone`).then(then),
    });
  },
  change: ({ topic, version }: Template, body: unknown) => patch<Template>(path(topic, version), body),
};

export const sourceWords = (source: string): string => (source === "code" ? "from code" : source === "api" ? "from the API" : words(source));
