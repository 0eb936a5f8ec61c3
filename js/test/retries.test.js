import assert from "node:assert/strict";
import { test } from "node:test";

import { ConnectionFailed, NotAuthenticated, RequestError, ServerError, TooMany } from "../dist/index.js";
import { newId } from "../dist/ids.js";
import { client, front, newTopic, nowhere, proxy, silent, TOKEN } from "./helpers.js";

const { jobs, tokens } = client();
const count = async (topic) => (await jobs.list({ topic }).all()).length;

test("lost answers: each job is there once", async () => {
  const line = await proxy();
  try {
    const through = client({}, line.url);
    const topic = newTopic();
    for (let n = 0; n < 3; n++) {
      line.lose = 2;
      const id = await through.jobs.enqueue(topic, { n });
      assert.deepEqual((await jobs.get(id)).payload, { n });
    }
    line.lose = 1;
    assert.equal((await through.jobs.enqueueMany(Array.from({ length: 20 }, (_, n) => ({ topic, payload: { n } })))).length, 20);
    assert.equal(await count(topic), 23);
    assert.equal(line.lost, 7);
    const id = await through.jobs.enqueue(topic, {});
    line.lose = 1;
    assert.equal(await through.jobs.signal(id, "go", 1), true);
    line.lose = 1;
    assert.equal(await through.jobs.delete(id), undefined); // the second try finds no job
    await assert.rejects(jobs.get(id), { code: "not_found" });
  } finally {
    line.close();
  }
});

test("lost answers to a caller who may add jobs, but not see them: the job is there once", async () => {
  const line = await proxy();
  try {
    const { token } = await tokens.create({ name: "blind", scopes: ["enqueue"] });
    const blind = client({ token }, line.url);
    const topic = newTopic();
    line.lose = 1;
    const told = await blind.jobs.enqueue(topic, {}).catch((error) => error.code);
    const [job] = await jobs.list({ topic }).all();
    assert.ok(told === job.id || told === "key_taken", told); // key_taken: the server doesn't tell this caller that the id is taken
    line.lose = 1;
    const many = await blind.jobs.enqueueMany([{ topic, payload: { n: 1 } }, { topic, payload: { n: 2 } }]).catch((error) => error.code);
    assert.ok(many === "key_taken" || many.every((one) => one.id), many);
    assert.equal(await count(topic), 3);
  } finally {
    line.close();
  }
});

test("a request that may not be repeated is not repeated", async () => {
  const line = await proxy();
  try {
    const through = client({}, line.url);
    const topic = newTopic();
    const id = await jobs.enqueue(topic, {});
    line.lose = 1;
    await assert.rejects(through.jobs.clone(id), ConnectionFailed);
    assert.equal(await count(topic), 2);
    await jobs.cancel(id);
    line.lose = 1;
    await assert.rejects(through.jobs.requeue(id), ConnectionFailed);
    assert.equal((await jobs.get(id)).status, "pending");
  } finally {
    line.close();
  }
});

test("no answer within the timeout counts as lost", async () => {
  const mute = await silent();
  try {
    const through = client({ timeout: 0.2, retries: 1 }, mute.url);
    await assert.rejects(through.jobs.stats(), (error) => error instanceof ConnectionFailed && /0\.2 s/.test(error.message));
    assert.equal(mute.sockets.size, 2);
  } finally {
    mute.close();
  }
});

test("429 and 503: it waits as Retry-After says, and sends the request again", async () => {
  const topic = newTopic();
  const busy = await front((_, n) => (n <= 2 ? { status: n === 1 ? 429 : 503, headers: { "retry-after": "1" } } : undefined));
  try {
    const began = Date.now();
    const id = await client({}, busy.url).jobs.enqueue(topic, {});
    assert.ok(Date.now() - began >= 2000);
    assert.equal(busy.seen.length, 3);
    assert.equal((await jobs.get(id)).status, "pending");
  } finally {
    busy.close();
  }
});

test("429 and 5xx that stay become errors", async () => {
  let status = 429;
  const busy = await front(() => ({ status, headers: { "retry-after": "3600" }, body: "<html>proxy</html>" }));
  try {
    const through = client({ retries: 1 }, busy.url);
    const many = await through.jobs.stats().catch((error) => error);
    assert.ok(many instanceof TooMany);
    assert.deepEqual([many.retryAfter, many.code, busy.seen.length], [3600, "", 1]); // too long to wait for
    for (status of [500, 502, 503, 504]) await assert.rejects(through.jobs.stats(), ServerError);
  } finally {
    busy.close();
  }
});

test("a POST without an id is sent again after 429, but not after 503", async () => {
  const id = await jobs.enqueue(newTopic(), {});
  const busy = await front((_, n) => (n === 1 ? { status: 429 } : n === 3 ? { status: 503 } : undefined));
  try {
    const through = client({}, busy.url);
    await through.jobs.cancel(id);
    assert.equal(busy.seen.length, 2);
    await assert.rejects(through.jobs.requeue(id), ServerError);
    assert.equal(busy.seen.length, 3);
  } finally {
    busy.close();
  }
});

test("redirects are not followed: the token stays here", async () => {
  const elsewhere = await front(() => undefined);
  const moved = await front((request) => ({ status: 307, headers: { location: elsewhere.url + request.url } }));
  try {
    await assert.rejects(client({}, moved.url).jobs.enqueue(newTopic(), {}), (error) => error instanceof RequestError && error.code === "redirected");
    assert.equal(elsewhere.seen.length, 0);
  } finally {
    moved.close();
    elsewhere.close();
  }
});

test("a token function is called once, and again when the server refuses the token; concurrent requests share that", async () => {
  const first = await tokens.create({ name: "first", scopes: ["enqueue", "read"] });
  const second = await tokens.create({ name: "second", scopes: ["enqueue", "read"] });
  const asked = [];
  const given = [first, second];
  const shop = client({
    token: async ({ renew, signal }) => {
      assert.ok(signal instanceof AbortSignal);
      asked.push(renew);
      return given[asked.length - 1].token;
    },
  });
  const topic = newTopic();
  const burst = () => Promise.all(Array.from({ length: 20 }, () => shop.jobs.enqueue(topic, {})));
  await burst();
  assert.deepEqual(asked, [false]);
  await tokens.revoke(first.id);
  await burst();
  assert.deepEqual(asked, [false, true]);
  assert.equal(await count(topic), 40);
  await tokens.revoke(second.id);
  given.push(second);
  await assert.rejects(shop.jobs.enqueue(topic, {}), NotAuthenticated);
  assert.deepEqual(asked, [false, true, true]);
});

test("a token function that fails or hangs", async () => {
  const broken = client({ retries: 0, token: () => Promise.reject(new Error("no login")) });
  await assert.rejects(broken.jobs.stats(), (error) => error instanceof ConnectionFailed && error.cause.message === "no login");
  await assert.rejects(client({ retries: 0, timeout: 0.1, token: () => new Promise(() => {}) }).jobs.stats(), ConnectionFailed);
  let fails = 1;
  const later = client({ token: () => (fails-- > 0 ? Promise.reject(new Error("not yet")) : TOKEN) });
  assert.ok((await later.jobs.stats()).pending >= 0);
  await assert.rejects(client({ token: () => null }).jobs.stats(), RequestError); // a caller without a token
});

test("every verb can be aborted, and throws the reason", async () => {
  const mute = await silent();
  const through = client({}, mute.url);
  const id = newId();
  const first = async (iterable) => {
    for await (const one of iterable) return one;
  };
  const verbs = {
    enqueue: (signal) => through.jobs.enqueue("t", {}, { signal }),
    enqueueMany: (signal) => through.jobs.enqueueMany([{ topic: "t", payload: {} }], { signal }),
    get: (signal) => through.jobs.get(id, { signal }),
    list: (signal) => first(through.jobs.list({ signal })),
    page: (signal) => through.jobs.list({ signal }).page(),
    stats: (signal) => through.jobs.stats({ signal }),
    wait: (signal) => through.jobs.wait(id, { signal }),
    watch: (signal) => first(through.jobs.watch(id, { signal })),
    watchFilter: (signal) => first(through.jobs.watch({}, { signal })),
    events: (signal) => first(through.jobs.events(id, { signal })),
    logs: (signal) => first(through.jobs.logs(id, { signal })),
    requeue: (signal) => through.jobs.requeue(id, { signal }),
    cancel: (signal) => through.jobs.cancel(id, { signal }),
    update: (signal) => through.jobs.update(id, { priority: 1, signal }),
    delete: (signal) => through.jobs.delete(id, { signal }),
    clone: (signal) => through.jobs.clone(id, { signal }),
    signal: (signal) => through.jobs.signal(id, "s", 1, { signal }),
    why: (signal) => through.jobs.why(id, { signal }),
    createToken: (signal) => through.tokens.create({ name: "t", scopes: ["read"], signal }),
    listTokens: (signal) => first(through.tokens.list({ signal })),
    revokeToken: (signal) => through.tokens.revoke("x", { signal }),
  };
  try {
    for (const [name, verb] of Object.entries(verbs)) {
      const reason = new Error(`enough of ${name}`);
      const before = new AbortController();
      before.abort(reason);
      await assert.rejects(verb(before.signal), (error) => error === reason, name);
      const during = new AbortController();
      const connected = new Promise((resolve) => mute.server.once("connection", resolve));
      const ends = assert.rejects(verb(during.signal), (error) => error === reason, name);
      await connected;
      during.abort(reason);
      await ends;
      mute.drop();
    }
    const pausing = new AbortController(); // between two tries
    const ends = assert.rejects(client({}, await nowhere()).jobs.stats({ signal: pausing.signal }), { message: "stop" });
    setTimeout(() => pausing.abort(new Error("stop")), 100);
    await ends;
    const slow = client({ timeout: 1, token: () => new Promise(() => {}) }); // while it waits for a token
    const asking = new AbortController();
    const alsoEnds = assert.rejects(slow.jobs.stats({ signal: asking.signal }), { message: "stop" });
    setTimeout(() => asking.abort(new Error("stop")), 50);
    await alsoEnds;
  } finally {
    mute.close();
  }
});

test("one signal for many requests gets one listener", async () => {
  const { getEventListeners } = await import("node:events");
  const warnings = [];
  process.on("warning", (warning) => warnings.push(warning));
  const { signal } = new AbortController();
  const topic = newTopic();
  await Promise.all(Array.from({ length: 50 }, () => jobs.enqueue(topic, {}, { signal })));
  assert.ok(getEventListeners(signal, "abort").length <= 1);
  assert.deepEqual(warnings, []);
});
