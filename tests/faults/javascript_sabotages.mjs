// Handlers that break promises, one for each topic. The checker must notice every one of them.

import { readFileSync, writeFileSync } from "node:fs";
import { setTimeout as sleep } from "node:timers/promises";
import { handlers, output, recorded, workers as honest, workerName } from "./javascript_app.mjs";

const holderFile = (job) => `${process.env.ROWLOCK_PROOF_RECORD}/holder-${job.id}`;

/** Complete the job in the name of the worker that holds it now, with the result of this run. */
async function steal(job) {
  const { worker, version } = JSON.parse(readFileSync(holderFile(job), "utf8"));
  const body = { worker, id: job.id, version, result: output(job) };
  const headers = { authorization: `Bearer ${process.env.ROWLOCK_TOKEN}`, "content-type": "application/json" };
  const url = process.argv[process.argv.indexOf("--url") + 1];
  const answer = await fetch(`${url}/api/worker/complete`, { method: "POST", headers, body: JSON.stringify(body) });
  if (!answer.ok) throw new Error(`the server has noticed: ${await answer.text()}`);
}

export const workers = {
  ...honest,

  /** The job is completed, and no run is on record: as if the worker had not called the handler. */
  quick: (job) => output(job),

  /** The handler is called twice for one claim. */
  async brief(job) {
    await honest.brief(job);
    return honest.brief(job);
  },

  /** The handler goes on after it has lost its lease, and settles the run of the worker that has the job now. */
  deaf: recorded(async (job) => {
    writeFileSync(holderFile(job), JSON.stringify({ worker: workerName().split("@")[0], version: job.version }));
    const result = await handlers.deaf(job);
    if (job.version === 1) await steal(job);
    return result;
  }),

  /** The handler begins when its lease is lost, and another run has begun. */
  async nap(job) {
    while (job.version === 1 && !job.signal.aborted) await sleep(20);
    return honest.nap(job);
  },

  /** Functions of steps are called although their results are stored. */
  stepping: recorded((job) => handlers.stepping(forgetful(job))),

  /** The result denies the signal that the run has read. */
  waiting: recorded(async (job) => ({ ...(await handlers.waiting(job)), got: null })),
};

function forgetful(job) {
  const step = async (name, run, options) => {
    const result = await run();
    return job.step(name, () => result, options);
  };
  return { id: job.id, version: job.version, payload: job.payload, step };
}
