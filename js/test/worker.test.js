import assert from "node:assert/strict";
import { describe, test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";

import { Cancelled, Final, LeaseLost, Snooze, TimeLimit, Worker, WorkerStopping } from "../dist/worker.js";
import { front, newTopic, proxy, raw, serve, TOKEN, until, URL_ } from "./helpers.js";
import { all, cancel, ended, eventsOf, gate, hasStatus, jobs, working } from "./worker-helpers.js";

// Each test has a topic and a worker of its own.
describe("a worker", { concurrency: 8 }, () => {
  test("a handler gets its job, and completes it", async (t) => {
    const seen = [];
    const { run, topic } = await working(t, async (job) => {
      seen.push(job);
      return { doubled: job.payload.n * 2, text: 'a "b"\\\n\tç 🦆', none: undefined };
    });
    const id = await run({ n: 21 }, { tags: ["a"], scope: "user", scopeId: "7", key: "k", maxRetries: 5, timeout: 77 });
    const job = await ended(id);
    assert.deepEqual([job.status, job.result], ["completed", { doubled: 42, text: 'a "b"\\\n\tç 🦆' }]);
    const [got] = seen;
    assert.deepEqual(
      [got.id, got.topic, got.payload, got.version, got.template_version, got.retries, got.max_retries, got.tags, got.scope, got.scope_id, got.key, got.timeout],
      [id, topic, { n: 21 }, 1, 0, 0, 5, ["a"], "user", "7", "k", 77],
    );
    assert.ok(Date.parse(got.created) && Date.parse(got.run_at));
    assert.equal(got.signal.aborted, false);
    got.check();
  });

  test("a handler need not be async, and may return nothing", async (t) => {
    const { run } = await working(t, (job) => (job.payload.value ? "sync" : undefined));
    assert.equal((await ended(await run({ value: 1 }))).result, "sync");
    assert.equal((await ended(await run())).result, null);
  });

  test("an error fails the run with type, message and stack; the job is tried again", async (t) => {
    class Fluke extends Error {}
    const { run } = await working(t, async function breaks() {
      throw new Fluke("network", { cause: new TypeError("socket") });
    });
    const once = await ended(await run({}, { maxRetries: 0 }));
    assert.equal(once.status, "failed");
    assert.match(once.last_error, /Fluke: network\n\s+at .*breaks.*worker\.test\.js:\d+/);
    assert.match(once.last_error, /Caused by: TypeError: socket/);
    assert.match(once.last_error, /\nFluke: network$/);
    assert.doesNotMatch(once.last_error, /dist\/worker/);
    const id = await run({}, { maxRetries: 1 });
    await until(async () => (await jobs.get(id)).retries === 1, "a retry");
    assert.equal((await jobs.get(id)).status, "pending");
  });

  test("Final fails for good, Snooze costs no retry, a thrown text is an error, too", async (t) => {
    const { run } = await working(t, async ({ payload, version }) => {
      if (payload.how === "final") throw new Final("no such customer");
      if (payload.how === "text") throw "plain \ud800 text"; // half of a surrogate pair
      if (payload.how === "object") throw { code: 7 };
      if (version === 1) throw new Snooze(0.1);
      return version;
    });
    const final = await ended(await run({ how: "final" }));
    assert.deepEqual([final.status, final.retries], ["failed", 0]);
    assert.match(final.last_error, /Final: no such customer/);
    const snoozed = await ended(await run());
    assert.deepEqual([snoozed.status, snoozed.result, snoozed.retries], ["completed", 2, 0]);
    assert.match((await ended(await run({ how: "text" }, { maxRetries: 0 }))).last_error, /plain . text/);
    assert.match((await ended(await run({ how: "object" }, { maxRetries: 0 }))).last_error, /{"code":7}/);
  });

  test("a result that can't be stored fails for good, and says where the problem is", async (t) => {
    const cycle = { name: "x", list: [{}] };
    cycle.list[0].back = cycle;
    const results = {
      "result.a[1] is NaN": { a: [1, NaN] },
      "result.big is a BigInt": { big: 1n },
      "result.m is a Map or a Set": { m: new Map([[1, 2]]) },
      "result.list[0].back is an object that contains itself": cycle,
      "result is a function": () => 1,
      "result.f is a function": { f() {} },
      "result.at.toJSON() throws": { at: { toJSON() { throw new Error("no"); } } },
      "1048576 are allowed": "x".repeat(1 << 20),
    };
    const { run } = await working(t, ({ payload }) => results[payload.which]);
    for (const which of Object.keys(results)) {
      const job = await ended(await run({ which }));
      assert.equal(job.status, "failed");
      assert.ok(job.last_error.includes(which), job.last_error);
      assert.match(job.last_error, /the result can't be stored/);
    }
  });

  test("one end that the server refuses does not hold up the others", async (t) => {
    let deep = 1;
    for (let n = 0; n < 200; n++) deep = [deep];
    const { run } = await working(t, async ({ payload }) => {
      await together.opened;
      return { deep, surrogate: "\ud800", fine: 7 }[payload.which];
    });
    const together = gate();
    const ids = [];
    for (const which of ["fine", "deep", "surrogate", "fine"]) ids.push(await run({ which }));
    await Promise.all(ids.map((id) => hasStatus(id, "processing")));
    together.open();
    const done = await Promise.all(ids.map((id) => ended(id)));
    assert.deepEqual(done.map((job) => job.status), ["completed", "failed", "failed", "completed"]);
    assert.deepEqual(done.map((job) => job.retries), [0, 0, 0, 0]);
  });

  test("progress and log are written while the handler runs, and before the job ends", async (t) => {
    const middle = gate();
    const { run } = await working(t, async (job) => {
      for (let n = 0; n < 10_000; n++) job.progress(n / 200, { stage: "first", message: `${n}` });
      job.log("half", { level: "warning" });
      await middle.opened;
      job.progress(99, { message: "last" });
      for (let n = 0; n < 250; n++) job.log(`line ${n}`);
    });
    const id = await run();
    const half = await until(async () => {
      const job = await jobs.get(id);
      return job.message === "9999" && job;
    }, "the progress");
    assert.deepEqual([half.status, half.stage], ["processing", "first"]);
    middle.open();
    const done = await ended(id);
    assert.equal(done.message, "last");
    const lines = (await all(jobs.logs(id))).map(({ text }) => text);
    assert.equal(lines.at(-1), "line 249");
    assert.ok(lines.length >= 190);
  });

  test("bad reports are errors of the handler", async (t) => {
    const { run } = await working(t, (job) => (job.payload.log ? job.log("x", { level: "loud" }) : job.progress(101)));
    assert.match((await ended(await run({}, { maxRetries: 0 }))).last_error, /percent: must be a number from 0 to 100, not 101/);
    assert.match((await ended(await run({ log: 1 }, { maxRetries: 0 }))).last_error, /level: must be one of debug, info/);
  });

  test("a cancel aborts the signal; the job is cancelled when the handler ends", async (t) => {
    const reasons = [];
    const { run } = await working(t, async (job) => {
      try {
        await sleep(60_000, undefined, { signal: job.signal });
      } catch (error) {
        reasons.push(job.signal.reason);
        if (job.payload.finish) return "done all the same";
        job.check();
      }
    });
    const [stopped, finished] = [await run(), await run({ finish: true })];
    for (const id of [stopped, finished]) {
      await hasStatus(id, "processing");
      await cancel(id);
    }
    assert.equal((await ended(stopped)).status, "cancelled");
    assert.equal((await ended(finished)).result, "done all the same");
    assert.ok(reasons.every((reason) => reason instanceof Cancelled));
    assert.equal((await eventsOf(stopped)).at(-1), "cancelled");
  });

  test("a timeout aborts the signal, and fails the run", async (t) => {
    let reason;
    const { run } = await working(t, async ({ signal }) => {
      await sleep(60_000, undefined, { signal }).catch((error) => {
        reason = signal.reason;
        throw error;
      });
    });
    const job = await ended(await run({}, { timeout: 1, maxRetries: 0 }));
    assert.equal(job.status, "failed");
    assert.match(job.last_error, /Timed out: the handler ran for more than 1 s/);
    assert.ok(reason instanceof TimeLimit);
  });

  test("a handler that ignores its timeout fails 5 s later, and keeps its slot until it ends", async (t) => {
    const stubborn = gate();
    const { run } = await working(t, ({ payload }) => (payload.stubborn ? stubborn.opened : "quick"), { concurrency: 1 });
    const first = await run({ stubborn: true }, { timeout: 1, maxRetries: 0 });
    assert.equal((await ended(first)).status, "failed");
    const second = await run();
    await sleep(1500); // a worker with a free slot would have it by now
    assert.equal((await jobs.get(second)).status, "pending");
    stubborn.open("too late");
    assert.equal((await ended(second)).result, "quick");
    assert.equal((await jobs.get(first)).status, "failed");
  });

  test("a worker never has more jobs than slots", async (t) => {
    let running = 0;
    let most = 0;
    const { run } = await working(t, async () => {
      most = Math.max(most, ++running);
      await sleep(20);
      running--;
    }, { concurrency: 3 });
    const ids = await Promise.all(Array.from({ length: 20 }, () => run()));
    await Promise.all(ids.map((id) => ended(id)));
    assert.equal(most, 3);
    for (const id of ids) assert.deepEqual((await eventsOf(id)).filter((event) => event === "released"), []);
  });

  test("a job enqueues another one, which inherits its scope", async (t) => {
    const { run, topic } = await working(t, async (job) => (job.payload.child ? "child" : job.enqueue(topic, { child: true }, { maxRetries: 9, tags: ["made"] })));
    const parent = await ended(await run({}, { scope: "user", scopeId: "7" }));
    const child = await ended(parent.result);
    assert.deepEqual([child.result, child.scope, child.scope_id, child.max_retries, child.tags], ["child", "user", "7", 9, ["made"]]);
    const refused = await working(t, (job) => job.enqueue("no topic", {}));
    assert.match((await ended(await refused.run({}, { maxRetries: 0 }))).last_error, /BadRequest: topic/);
    const strange = await working(t, (job) => job.enqueue(topic, job.payload.big ? { big: 1n } : { child: true, left: () => "out" }));
    assert.match((await ended(await strange.run({ big: true }, { maxRetries: 0 }))).last_error, /TypeError: .*BigInt/);
    assert.deepEqual((await ended((await ended(await strange.run())).result)).payload, { child: true });
  });

  test("lanes: a handler of version 1 does not get version 0", async () => {
    const topic = newTopic();
    const worker = new Worker({ [`${topic}@1`]: () => "one", [`${topic}@0`]: () => "zero" }, { url: URL_, token: TOKEN });
    assert.deepEqual(worker.topics, [`${topic}@1`, topic]);
    await worker.start();
    const job = await ended(await jobs.enqueue(topic, {}));
    await worker.stop();
    assert.equal(job.result, "zero");
  });

  test("wrong workers and options are refused, with the way out", () => {
    const given = { url: URL_, token: TOKEN };
    const one = { mail: () => {} };
    const of = (workers, options = given) => () => new Worker(workers, options);
    assert.throws(of({}), /There are no workers/);
    assert.throws(of({ "my mail": () => {} }), /"my mail" is no topic. Use letters/);
    assert.throws(of({ mail: 7 }), /The handler of mail is not a function/);
    assert.throws(of({ mail: () => {}, "mail@0": () => {} }), /two handlers of mail/);
    assert.throws(of(async () => {}), /must not be async/);
    assert.throws(of(one, { ...given, topics: ["post"] }), /no handler of the topic "post". There are mail/);
    assert.throws(of(one, { ...given, concurrency: 0 }), /concurrency: must be a whole number from 1 to 1000, not 0/);
    assert.throws(of(one, { ...given, lease: 0.5 }), /lease: must be a number from 1 to 300/);
    assert.throws(of(one, { token: "x" }), /needs the address of a server/);
    assert.throws(of(Object.fromEntries(Array.from({ length: 101 }, (_, n) => [`t${n}`, () => {}]))), /at most 100 topics/);
    const registered = new Worker((register) => register("mail", () => {}), given);
    assert.deepEqual(registered.topics, ["mail"]);
  });

  test("a refused token ends the worker, and says what to do", async () => {
    const worker = new Worker({ [newTopic()]: () => {} }, { url: URL_, token: "rlk_wrong" });
    await worker.start();
    await assert.rejects(worker.done, /refused the worker: .*rowlock token create NAME --scope worker/s);
  });

  test("a lost answer to a claim costs nothing", async (t) => {
    const between = await proxy();
    t.after(between.close);
    const { run } = await working(t, () => "done", { url: between.url });
    await until(() => between.connections > 0);
    between.lose = 1; // the answer to the long poll, which has the job, is lost
    const id = await run();
    const job = await ended(id);
    assert.deepEqual([between.lost, job.status, job.version, job.retries], [1, "completed", 1, 0]);
  });

  test("a lost answer to a settle changes nothing", async (t) => {
    const between = await proxy();
    t.after(between.close);
    const { run } = await working(t, () => {
      between.lose = 1; // the next answer is the one to the settle
      throw new Error("fluke");
    }, { url: between.url, lease: 30 });
    const id = await run();
    await until(async () => (await jobs.get(id)).retries === 1 && between.lost === 1);
    await sleep(1500); // by now the worker has repeated the settle
    const job = await jobs.get(id);
    assert.deepEqual([job.status, job.retries, (await eventsOf(id)).filter((event) => event === "retried").length], ["pending", 1, 1]);
  });

  test("a server that restarts amid 500 jobs: each completes once", async (t) => {
    const topic = newTopic();
    let server = await serve();
    t.after(() => server.stop("SIGKILL"));
    const ids = (await jobs.enqueueMany(Array.from({ length: 500 }, (_, n) => ({ topic, payload: { n } })))).map(({ id }) => id);
    const runs = new Map();
    let amid = 0;
    const half = gate();
    const { lines } = await working(t, async ({ id, payload }) => {
      runs.set(id, (runs.get(id) ?? 0) + 1);
      if (++amid === 250) half.open();
      await sleep(20);
      return payload.n;
    }, { topic, url: server.url, concurrency: 20, lease: 30 });
    await half.opened;
    await server.stop("SIGKILL");
    await until(() => lines.some((line) => line.includes("the server is away")));
    server = await serve(server.port);
    await until(async () => (await jobs.stats({ topic })).completed === 500, "500 jobs", 60);
    assert.deepEqual([runs.size, Math.max(...runs.values())], [500, 1]);
    assert.equal(lines.filter((line) => line.includes("the server is away")).length, 1);
    for (const id of [ids[0], ids[249], ids[499]]) assert.equal((await eventsOf(id)).filter((event) => event === "completed").length, 1);
  });

  test("without heartbeats the handler ends before its lease does", async (t) => {
    let isDeaf = false;
    const between = await front(() => (isDeaf ? { status: 503 } : undefined));
    t.after(between.close);
    let reason;
    const { run } = await working(t, async ({ signal }) => {
      isDeaf = true;
      const began = performance.now();
      await sleep(60_000, undefined, { signal }).catch(() => {});
      reason = { is: signal.reason, after: performance.now() - began };
    }, { url: between.url, lease: 2 });
    await run();
    await until(() => reason);
    assert.ok(reason.is instanceof LeaseLost);
    assert.ok(reason.after < 2500, `${reason.after}`);
    isDeaf = false;
  });

  test("stop: handlers may finish within the grace; then they are interrupted, and given back", async (t) => {
    const reasons = [];
    const begun = new Set();
    const { run, worker } = await working(t, async (job) => {
      begun.add(job.id);
      if (job.payload.how === "quick") return sleep(300, "finished");
      if (job.payload.how === "deaf") return new Promise(() => {});
      await sleep(60_000, undefined, { signal: job.signal }).catch(() => reasons.push(job.signal.reason));
      job.check();
    });
    const [quick, polite, deaf] = [await run({ how: "quick" }), await run({ how: "polite" }), await run({ how: "deaf" })];
    await until(() => begun.size === 3);
    await worker.stop({ grace: 1 });
    assert.equal((await jobs.get(quick)).result, "finished");
    for (const id of [polite, deaf]) {
      const job = await jobs.get(id);
      assert.deepEqual([job.status, job.retries], ["pending", 0]);
    }
    assert.ok(reasons[0] instanceof WorkerStopping);
    const { body } = await raw("GET", "/api/workers");
    assert.ok(!body.items.some(({ name }) => name.startsWith(worker.name)));
  });

  test("a worker that stops while it waits for work leaves no job behind", async (t) => {
    const topic = newTopic();
    for (let n = 0; n < 5; n++) {
      const worker = new Worker({ [topic]: () => "done" }, { url: URL_, token: TOKEN, lease: 30 });
      await worker.start();
      const adding = jobs.enqueue(topic, {});
      await sleep(n * 10);
      await worker.stop();
      await adding;
    }
    const stats = await jobs.stats({ topic });
    assert.equal(stats.processing ?? 0, 0);
    assert.equal(stats.pending + stats.completed, 5);
  });
});
