// The marks that handlers leave for the harness: the twin of benchmarks/marks.py, which describes the files.
// Node has no mmap, so marks gather in memory and a timer writes them, a few milliseconds late. The first mark's file is
// written at once: the harness's clock starts with it.

import { appendFileSync, openSync, writeFileSync, writeSync } from "node:fs";
import { join } from "node:path";

const FLUSH_MS = 5;
const MOST = 4 << 20; // as in marks.py

const folder = process.env.BENCH_MARKS ?? ".";
const marks = Buffer.alloc(MOST);
let file = null;
let pickups = "";
// The part of the marks that isn't written yet: [from, to)
let from = MOST;
let to = 0;

export const monotonicNs = () => Number(process.hrtime.bigint()); // exact for the first 104 days after boot

/** Mark job n as handled. */
export function seen(n) {
  if (file === null) begin();
  marks[n] = 1;
  if (from >= to) setTimeout(flush, FLUSH_MS);
  if (n < from) from = n;
  if (n >= to) to = n + 1;
}

export function pickedUp(n, enqueued) {
  pickups += `${n} ${monotonicNs() - enqueued}\n`;
  seen(n);
}

function begin() {
  const now = monotonicNs();
  file = openSync(join(folder, `seen-${process.pid}`), "w");
  writeFileSync(join(folder, `first-${process.pid}`), String(now));
  process.on("exit", flush);
}

function flush() {
  // Pickups first: the harness reads them after it has counted all marks.
  if (pickups) appendFileSync(join(folder, `pickup-${process.pid}`), pickups);
  pickups = "";
  if (from < to) writeSync(file, marks, from, to - from, from);
  from = MOST;
  to = 0;
}
