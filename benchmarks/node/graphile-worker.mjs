// graphile-worker, configured as its page on performance advises for the highest throughput.

import pg from "pg";
import { options, run } from "./verbs.mjs";

process.env.NO_LOG_SUCCESS = "1"; // graphile-worker reads it at import, and then writes no log line per job
const { Logger, makeWorkerUtils, run: startWorker } = await import("graphile-worker");

const TASK = "noop";
const PRODUCERS_CONNECTIONS = 10; // as many as other systems get; also graphile-worker's default
const BATCHED = {
  concurrentJobs: 24,
  maxPoolSize: 25,
  localQueue: { size: 500 },
  completeJobBatchDelay: 0,
  failJobBatchDelay: 0,
};
const ONE_AT_A_TIME = { concurrentJobs: 1, maxPoolSize: 2 }; // one more connection, which listens

// graphile-worker's own logger writes to stdout, where the harness reads the answer of the verb.
const logger = new Logger(() => (level, message) => {
  if (level === "error" || level === "warning") console.error(message);
});

function pool(url, max) {
  const made = new pg.Pool({ connectionString: url, max });
  made.on("error", console.error); // without these handlers, graphile-worker warns
  made.on("connect", (client) => client.on("error", console.error));
  return made;
}

async function utilities(url) {
  const pgPool = pool(url, PRODUCERS_CONNECTIONS);
  const utils = await makeWorkerUtils({ pgPool, logger });
  const close = async () => {
    await utils.release();
    await pgPool.end();
  };
  return { pgPool, utils, close };
}

await run({
  async setup(url) {
    const { utils, close } = await utilities(url);
    await utils.migrate();
    await close();
  },

  async open(url) {
    const { pgPool, utils, close } = await utilities(url);
    return {
      ping: () => pgPool.query("SELECT 1"),
      enqueue: (payload) => utils.addJob(TASK, payload),
      enqueueMany: (payloads) => utils.addJobs(payloads.map((payload) => ({ identifier: TASK, payload }))),
      close,
    };
  },

  async work(url, handle, stopped) {
    const settings = options.one ? ONE_AT_A_TIME : BATCHED;
    const pgPool = pool(url, settings.maxPoolSize);
    const worker = await startWorker({
      preset: { worker: settings },
      pgPool,
      logger,
      noHandleSignals: true,
      taskList: { [TASK]: handle },
    });
    await stopped;
    await worker.stop();
    await pgPool.end();
  },
});
