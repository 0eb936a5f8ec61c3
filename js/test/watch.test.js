import assert from "node:assert/strict";
import { test } from "node:test";

import { NotFound, WaitTimeout } from "../dist/index.js";
import { newId } from "../dist/ids.js";
import { claim, client, newTopic, proxy, serve, until } from "./helpers.js";

const { jobs, tokens } = client();

/** Collect what an iterable yields. */
function collect(iterable) {
  const seen = [];
  const done = (async () => {
    for await (const one of iterable) seen.push(one);
  })();
  done.catch(() => {});
  return { seen, done };
}
const statuses = (seen) => seen.map((job) => job.status);

test("wait answers the job when it has ended", async () => {
  const topic = newTopic();
  const id = await jobs.enqueue(topic, {});
  const waiting = jobs.wait(id, { timeout: 30 });
  const { tell } = await claim(topic);
  await tell("complete", { result: { n: 1 } });
  const job = await waiting;
  assert.deepEqual([job.status, job.result], ["completed", { n: 1 }]);
  assert.equal((await jobs.wait(id)).status, "completed"); // at once
});

test("wait: a timeout, and no such job", async () => {
  const id = await jobs.enqueue(newTopic(), {}, { delay: 600 });
  const began = Date.now();
  await assert.rejects(jobs.wait(id, { timeout: 0.3 }), (error) => error instanceof WaitTimeout && error.message.includes(id));
  assert.ok(Date.now() - began >= 290 && Date.now() - began < 5000);
  await assert.rejects(jobs.wait(id, { timeout: 0 }), WaitTimeout);
  await assert.rejects(jobs.wait(newId(), { timeout: 5 }), NotFound);
});

test("watch yields each state, and ends with the job", async () => {
  const topic = newTopic();
  const id = await jobs.enqueue(topic, {});
  const { seen, done } = collect(jobs.watch(id));
  await until(() => seen.length, "the first state");
  const { tell } = await claim(topic);
  await until(() => statuses(seen).includes("processing"), "processing");
  await tell("progress", { percent: 40, stage: "encoding" });
  await until(() => seen.at(-1).progress === 40, "progress");
  await tell("complete", { result: 1 });
  await done;
  assert.deepEqual([...new Set(statuses(seen))], ["pending", "processing", "completed"]);
  assert.equal(seen.filter((job, n) => JSON.stringify(job) === JSON.stringify(seen[n - 1])).length, 0);
  const { seen: after, done: over } = collect(jobs.watch(id));
  await over;
  assert.deepEqual(statuses(after), ["completed"]); // a job that has ended is told once
});

test("watch: a job that is deleted ends it; one that never was is not found", async () => {
  const id = await jobs.enqueue(newTopic(), {}, { delay: 600 });
  const { seen, done } = collect(jobs.watch(id));
  await until(() => seen.length, "the first state");
  await jobs.delete(id);
  await done;
  assert.deepEqual(statuses(seen), ["pending"]);
  await assert.rejects(collect(jobs.watch(newId())).done, NotFound);
});

test("watch without an id watches nothing", async () => {
  for (const id of [undefined, null, 5, ""]) await assert.rejects(jobs.watch(id).next(), TypeError);
});

test("leaving the loop closes the connection", async () => {
  const line = await proxy();
  try {
    const id = await jobs.enqueue(newTopic(), {}, { delay: 600 });
    for await (const job of client({}, line.url).jobs.watch(id)) {
      assert.equal(job.status, "pending");
      break;
    }
    await until(() => line.closed === 1, "the end of the connection", 3);
  } finally {
    line.close();
  }
});

test("watch goes on over broken connections", async () => {
  const line = await proxy();
  try {
    const topic = newTopic();
    const id = await jobs.enqueue(topic, {});
    const { seen, done } = collect(client({}, line.url).jobs.watch(id));
    await until(() => seen.length, "the first state");
    line.cut();
    const { tell } = await claim(topic); // while the client is not connected
    await until(() => statuses(seen).includes("processing"), "the state after the cut");
    line.cut();
    await tell("complete");
    await done;
    assert.equal(seen.at(-1).status, "completed");
    assert.ok(line.connections >= 3);
  } finally {
    line.close();
  }
});

test("a connection on which nothing comes for 45 seconds is given up", async (t) => {
  const line = await proxy();
  t.mock.timers.enable({ apis: ["setTimeout"] });
  const soon = async (condition, what) => {
    for (const end = Date.now() + 20_000; !condition(); await new Promise(setImmediate)) if (Date.now() > end) throw new Error(`waited for ${what}`);
  };
  try {
    const id = await jobs.enqueue(newTopic(), {}, { delay: 600 });
    const { seen, done } = collect(client({}, line.url).jobs.watch(id));
    await soon(() => seen.length, "the first state");
    line.freeze();
    await jobs.cancel(id);
    t.mock.timers.tick(44_000);
    await new Promise(setImmediate);
    assert.equal(line.connections, 1);
    await soon(() => (t.mock.timers.tick(1000), line.connections === 2), "another connection");
    await done;
    assert.deepEqual(statuses(seen), ["pending", "cancelled"]);
  } finally {
    line.close();
  }
});

test("watch and wait go on when the server restarts", async () => {
  let server = await serve();
  try {
    const topic = newTopic();
    const id = await jobs.enqueue(topic, {});
    const other = client({}, server.url);
    const { seen, done } = collect(other.jobs.watch(id));
    const waiting = other.jobs.wait(id);
    await until(() => seen.length, "the first state");
    await server.stop();
    const { tell } = await claim(topic);
    server = await serve(server.port);
    await until(() => statuses(seen).includes("processing"), "the state after the restart");
    await server.stop("SIGKILL");
    await tell("complete", { result: "late" });
    server = await serve(server.port);
    await done;
    assert.equal(seen.at(-1).status, "completed");
    assert.equal((await waiting).result, "late");
  } finally {
    await server.stop();
  }
});

test("a wait that has only begun goes on when the server is away for longer than the retries take", async () => {
  let server = await serve();
  try {
    const id = await jobs.enqueue(newTopic(), {});
    let sent = 0;
    const counted = (...given) => (sent++, fetch(...given));
    const waiting = client({ retries: 0, fetch: counted }, server.url).jobs.wait(id);
    waiting.catch(() => {}); // the test awaits it below
    await until(() => sent >= 2, "the first answer");
    await server.stop("SIGKILL");
    await until(() => sent >= 4, "tries without a server");
    server = await serve(server.port);
    await jobs.cancel(id);
    assert.equal((await waiting).status, "cancelled");
  } finally {
    await server.stop();
  }
});

test("watch of a filter: the view of its jobs", async () => {
  const topic = newTopic();
  const ids = (await jobs.enqueueMany([1, 2, 3].map((n) => ({ topic, payload: { n } })))).map((one) => one.id);
  const stop = new AbortController();
  const { seen, done } = collect(jobs.watch({ topic, limit: 10 }, { signal: stop.signal }));
  await until(() => seen.length, "the first view");
  assert.deepEqual(seen[0].jobs.map((job) => job.id), [...ids].reverse());
  assert.equal(seen[0].changed.length, 3);
  const { job, tell } = await claim(topic);
  await tell("complete");
  await until(() => seen.at(-1).jobs.find((one) => one.id === job.id)?.status === "completed", "its end");
  await jobs.delete(ids[2]);
  const last = await until(() => (seen.at(-1).jobs.length === 2 ? seen.at(-1) : null), "the delete");
  assert.deepEqual(last.gone, [ids[2]]);
  await jobs.enqueue(topic, {});
  await until(() => seen.at(-1).jobs.length === 3, "a new job");
  stop.abort(new Error("enough"));
  await assert.rejects(done, { message: "enough" });
});

test("a watch whose token is revoked gets another", async () => {
  const first = await tokens.create({ name: "first", scopes: ["read"] });
  const second = await tokens.create({ name: "second", scopes: ["read"] });
  const given = [first.token, second.token];
  const id = await jobs.enqueue(newTopic(), {}, { delay: 600 });
  const asked = [];
  const watcher = client({ token: ({ renew }) => (asked.push(renew), given.shift()) });
  const { seen, done } = collect(watcher.jobs.watch(id));
  await until(() => seen.length, "the first state");
  await tokens.revoke(first.id);
  await until(() => asked.length === 2, "the renewal", 30);
  await jobs.cancel(id);
  await done;
  assert.deepEqual(asked, [false, true]);
  assert.equal(seen.at(-1).status, "cancelled");
});
