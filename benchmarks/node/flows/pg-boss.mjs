// A flow of pg-boss: node pg-boss.mjs URL KIND JOBS. Prints [seconds to enqueue, seconds until the last job has run].
// Jobs are worked by fetch and complete, as in ../pg-boss.mjs. By itself pg-boss looks for jobs to unblock every 5 s, and
// once a second at most. Here the worker asks for that (resolveFlow) whenever it finds no job.

import { setTimeout as sleep } from "node:timers/promises";
import { PgBoss } from "pg-boss";

const QUEUE = "noop";
const [url, kind, count] = [process.argv[2], process.argv[3], Number(process.argv[4])];
const joins = kind === "fan-out and join";

const boss = new PgBoss({ connectionString: url });
boss.on("error", console.error);
await boss.start();
await boss.createQueue(QUEUE);

let left = count;
async function loop() {
  while (left > 0) {
    const jobs = await boss.fetch(QUEUE, { batchSize: 500 });
    if (jobs.length) {
      left -= jobs.length;
      await boss.complete(QUEUE, jobs.map((job) => job.id));
    } else {
      await boss.resolveFlow();
      await sleep(5);
    }
  }
}

const loops = [loop(), loop()];
const leaves = Array.from({ length: count - 1 - joins }, (_, n) => `leaf${n}`);
const flow = [{ ref: "root", name: QUEUE, data: {} }];
for (const ref of leaves) flow.push({ ref, name: QUEUE, data: {}, dependsOn: ["root"] });
if (joins) flow.push({ ref: "join", name: QUEUE, data: {}, dependsOn: leaves });
const began = performance.now();
await boss.flow(flow);
const enqueued = performance.now() - began;
await Promise.all(loops);
console.log(JSON.stringify([enqueued / 1000, (performance.now() - began) / 1000]));
await boss.stop({ graceful: false });
process.exit(0);
