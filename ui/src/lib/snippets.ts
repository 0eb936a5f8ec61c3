// A job as code, to be copied.

import { stringify, type Json } from "./json";
import type { Job } from "./types";

type Wanted = Pick<Job, "topic" | "payload"> & Partial<Pick<Job, "priority" | "key" | "max_retries">> & { if_live?: string | null; of_version?: number }; // a job's own version is another number

const origin = (): string => new URL("../", location.href.split("#")[0]).href.replace(/\/$/, "");

function options(job: Wanted): Record<string, Json> {
  return {
    ...(job.priority !== undefined && job.priority !== 100 ? { priority: job.priority } : {}),
    ...(job.key ? { key: job.key } : {}),
    ...(job.if_live && job.if_live !== "debounce" ? { if_live: job.if_live } : {}),
    ...(job.of_version !== undefined ? { version: job.of_version } : {}),
    ...(job.max_retries !== undefined && job.max_retries !== 3 ? { max_retries: job.max_retries } : {}),
  };
}

export function curl(job: Wanted): string {
  const body = stringify({ topic: job.topic, payload: job.payload, ...options(job) }).replaceAll("'", "'\\''");
  return `curl -H "Authorization: Bearer $TOKEN" -H 'Content-Type: application/json' \\\n     -d '${body}' \\\n     ${origin()}/api/jobs/enqueue`;
}

export function python(job: Wanted): string {
  const given = Object.entries(options(job)).map(([name, value]) => `, ${name}=${pythonic(value)}`);
  return `await jobs.enqueue(${pythonic(job.topic)}, ${pythonic(job.payload)}${given.join("")})`;
}

function pythonic(value: Json): string {
  if (Array.isArray(value)) return `[${value.map(pythonic).join(", ")}]`;
  if (value === null) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  if (typeof value === "object" && value.constructor === Object) {
    return `{${Object.entries(value).map(([name, one]) => `${JSON.stringify(name)}: ${pythonic(one)}`).join(", ")}}`;
  }
  return stringify(value);
}

export function typescript(job: Wanted): string {
  const body = stringify({ topic: job.topic, payload: job.payload, ...options(job) }, 2);
  return [
    `const answer = await fetch("${origin()}/api/jobs/enqueue", {`,
    `  method: "POST",`,
    `  headers: { Authorization: \`Bearer \${token}\`, "Content-Type": "application/json" },`,
    `  // As text, so that large integers stay as they are.`,
    `  body: String.raw\`${body.replaceAll("`", "\\u0060").replaceAll("${", "\\u0024{").replaceAll("\n", "\n  ")}\`,`,
    `});`,
  ].join("\n");
}
