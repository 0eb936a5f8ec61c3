// BullMQ on Redis, or on PostgreSQL with BullMQ's own backend. Only the connection differs.

import { createPostgresBackend, Queue, Worker } from "bullmq";
import { options, run } from "./verbs.mjs";

const QUEUE = "noop";
const CONNECTIONS = 10; // to PostgreSQL: as many as other systems get

function backend(url, more) {
  if (options.backend === "postgres") return [{ connection: { connectionString: url, max: CONNECTIONS, ...more } }, createPostgresBackend];
  return [{ connection: { url, maxRetriesPerRequest: null } }]; // null: BullMQ's workers require it
}

async function open(url, more) {
  const [settings, factory] = backend(url, more);
  const queue = new Queue(QUEUE, settings, factory);
  queue.on("error", console.error);
  await queue.waitUntilReady();
  return queue;
}

await run({
  async setup(url) {
    if (options.backend !== "postgres") return;
    const queue = await open(url, { migrate: true });
    await queue.close();
  },

  async open(url) {
    const queue = await open(url);
    return {
      ping: () => queue.getWaitingCount(),
      enqueue: (payload) => queue.add(QUEUE, payload),
      enqueueMany: (payloads) => queue.addBulk(payloads.map((data) => ({ name: QUEUE, data }))),
      close: () => queue.close(),
    };
  },

  async work(url, handle, stopped) {
    const [settings, factory] = backend(url);
    const { concurrency } = options;
    const worker = new Worker(QUEUE, async (job) => handle(job.data), { ...settings, concurrency }, factory);
    worker.on("error", console.error);
    await stopped;
    await worker.close();
  },
});
