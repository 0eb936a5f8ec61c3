import assert from "node:assert/strict";
import { test } from "node:test";

import * as rowlock from "../dist/index.js";
import { newId } from "../dist/ids.js";
import { claim, client, COOKIE, newTopic, nowhere, raw, TOKEN, URL_ } from "./helpers.js";

const { jobs, tokens } = client();
const UUID7 = /^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$/;

test("enqueue takes every option, and answers the id", async () => {
  const topic = newTopic();
  const id = newId();
  const options = {
    id, runAt: new Date("2030-01-01T00:00:00Z"), maxRetries: 7, priority: "backfill", key: "k", ifLive: "queue", scope: "user", scopeId: "7",
    expiresAt: "2031-01-01T00:00:00Z", timeout: 90, tags: ["a", "b"], version: undefined,
  };
  assert.equal(await jobs.enqueue(topic, { a: { at: new Date(0) } }, options), id);
  const job = await jobs.get(id);
  assert.deepEqual(job.payload, { a: { at: "1970-01-01T00:00:00.000Z" } });
  const told = [job.run_at, job.max_retries, job.key, job.scope, job.scope_id, job.expires_at, job.timeout, job.tags];
  assert.deepEqual(told, ["2030-01-01T00:00:00Z", 7, "k", "user", "7", "2031-01-01T00:00:00Z", 90, ["a", "b"]]);
  const later = await jobs.get(await jobs.enqueue(topic, {}, { delay: 600 }));
  assert.ok(Date.parse(later.run_at) > Date.now() + 500_000);
});

test("a key that a live job has answers that job", async () => {
  const topic = newTopic();
  const first = await jobs.enqueue(topic, { n: 1 }, { key: "one" });
  assert.equal(await jobs.enqueue(topic, { n: 2 }, { key: "one" }), first);
});

test("debounce and throttle", async () => {
  const topic = newTopic();
  const debounce = { seconds: 30, atMost: 300 };
  const first = await jobs.enqueue(topic, { n: 1 }, { key: "doc", debounce });
  assert.equal(await jobs.enqueue(topic, { n: 2 }, { key: "doc", debounce }), first);
  const [again] = await jobs.enqueueMany([{ topic, payload: { n: 3 }, key: "doc", debounce }]);
  assert.deepEqual([again.id, again.existing], [first, true]);
  const job = await jobs.get(first);
  assert.deepEqual([job.payload, job.if_live], [{ n: 3 }, "debounce"]);
  const mail = await jobs.enqueue(topic, { n: 1 }, { key: "mail", throttle: 3600 });
  assert.equal(await jobs.enqueue(topic, { n: 2 }, { key: "mail", throttle: 3600 }), mail);
  assert.deepEqual((await jobs.get(mail)).payload, { n: 1 });
});

test("ids sort by creation, and are version 7", async () => {
  const ids = Array.from({ length: 10_000 }, newId);
  assert.deepEqual([...ids].sort(), ids);
  assert.equal(new Set(ids).size, ids.length);
  assert.ok(ids.every((id) => UUID7.test(id)));
  const topic = newTopic();
  const id = await jobs.enqueue(topic, {});
  assert.match(id, UUID7);
  assert.ok(Math.abs(Number.parseInt(id.replaceAll("-", "").slice(0, 12), 16) - Date.now()) < 60_000);
});

test("enqueueMany adds thousands, in order, and by size", async () => {
  const topic = newTopic();
  const many = Array.from({ length: 2500 }, (_, n) => ({ topic, payload: { n }, tags: ["many"] }));
  const told = await jobs.enqueueMany(many);
  assert.equal(told.length, 2500);
  assert.equal(new Set(told.map((one) => one.id)).size, 2500);
  assert.ok(told.every((one) => one.topic === topic && one.existing === false && one.status === "pending"));
  assert.equal((await jobs.get(told[1234].id)).payload.n, 1234);
  assert.equal((await jobs.stats({ topic })).pending, 2500);

  const large = newTopic();
  const text = "ü".repeat(150_000); // 300 kB: three fit into a request
  assert.equal((await jobs.enqueueMany(Array.from({ length: 7 }, (_, n) => ({ topic: large, payload: { n, text } })))).length, 7);
  assert.equal((await jobs.stats({ topic: large })).pending, 7);
  assert.deepEqual(await jobs.enqueueMany([]), []);
});

test("enqueueMany: a request is added as a whole or not at all", async () => {
  const topic = newTopic();
  const bad = [{ topic, payload: {} }, { topic, payload: {}, maxRetries: -1 }];
  await assert.rejects(jobs.enqueueMany(bad), (error) => error instanceof rowlock.BadRequest && /max_retries/.test(error.field));
  assert.equal((await jobs.stats({ topic })).pending, 0);
  const late = Array.from({ length: 1002 }, (_, n) => ({ topic, payload: {}, maxRetries: n === 1001 ? -1 : 1 }));
  await assert.rejects(jobs.enqueueMany(late), { field: "jobs[1001].max_retries", message: /^jobs\[1001\]\.max_retries/ });
  assert.equal((await jobs.stats({ topic })).pending, 1000);
});

test("list: all pages, one page, filters", async () => {
  const topic = newTopic();
  const told = await jobs.enqueueMany(Array.from({ length: 450 }, (_, n) => ({ topic, payload: { n }, tags: n % 2 ? ["odd"] : ["even"] })));
  const seen = [];
  for await (const job of jobs.list({ topic })) seen.push(job.id);
  assert.deepEqual(seen, told.map((one) => one.id).reverse());
  const sizes = [];
  for await (const page of jobs.list({ topic, limit: 150 }).pages()) sizes.push(page.items.length);
  assert.deepEqual(sizes, [150, 150, 150]);
  const page = await jobs.list({ topic, limit: 3 }).page();
  assert.equal(page.total, 450);
  assert.deepEqual(page.items.map((job) => job.payload.n), [449, 448, 447]);
  const next = await jobs.list({ topic, limit: 3 }).page(page.next);
  assert.deepEqual(next.items.map((job) => job.payload.n), [446, 445, 444]);
  assert.equal((await jobs.list({ topic, tag: "odd", status: ["pending", "failed"] }).all()).length, 225);
  assert.equal((await jobs.list({ topic, payload: "n=17" }).all()).length, 1);
  assert.equal((await jobs.list({ topic, createdFrom: new Date(Date.now() + 3_600_000) }).all()).length, 0);
  assert.equal((await jobs.list({ topic, id: [seen[0], seen[1]] }).all()).length, 2);
});

test("stats", async () => {
  const topic = newTopic();
  await jobs.enqueue(topic, {});
  const stats = await jobs.stats({ topic });
  assert.equal(stats.pending, 1);
  assert.equal(stats.success_rate, null);
});

test("cancel, requeue, update, clone, delete", async () => {
  const topic = newTopic();
  const id = await jobs.enqueue(topic, { n: 1 }, { delay: 600 });
  assert.equal((await jobs.update(id, { priority: 5, runAt: new Date("2030-01-01T00:00:00Z"), reason: "later" })).run_at, "2030-01-01T00:00:00Z");
  assert.equal((await jobs.cancel(id, { reason: "no longer needed" })).status, "cancelled");
  assert.equal((await jobs.get(id)).cancel_reason, "no longer needed");
  await assert.rejects(jobs.update(id, { priority: 6 }), rowlock.Conflict);
  const again = await jobs.requeue(id, { payload: { n: 2 }, maxRetries: undefined, reason: "needed after all" });
  assert.deepEqual([again.status, again.payload], ["pending", { n: 2 }]);
  const copy = await jobs.clone(id, { tags: ["copy"] });
  assert.deepEqual([(await jobs.get(copy)).payload, (await jobs.get(copy)).tags], [{ n: 2 }, ["copy"]]);
  assert.equal(await jobs.delete(id, { reason: "a test" }), undefined);
  await assert.rejects(jobs.get(id), rowlock.NotFound);
  await assert.rejects(jobs.delete(id), rowlock.NotFound);
});

test("events, logs, why", async () => {
  const topic = newTopic();
  const id = await jobs.enqueue(topic, {});
  assert.equal((await jobs.why(id)).code.length > 0, true);
  const { tell } = await claim(topic);
  await tell("log", { lines: Array.from({ length: 100 }, (_, n) => ({ text: `line ${n}` })) });
  await tell("complete", { result: { done: true } });
  const names = (await jobs.events(id).all()).map((one) => one.event);
  assert.equal(names[0], "enqueued");
  assert.ok(names.includes("completed"), names.join());
  const lines = (await jobs.logs(id).all()).map((line) => line.text);
  assert.equal(lines.length, 100);
  assert.equal((await jobs.logs(id).page()).items.length, 100);
  assert.deepEqual((await jobs.get(id)).result, { done: true });
});

test("signals: by id, by key, each once", async () => {
  const topic = newTopic();
  const id = await jobs.enqueue(topic, {}, { key: "order-7", scope: "shop", scopeId: "1" });
  const { tell } = await claim(topic);
  assert.equal((await tell("wait", { signal: "paid", position: 1 })).body.state, "waiting");
  assert.equal((await jobs.get(id)).waits_for, "signal:paid");
  assert.equal(await jobs.signal(id, "note", { n: 1 }, { id: "mine" }), true);
  assert.equal(await jobs.signal(id, "note", { n: 1 }, { id: "mine" }), false);
  assert.equal(await jobs.signal({ topic, key: "order-7", scope: "shop", scopeId: "1" }, "paid", { amount: 3 }), true);
  const next = await claim(topic);
  const got = await next.tell("wait", { signal: "paid", position: 1 });
  assert.deepEqual([got.body.state, got.body.data], ["ended", { amount: 3 }]);
  await assert.rejects(jobs.signal({ topic, key: "order-8" }, "paid"), rowlock.NotFound);
});

test("tokens: create, list, revoke", async () => {
  const made = await tokens.create({ name: "js", scopes: ["enqueue"], topics: ["mail"], expiresAt: new Date("2030-01-01T00:00:00Z") });
  assert.match(made.token, /^rlk_/);
  assert.equal(made.expires_at, "2030-01-01T00:00:00Z");
  const found = (await tokens.list().all()).find((one) => one.id === made.id);
  assert.equal(found.token, undefined);
  const shop = client({ token: made.token });
  assert.match(await shop.jobs.enqueue("mail", {}), UUID7);
  await assert.rejects(shop.jobs.enqueue("other", {}), rowlock.NotAllowed);
  await tokens.revoke(made.id);
  await assert.rejects(shop.jobs.enqueue("mail", {}), rowlock.NotAuthenticated);
});

test("tokens for browsers: one job, or the jobs of one user", async () => {
  const topic = newTopic();
  const other = await jobs.enqueue(topic, {}, { delay: 600 });
  const made = await tokens.create({ scope: "user", scopeId: "7", enqueue: [topic], cancel: true, seconds: 60 });
  assert.ok(Date.parse(made.expires_at) < Date.now() + 120_000);
  const user = client({ token: made.token });
  const id = await user.jobs.enqueue(topic, {}, { delay: 600 });
  assert.deepEqual([(await jobs.get(id)).scope, (await jobs.get(id)).scope_id], ["user", "7"]);
  assert.deepEqual((await user.jobs.list({ topic }).all()).map((job) => job.id), [id]);
  await assert.rejects(user.jobs.get(other), rowlock.NotFound);
  await assert.rejects(user.jobs.enqueue("elsewhere", {}), rowlock.NotAllowed);
  const { token } = await tokens.create({ job: id });
  const seen = [];
  for await (const job of client({ token }).jobs.watch(id)) {
    seen.push(job.status);
    if (seen.length === 1) await user.jobs.cancel(id);
  }
  assert.deepEqual(seen, ["pending", "cancelled"]);
  await assert.rejects(client({ token }).jobs.get(other), rowlock.NotFound);
});

test("errors: one class for each kind, with the server's sentence", async () => {
  const topic = newTopic();
  const bad = await jobs.enqueue(topic, {}, { maxRetries: -1 }).catch((error) => error);
  assert.ok(bad instanceof rowlock.BadRequest && bad instanceof rowlock.RequestError && bad instanceof rowlock.RowlockError && bad instanceof Error);
  const { body } = await raw("POST", "/api/jobs/enqueue", { topic, max_retries: -1 });
  assert.equal(bad.message, body.detail);
  assert.deepEqual([bad.name, bad.status, bad.code, bad.field], ["BadRequest", 400, "out_of_range", "max_retries"]);
  assert.match(bad.requestId, /^[\w.-]{8,64}$/);
  const tooLarge = await jobs.enqueue(topic, { text: "x".repeat(1_200_000) }).catch((error) => error);
  assert.deepEqual([tooLarge.name, tooLarge.status, tooLarge.code], ["BadRequest", 413, "too_large"]);
  const unknown = await jobs.enqueue(topic, {}, { colour: "red" }).catch((error) => error);
  assert.deepEqual([unknown.name, unknown.code, unknown.field], ["BadRequest", "unknown_field", "colour"]);
  const missing = await jobs.get(newId()).catch((error) => error);
  assert.deepEqual([missing.name, missing.status, missing.code], ["NotFound", 404, "not_found"]);
  const id = newId();
  await jobs.enqueue(topic, { n: 1 }, { id });
  const taken = await jobs.enqueue(topic, { n: 2 }, { id }).catch((error) => error);
  assert.deepEqual([taken.name, taken.status, taken.code], ["Conflict", 409, "id_taken"]);
  const stranger = await client({ token: "rlk_wrong_token-of-nobody" }).jobs.get(id).catch((error) => error);
  assert.deepEqual([stranger.name, stranger.status], ["NotAuthenticated", 401]);
  assert.doesNotMatch(JSON.stringify(stranger) + stranger.stack + stranger.message, /nobody/);
  const closed = await nowhere();
  const off = await client({ retries: 0 }, closed).jobs.get(id).catch((error) => error);
  assert.ok(off instanceof rowlock.ConnectionFailed && off.cause instanceof Error, off);
  assert.ok(off.message.includes(closed) && off.message.includes("ECONNREFUSED"), off.message);
  assert.doesNotMatch(off.message + off.stack + String(off.cause), new RegExp(TOKEN));
  const notOurs = await client({}, `${URL_}/_`).jobs.get(id).catch((error) => error);
  assert.ok(notOurs instanceof rowlock.NotFound, notOurs);
});

test("bad arguments are refused at once, and never show the token", async () => {
  assert.throws(() => client({}, "/queue"), /begins with http/);
  assert.throws(() => client({}, "ftp://127.0.0.1/"), /http/);
  const secret = assert.throws(() => client({}, "http://me:secret@127.0.0.1/"), (error) => !/secret/.test(error.message));
  assert.equal(secret, undefined);
  assert.throws(() => client({ timeout: "5" }), /timeout/);
  assert.throws(() => client({ token: "two\nlines-secret" }), (error) => error instanceof rowlock.RowlockError && !/secret/.test(error.message));
  await assert.rejects(client({ token: () => "bad \u{1F600}secret" }).jobs.stats(), (error) => !/secret/.test(error.message + error.stack));
  for (const id of ["", "..", undefined]) assert.throws(() => jobs.get(id), TypeError);
  assert.equal((await client({ token: () => ` ${TOKEN}\n` }).jobs.stats()).pending >= 0, true);
});

test("a job is enqueued as it was when the call was made", async () => {
  const topic = newTopic();
  const payload = { n: 0 };
  const calls = [];
  for (payload.n = 1; payload.n <= 5; payload.n++) calls.push(jobs.enqueue(topic, payload));
  const ids = await Promise.all(calls);
  assert.deepEqual(await Promise.all(ids.map(async (id) => (await jobs.get(id)).payload.n)), [1, 2, 3, 4, 5]);
});

test("numbers and times that JSON can't hold are refused before anything is sent", async () => {
  const topic = newTopic();
  const never = new Date(NaN);
  for (const options of [{ runAt: never }, { expiresAt: never }, { delay: NaN }, { delay: Infinity }]) {
    const [name] = Object.keys(options);
    await assert.rejects(jobs.enqueue(topic, {}, options), (error) => error instanceof TypeError && error.message.startsWith(`${name} is `));
    await assert.rejects(jobs.enqueueMany([{ topic, payload: {} }, { topic, payload: {}, ...options }]), TypeError);
  }
  await assert.rejects(jobs.enqueue(topic, { price: NaN }), /price is NaN/);
  const late = [...Array(1000).fill({ topic, payload: {} }), { topic, payload: { n: NaN } }];
  await assert.rejects(jobs.enqueueMany(late), TypeError);
  await assert.rejects(jobs.list({ createdFrom: never }).page(), (error) => error instanceof TypeError && /createdFrom is Invalid Date/.test(error.message));
  assert.deepEqual(await jobs.list({ topic }).all(), []);
});

test("the cookie of the page's own login, with the proof that it is our page", async () => {
  const topic = newTopic();
  for (const token of [undefined, () => null]) {
    const page = client({ token, headers: { cookie: COOKIE }, timeout: Infinity });
    const id = await page.jobs.enqueue(topic, {});
    assert.equal((await page.jobs.get(id)).status, "pending");
  }
  const forged = await raw("POST", "/api/jobs/enqueue", { topic }, { cookie: COOKIE });
  // Node sends neither Origin nor Sec-Fetch-Site: same-origin, so the header of the client is the proof.
  assert.deepEqual([forged.status, forged.body.code], [403, "csrf"]);
});

test("names in payloads and results can't touch prototypes", async () => {
  const topic = newTopic();
  const payload = JSON.parse('{"__proto__": {"polluted": true}, "constructor": {"prototype": {"polluted": true}}}');
  const id = await jobs.enqueue(topic, payload, JSON.parse('{"tags": ["x"]}'));
  const job = await jobs.get(id);
  assert.equal({}.polluted, undefined);
  assert.equal(Object.getPrototypeOf(job.payload), Object.prototype);
  assert.deepEqual(Object.keys(job.payload).sort(), ["__proto__", "constructor"]);
});

test("a base address with a path and slashes", async () => {
  assert.equal((await client({}, `${URL_}///`).jobs.stats()).pending >= 0, true);
});
