// The verbs of benchmarks/systems, for systems that run on Node. A system brings:
//
//   setup(url)                    makes its tables
//   open(url)                     → { ping(), enqueue(payload), enqueueMany(payloads), close() }
//   work(url, handle, stopped)    works until the promise `stopped` resolves; calls handle(payload) for every job

import { setTimeout as sleep } from "node:timers/promises";
import { monotonicNs, pickedUp, seen } from "./marks.mjs";

const number = (name, otherwise) => Number(process.env[name] ?? otherwise);

const url = process.env.BENCH_URL;
const n = number("BENCH_N", 0);
const callers = number("BENCH_CALLERS", 100);
const batch = number("BENCH_BATCH", 1000);
const gap = number("BENCH_GAP", 0.02);
export const options = JSON.parse(process.env.BENCH_OPTIONS ?? "{}");

export async function run(system) {
  const verb = process.argv[2];
  if (verb === "setup") await system.setup(url);
  else if (verb === "worker") await system.work(url, handle, new Promise((stop) => process.once("SIGTERM", stop)));
  else if (verb in ENQUEUEING) await enqueueing(system, ENQUEUEING[verb], verb === "enqueue_concurrent" ? callers : 1);
  else throw new Error(`unknown verb: ${verb}`);
}

function handle({ n, t0 }) {
  if (t0 === undefined) seen(n);
  else pickedUp(n, t0);
}

async function enqueueing(system, enqueueAll, concurrent) {
  const queue = await system.open(url);
  // A pool only connects when it is asked. As many pings at once as there will be callers open all its connections.
  await Promise.all(Array.from({ length: concurrent }, () => queue.ping()));
  const started = monotonicNs();
  await enqueueAll(queue);
  const seconds = (monotonicNs() - started) / 1e9;
  await queue.close();
  console.log(JSON.stringify({ seconds }));
}

const ENQUEUEING = {
  async enqueue_one(queue) {
    for (let i = 0; i < n; i++) await queue.enqueue({ n: i });
  },

  async enqueue_concurrent(queue) {
    let next = 0;
    const caller = async () => {
      while (next < n) await queue.enqueue({ n: next++ });
    };
    await Promise.all(Array.from({ length: callers }, caller));
  },

  async enqueue_bulk(queue) {
    for (let i = 0; i < n; i += batch) {
      await queue.enqueueMany(Array.from({ length: Math.min(batch, n - i) }, (_, k) => ({ n: i + k })));
    }
  },

  async produce(queue) {
    for (let i = 0; i < n; i++) {
      await sleep(1000 * gap * (0.5 + Math.random()));
      await queue.enqueue({ n: i, t0: monotonicNs() });
    }
  },
};
