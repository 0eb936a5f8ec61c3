import assert from "node:assert/strict";
import { test } from "node:test";

import * as rowlock from "../dist/index.js";
import { claim, client, newTopic, proxy, raw, until } from "./helpers.js";

const { jobs, flows, tokens } = client();

/** Run the next job of the topic to its end. */
async function finish(topic, result, { error } = {}) {
  const { tell } = await claim(topic);
  const told = error ? await tell("fail", { error, final: true }) : await tell("complete", { result });
  assert.equal(told.status, 200);
}

/** Resolve when the nodes have these statuses. A claim starts and stops jobs whose parents have ended. */
const statuses = (id, wanted) =>
  until(async () => {
    await raw("POST", "/api/worker/claim", { worker: "tests", topics: ["nothing"] });
    const found = Object.fromEntries((await flows.get(id)).nodes.map((node) => [node.name, node.status]));
    return Object.entries(wanted).every(([name, status]) => found[name] === status);
  }, JSON.stringify(wanted));

test("a chain runs in order, and hands on results", async () => {
  const [first, second, third] = [newTopic("a"), newTopic("b"), newTopic("c")];
  const before = await jobs.enqueue(first, {});
  const beside = await jobs.enqueue(`${first}.beside`, {});
  const last = { topic: third, payload: { n: { $result: `${second}.n` } }, after: [beside] };
  const made = await jobs.chain([before, { topic: second, payload: { n: 1 } }, last], { name: "three", ifFailed: "hold" });
  assert.deepEqual([made.name, Object.keys(made.jobs)], ["three", [second, third]]);
  await finish(first);
  await statuses(made.id, { [second]: "pending", [third]: "blocked" });
  await finish(second, { n: 7 });
  await statuses(made.id, { [second]: "completed", [third]: "blocked" }); // the chain keeps the job's own `after`
  await finish(`${first}.beside`);
  await statuses(made.id, { [third]: "pending" });
  assert.deepEqual((await jobs.get(made.jobs[third].id)).payload, { n: 7 });
  await finish(third);
  assert.equal((await flows.get(made.id)).flow.status, "completed");
  await assert.rejects(jobs.chain([{ topic: first, payload: {} }, before]), TypeError);
});

test("create, get, list, cancel a branch, requeue, release, delete", async () => {
  const topic = newTopic();
  const name = newTopic("flow");
  const wait = { topic, payload: {}, after: ["pay"] };
  const made = await flows.create({
    name,
    jobs: [{ ...wait, name: "ship", ifFailed: "hold" }, { ...wait, name: "mail", when: "pay.result.amount > 100" }, { topic: `${topic}.pay`, name: "pay" }],
  });
  const { flow, nodes, edges } = await flows.get(made.id);
  assert.deepEqual([flow.status, flow.jobs, nodes.length, edges.length], ["running", 3, 3, 2]);
  assert.equal(edges.find((edge) => edge.child === made.jobs.mail.id).when, "pay.result.amount > 100");
  assert.deepEqual((await flows.list({ name }).all()).map((one) => one.id), [made.id]);
  await jobs.chain([{ topic, payload: {} }], { name, ifFailed: "run" });
  const seen = [];
  for await (const one of flows.list({ name, limit: 1 })) seen.push(one.jobs);
  assert.deepEqual(seen, [1, 3]);

  assert.equal(await flows.cancel(made.id, { node: "mail", reason: "no need" }), 1);
  assert.equal((await jobs.get(made.jobs.mail.id)).cancel_reason, "no need");
  await assert.rejects(flows.cancel(made.id, { node: "nobody" }), (error) => error instanceof rowlock.BadRequest && error.code === "unknown_node");
  assert.equal(await flows.requeue(made.id, { node: "mail" }), 1);
  await statuses(made.id, { mail: "blocked" });
  await finish(`${topic}.pay`, undefined, { error: "no money" });
  await statuses(made.id, { ship: "blocked", pay: "failed", mail: "cancelled" });
  assert.equal((await flows.get(made.id)).flow.status, "held");
  await assert.rejects(flows.delete(made.id), rowlock.Conflict);
  assert.equal((await jobs.release(made.jobs.ship.id, { reason: "it is paid by now" })).id, made.jobs.ship.id);
  await statuses(made.id, { ship: "pending" });
  assert.equal(await flows.cancel(made.id), 1);
  assert.equal(await flows.delete(made.id, { reason: "a test" }), undefined);
  await assert.rejects(flows.get(made.id), rowlock.NotFound);
});

test("a flow is refused as a whole", async () => {
  const topic = newTopic();
  const bad = [{ topic, name: "a", after: ["b"] }, { topic, name: "b", after: ["a"] }];
  await assert.rejects(flows.create({ name: "x", jobs: bad }), (error) => error instanceof rowlock.BadRequest && error.code === "cycle");
  const holder = await jobs.enqueue(topic, {}, { key: "one" });
  const taken = (error) => error instanceof rowlock.Conflict && error.code === "flow_key_taken" && error.message.includes(holder);
  await assert.rejects(jobs.chain([{ topic, payload: {} }, { topic, payload: {}, key: "one" }]), taken);
  assert.equal((await jobs.stats({ topic })).pending, 1);
});

test("a lost answer makes no second flow", async () => {
  const { token } = await tokens.create({ name: "adds only", scopes: ["enqueue"] });
  const lossy = await proxy();
  try {
    for (const [options, seen] of [[{}, 2], [{ token }, 0]]) {
      const topic = newTopic();
      lossy.lose = 1;
      const made = await client(options, lossy.url).jobs.chain([{ topic, payload: { n: 1 } }, { topic, payload: { n: 2 } }], { name: topic });
      assert.equal(lossy.lose, 0);
      assert.equal(Object.keys(made.jobs).length, seen); // a caller who may not see the jobs gets only the id of the flow
      assert.deepEqual((await flows.list({ name: topic }).all()).map((one) => [one.id, one.jobs]), [[made.id, 2]]);
    }
  } finally {
    lossy.close();
  }
});
