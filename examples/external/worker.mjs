// A worker of external_worker_task in JavaScript, without a dependency: Node 20 or later.
//   ROWLOCK_API=http://127.0.0.1:8090 ROWLOCK_TOKEN=rlk_… node worker.mjs
import { randomUUID } from "node:crypto";
import { setTimeout as sleep } from "node:timers/promises";

const { ROWLOCK_API, ROWLOCK_TOKEN, ROWLOCK_LEASE = "30", PACE = "0.5" } = process.env;
const lease = Number(ROWLOCK_LEASE);
const worker = `node-${process.pid}-${randomUUID().slice(0, 8)}`; // a new name for each process
let stopping = false;
process.on("SIGTERM", () => { stopping = true; });

/** Repeat the request until the server answers: every request may be repeated. Return null if the run is lost. */
async function ask(verb, body = {}, { patience = Infinity } = {}) {
  const until = Date.now() + patience * 1000;
  while (Date.now() < until) {
    try {
      const answer = await fetch(`${ROWLOCK_API}/api/worker/${verb}`, {
        method: "POST",
        headers: { authorization: `Bearer ${ROWLOCK_TOKEN}`, "content-type": "application/json" },
        body: JSON.stringify({ worker, ...body }),
        signal: AbortSignal.timeout(60_000),
      });
      if (answer.ok) return answer.status === 204 ? {} : await answer.json();
      if (answer.status === 409) return null;
      if (answer.status < 500 && answer.status !== 429) throw new SyntaxError(`${verb}: ${await answer.text()}`); // a mistake of this worker
    } catch (error) {
      if (error instanceof SyntaxError) throw error;
    }
    await sleep(1000); // no server, or it is busy
  }
  return null;
}

/** The work. `signal` is aborted when the job is cancelled or lost. */
async function render({ target, frames }, report, signal) {
  for (let frame = 1; frame <= frames; frame++) {
    await sleep(1000 * Number(PACE), undefined, { signal });
    await report({ percent: (100 * frame) / frames, message: `frame ${frame} of ${frames}` });
  }
  return { target, frames };
}

async function work({ id, version, payload, timeout }) {
  const run = { id, version };
  const stop = new AbortController();
  let hold = "kept";
  const beating = setInterval(async () => {
    const told = await ask("heartbeat", { runs: [run], lease }, { patience: lease / 2 });
    hold = told?.items[0].hold ?? "lost";
    if (hold !== "kept") stop.abort();
  }, (1000 * lease) / 3);
  const signal = AbortSignal.any([stop.signal, AbortSignal.timeout(1000 * timeout)]);
  try {
    const result = await render(payload, (said) => ask("progress", { ...run, ...said }), signal);
    await ask("complete", { ...run, result });
  } catch (error) {
    if (hold === "cancel") await ask("give-up", run); // acknowledges the cancel
    else if (hold !== "lost") await ask("fail", { ...run, type: error.name, error: String(error.stack) });
  } finally {
    clearInterval(beating);
  }
}

while (!stopping) {
  const claimed = await ask("claim", { topics: ["external_worker_task@1"], lease, wait: 20, runs: [] });
  for (const job of claimed?.items ?? []) await work(job);
}
await ask("goodbye", {}, { patience: 5 });
