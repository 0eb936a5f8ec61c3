// Exports jobs as a file, page by page, up to a limit that a browser can hold.

import { get, type Query } from "./api";
import { stringify, type Json } from "./json";
import type { Job, JobList } from "./types";

export const FORMATS = ["JSON", "NDJSON", "CSV"] as const;
export type Format = (typeof FORMATS)[number];

const MOST = 10_000;
const PAGE = 200;
const CSV = ["id", "topic", "status", "priority", "retries", "version", "created", "run_at", "started_at", "finished_at", "key", "scope", "scope_id", "payload", "result", "last_error"] as const;

export async function exportJobs(filter: Query, format: Format): Promise<number> {
  const found: Job[] = [];
  let cursor: string | null = "";
  while (cursor !== null && found.length < MOST) {
    const page: JobList = await get<JobList>("jobs", { ...filter, limit: PAGE, cursor });
    found.push(...page.items);
    cursor = page.next;
  }
  save(write(found, format), `jobs.${format.toLowerCase()}`);
  return found.length;
}

function write(jobs: Job[], format: Format): string {
  const values = jobs as unknown as Json[];
  if (format === "JSON") return stringify(values, 2);
  if (format === "NDJSON") return values.map((job) => `${stringify(job)}\n`).join("");
  return [CSV.join(","), ...jobs.map((job) => CSV.map((name) => cell(job[name] as Json | undefined)).join(","))].join("\r\n");
}

/** A text that a spreadsheet would run as a formula gets a quote before it. */
function cell(value: Json | undefined): string {
  if (value === null || value === undefined) return "";
  const text = typeof value === "object" ? stringify(value) : String(value);
  const safe = /^[=+\-@\t\r]/.test(text) && typeof value === "string" ? `'${text}` : text;
  return /[",\r\n]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
}

function save(text: string, name: string): void {
  const address = URL.createObjectURL(new Blob([text], { type: "text/plain" }));
  const anchor = document.createElement("a");
  anchor.href = address;
  anchor.download = name;
  anchor.click();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}
