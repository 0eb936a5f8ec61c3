// pg-boss. Jobs are worked by fetch and complete, a batch at a time: its work() fetches at most twice a second, however
// many jobs there are, so it drains several times slower.

import { setTimeout as sleep } from "node:timers/promises";
import PgBoss from "pg-boss";
import { options, run } from "./verbs.mjs";

const QUEUE = "noop";
const BATCH = options.one ? 1 : 500;
const LOOPS = options.one ? 1 : 2; // one fetches while the other completes
const POLL_MS = 500; // the shortest that work() allows

async function start(url, settings) {
  const boss = new PgBoss({ connectionString: url, ...settings });
  boss.on("error", console.error);
  await boss.start();
  return boss;
}

const ENQUEUE_ONLY = { migrate: false, supervise: false, schedule: false };

await run({
  async setup(url) {
    const boss = await start(url, { supervise: false, schedule: false });
    await boss.createQueue(QUEUE);
    await boss.stop({ graceful: false });
  },

  async open(url) {
    const boss = await start(url, ENQUEUE_ONLY);
    return {
      ping: () => boss.getDb().executeSql("SELECT 1"),
      enqueue: (payload) => boss.send(QUEUE, payload),
      enqueueMany: (payloads) => boss.insert(payloads.map((data) => ({ name: QUEUE, data }))),
      close: () => boss.stop({ graceful: false }),
    };
  },

  async work(url, handle, stopped) {
    const boss = await start(url);
    const idle = new AbortController();
    stopped.then(() => idle.abort());

    async function loop() {
      while (!idle.signal.aborted) {
        const jobs = await boss.fetch(QUEUE, { batchSize: BATCH });
        for (const job of jobs) handle(job.data);
        if (jobs.length) await boss.complete(QUEUE, jobs.map((job) => job.id));
        else await sleep(POLL_MS, null, { signal: idle.signal }).catch(() => {}); // rejects when stopped
      }
    }
    await Promise.all(Array.from({ length: LOOPS }, loop));
    await boss.stop({ graceful: false });
  },
});
