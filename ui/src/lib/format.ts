// Numbers, times and lengths of time, for people.

const whole = new Intl.NumberFormat("en");
const short = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });

export const count = (n: number): string => whole.format(n);
export const compact = (n: number): string => (n < 10_000 ? whole.format(n) : short.format(n));
export const capped = (n: number, isCapped: boolean): string => compact(n) + (isCapped ? "+" : "");
export const percent = (share: number | null): string =>
  share === null ? "–" : `${(share * 100).toFixed(share > 0.9995 && share < 1 ? 2 : share === 1 || share === 0 ? 0 : 1)} %`;
export const plural = (n: number, one: string, many = `${one}s`): string => `${count(n)} ${n === 1 ? one : many}`;

/** Two units at most: 850 ms, 12.3 s, 3 min 20 s, 2 d 4 h. */
export function span(seconds: number | null): string {
  if (seconds === null || !Number.isFinite(seconds)) return "–";
  const s = Math.max(seconds, 0);
  if (s === 0) return "0 s";
  if (s < 0.000_005) return "< 0.01 ms";
  if (s < 1) return s < 0.001 ? `${(s * 1000).toFixed(2)} ms` : `${Math.round(s * 1000)} ms`;
  if (s < 10 && !Number.isInteger(s)) return `${s.toFixed(1)} s`;
  const units: [number, string][] = [[86_400, "d"], [3600, "h"], [60, "min"], [1, "s"]];
  let left = Math.round(s);
  const words: string[] = [];
  for (const [size, name] of units) {
    const n = Math.floor(left / size);
    left -= n * size;
    if (n) words.push(`${n} ${name}`);
    if (words.length && (words.length === 2 || !n)) break;
  }
  return words.join(" ");
}

/** Seconds, to the microsecond: JavaScript's own times end at milliseconds. */
const seconds = (at: string): number => Date.parse(`${at.slice(0, 19)}Z`) / 1000;
const fraction = (at: string): number => Number(`0${/\.\d+/.exec(at)?.[0] ?? ""}`);

export const between = (from: string | null, until: string | null): number | null =>
  from && until ? Math.max(seconds(until) - seconds(from) + fraction(until) - fraction(from), 0) : null;

export function ago(at: string, now: number): string {
  const seconds = (now - Date.parse(at)) / 1000;
  if (Math.abs(seconds) < 1) return "now";
  const length = roughly(Math.abs(seconds));
  return seconds < 0 ? `in ${length}` : `${length} ago`;
}

function roughly(s: number): string {
  if (s < 60) return `${Math.floor(s)} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min`;
  if (s < 172_800) return `${Math.floor(s / 3600)} h`;
  return `${Math.floor(s / 86_400)} d`;
}

const pad = (n: number, digits = 2): string => String(n).padStart(digits, "0");

export function local(at: string): string {
  const d = new Date(at);
  return `${d.getFullYear()}-${pad(d.getMonth() + 1)}-${pad(d.getDate())} ${pad(d.getHours())}:${pad(d.getMinutes())}:${pad(d.getSeconds())}`;
}

const DAY = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short" });

/** 23:41 if it is of today, 14 Nov 23:41 if it is of this year, 14 Nov 2025 23:41. */
export function minute(at: number, now: number): string {
  const [then, today] = [new Date(at), new Date(now)];
  const time = `${pad(then.getHours())}:${pad(then.getMinutes())}`;
  if (then.toDateString() === today.toDateString()) return time;
  const year = then.getFullYear() === today.getFullYear() ? "" : ` ${then.getFullYear()}`;
  return `${DAY.format(then)}${year} ${time}`;
}

export const utc = (at: string): string => `${new Date(at).toISOString().slice(0, 19).replace("T", " ")}Z`;

export function clock(at: string): string {
  const d = new Date(at);
  return `${pad(d.getHours())}:${pad(d.getMinutes())}:${pad(d.getSeconds())}.${pad(d.getMilliseconds(), 3)}`;
}

/** The last line of a traceback says what happened. */
export const headline = (error: string): string => error.trimEnd().split("\n").at(-1)!.trim();

export const words = (name: string): string => name.replaceAll("_", " ");

/** For <input type="datetime-local">, and back. */
export const toInput = (at: Date): string => local(at.toISOString()).replace(" ", "T").slice(0, 16);
export const fromInput = (text: string): string | undefined => (text ? new Date(text).toISOString() : undefined);
