import assert from "node:assert/strict";
import net from "node:net";
import { describe, test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";

import { Cancelled, Final, StepFailed, Suspend, WaitTimeout } from "../dist/worker.js";
import { raw, serve, until } from "./helpers.js";
import { cancel, ended, eventsOf, gate, hasStatus, jobs, stepsOf, working } from "./worker-helpers.js";

const signal = (id, name, data) => jobs.signal(id, name, data);
const retryNow = (id) => raw("PATCH", `/api/jobs/${id}`, { run_at: new Date().toISOString() });

/** Start a server that knows its own address, for callbacks. */
async function publicServer(t) {
  const probe = net.createServer();
  await new Promise((resolve) => probe.listen(0, "127.0.0.1", resolve));
  const { port } = probe.address();
  await new Promise((resolve) => probe.close(resolve));
  process.env.ROWLOCK_PUBLIC_URL = `http://127.0.0.1:${port}`;
  const server = await serve(port);
  t.after(() => server.stop());
  return server;
}

// Each test has a topic and a worker of its own.
describe("steps and waits", { concurrency: 8 }, () => {
  test("a step that is done is not run again", async (t) => {
    const calls = [];
    const { run } = await working(t, async (job) => {
      const a = await job.step("count", () => calls.push("a") && { at: new Date(0), none: undefined });
      const b = await job.step("count", async () => calls.push("b") && 2);
      await job.step("nothing", () => {});
      if (job.version === 1) throw new Error("after the steps");
      return [a, b, job.version];
    });
    const id = await run();
    await until(async () => (await jobs.get(id)).retries === 1);
    await retryNow(id);
    assert.deepEqual((await ended(id)).result, [{ at: "1970-01-01T00:00:00.000Z" }, 2, 2]);
    assert.deepEqual(calls, ["a", "b"]);
    assert.deepEqual((await stepsOf(id)).map(({ name, n, state }) => `${name}#${n} ${state}`), ["count#1 succeeded", "count#2 succeeded", "nothing#1 succeeded"]);
  });

  test("the first run sees what a later one will see", async (t) => {
    const { run } = await working(t, async (job) => [await job.step("a", () => ({ at: new Date(0) })), await job.step("b", () => undefined)]);
    assert.deepEqual((await ended(await run())).result, [{ at: "1970-01-01T00:00:00.000Z" }, null]);
  });

  test("steps beside each other are numbered when they are called", async (t) => {
    const { run } = await working(t, (job) => Promise.all([30, 20, 10].map((ms) => job.step("part", () => sleep(ms, ms)))));
    const id = await run();
    assert.deepEqual((await ended(id)).result, [30, 20, 10]);
    assert.deepEqual((await stepsOf(id)).map(({ n, position, result }) => [n, position, result]), [[1, 1, 30], [2, 2, 20], [3, 3, 10]]);
  });

  test("a step with retries of its own costs the job none; after the last one StepFailed is thrown", async (t) => {
    const calls = [];
    const { run } = await working(t, async (job) => {
      await job.step("reserve", () => calls.push("reserve"));
      try {
        await job.step("charge", () => {
          calls.push("charge");
          throw new TypeError("the bank is away");
        }, { delays: [0.1], maxRetries: 2 });
      } catch (error) {
        if (!(error instanceof StepFailed)) throw error;
        await job.step("undo", () => calls.push("undo"), { cancelable: false });
        throw error;
      }
    });
    const job = await ended(await run());
    assert.deepEqual(calls, ["reserve", "charge", "charge", "charge", "undo"]);
    assert.deepEqual([job.status, job.version, job.retries], ["failed", 3, 0]);
    assert.match(job.last_error, /StepFailed: the step charge has failed for good: TypeError: the bank is away/);
    assert.deepEqual((await stepsOf(job.id)).map(({ name, state, retries }) => [name, state, retries]), [["reserve", "succeeded", 0], ["charge", "failed", 2], ["undo", "succeeded", 0]]);
  });

  test("a step without a policy fails the run; Final in a step with one is its last try", async (t) => {
    const { run } = await working(t, async (job) => {
      const policy = job.payload.policy ? { maxRetries: 5, delays: [0.1] } : {};
      await job.step("broken", () => { throw new Final("never"); }, policy);
    });
    assert.match((await ended(await run())).last_error, /Final: never/);
    const job = await ended(await run({ policy: true }));
    assert.deepEqual([job.version, job.status], [1, "failed"]);
    assert.match(job.last_error, /StepFailed/);
  });

  test("a step past its timeout fails, and its signal is aborted; a late return fails, too", async (t) => {
    const { run } = await working(t, async (job) => {
      await job.step("slow", ({ signal }) => (job.payload.deaf ? sleep(600, "late") : sleep(60_000, undefined, { signal })), { timeout: 0.3 });
    });
    for (const deaf of [false, true]) assert.match((await ended(await run({ deaf }, { maxRetries: 0 }))).last_error, /TimeoutError: the step slow has taken longer than its timeout of 0.3 s/);
  });

  test("wrong steps are refused", async (t) => {
    const wrong = {
      "can't name a step": (job) => job.step("@x", () => {}),
      "needs a function": (job) => job.step("x"),
      "maxRetries of the step x": (job) => job.step("x", () => {}, { maxRetries: -1 }),
      "delays of the step x": (job) => job.step("x", () => {}, { delays: [] }),
      'job.step("inner") inside of the step outer': (job) => job.step("outer", () => job.step("inner", () => {})),
      "job.sleep inside of the step outer": (job) => job.step("outer", () => job.sleep(1)),
      "the result of the step big can't be stored: result.n is NaN": async (job) => {
        await job.step("big", () => ({ n: NaN })).catch(() => {}); // the job fails although the handler catches the error
      },
      "seconds from 0 on": (job) => job.sleep(-1),
    };
    const { run } = await working(t, (job) => wrong[job.payload.which](job));
    for (const which of Object.keys(wrong)) {
      const job = await ended(await run({ which }, { maxRetries: 0 }));
      assert.ok(job.last_error?.includes(which), `${which}: ${job.last_error}`);
    }
  });

  test("results of more than 16 MiB fail the job for good, also if the handler catches that", async (t) => {
    const { run } = await working(t, async (job) => {
      for (let n = 0; n < 17; n++) await job.step("large", () => "x".repeat(1_000_000)).catch(() => {});
    }, { lease: 30 });
    const job = await ended(await run());
    assert.match(job.last_error, /StepLimit: .*more than 16 MiB/);
    assert.equal(job.status, "failed");
  });

  test("a cancel between steps stops the job; steps that are not cancelable still run", async (t) => {
    const inStep = gate();
    const calls = [];
    const { run } = await working(t, async (job) => {
      try {
        await job.step("long", async ({ signal }) => {
          inStep.open();
          await sleep(60_000, undefined, { signal });
        });
      } catch (error) {
        calls.push(error.constructor.name);
        await job.step("undo", ({ signal }) => calls.push(`undo ${signal.aborted}`), { cancelable: false });
        throw error;
      }
    });
    const id = await run();
    await inStep.opened;
    await cancel(id);
    assert.equal((await ended(id)).status, "cancelled");
    assert.deepEqual(calls, ["Cancelled", "undo false"]);
    assert.deepEqual((await stepsOf(id)).map(({ name, state }) => [name, state]), [["long", "cancelled"], ["undo", "succeeded"]]);
  });

  test("sleep ends the run, and costs no retry; finally blocks run", async (t) => {
    const calls = [];
    const { run } = await working(t, async (job) => {
      try {
        await job.step("before", () => calls.push("before"));
        await job.sleep(job.payload.until ? { until: new Date(Date.now() + 1500) } : 1.5);
        return job.version;
      } finally {
        calls.push("finally");
      }
    }, { concurrency: 1 });
    for (const until of [false, true]) {
      calls.length = 0;
      const id = await run({ until });
      await hasStatus(id, "waiting");
      const done = await ended(id);
      assert.deepEqual([done.status, done.result, done.retries], ["completed", 2, 0]);
      assert.deepEqual(calls, ["before", "finally", "finally"]);
    }
    });

  test("waitFor returns a signal that came before, and one that comes later", async (t) => {
    const first = gate();
    const { run } = await working(t, async (job) => {
      await job.step("ready", () => first.opened);
      return [await job.waitFor("decision"), await job.waitFor("decision", { timeout: 60 })];
    });
    const id = await run();
    await hasStatus(id, "processing");
    await signal(id, "decision", { ok: 1 });
    first.open();
    await hasStatus(id, "waiting");
    await signal(id, "decision", { ok: 2 });
    assert.deepEqual((await ended(id)).result, [{ ok: 1 }, { ok: 2 }]);
  });

  test("waitFor: the default, or WaitTimeout, after its time; a schema refuses data", async (t) => {
    const { run } = await working(t, async (job) => {
      if (job.payload.how === "default") return { got: await job.waitFor("never", { timeout: 0.5, default: null }) };
      if (job.payload.how === "schema") return job.waitFor("number", { schema: { type: "integer" } });
      try {
        await job.waitFor("never", { timeout: 0.5 });
      } catch (error) {
        if (job.payload.how === "caught" && error instanceof WaitTimeout) return `caught ${error.signal}`;
        throw error;
      }
    });
    assert.deepEqual((await ended(await run({ how: "default" }))).result, { got: null });
    assert.equal((await ended(await run({ how: "caught" }))).result, "caught never");
    const failed = await ended(await run({ how: "thrown" }));
    assert.deepEqual([failed.status, failed.retries], ["failed", 0]);
    assert.match(failed.last_error, /WaitTimeout: the signal never had not come/);
    const id = await run({ how: "schema" });
    await hasStatus(id, "waiting");
    await assert.rejects(signal(id, "number", "seven"), /BadRequest/);
    await signal(id, "number", 7);
    assert.equal((await ended(id)).result, 7);
  });

  test("a handler that swallows Suspend fails for good, and the error says so", async (t) => {
    const { run } = await working(t, async (job) => {
      try {
        if (job.payload.step) await job.step("again", () => { throw new Error("x"); }, { delays: [1] });
        else await job.sleep(60);
      } catch (error) {
        assert.ok(error instanceof Suspend);
        if (job.payload.other) throw new Error("something else");
        return "as if nothing had happened";
      }
    });
    for (const [payload, text] of [[{}, /job\.sleep ends the run/], [{ other: true }, /It has thrown Error instead: something else/], [{ step: true }, /the step again ends the run/]]) {
      const job = await ended(await run(payload));
      assert.deepEqual([job.status, job.retries], ["failed", 0]);
      assert.match(job.last_error, /the handler has caught Suspend/);
      assert.match(job.last_error, text);
    }
  });

  test("a wait beside a step ends the run when the step has ended", async (t) => {
    const calls = [];
    const { run } = await working(t, (job) => Promise.all([job.waitFor("go"), job.step("long", () => sleep(500, "stored").then((value) => calls.push(value) && value))]));
    const id = await run();
    await hasStatus(id, "waiting");
    assert.deepEqual((await stepsOf(id)).map(({ name, state }) => [name, state]).filter(([name]) => name === "long"), [["long", "succeeded"]]);
    await signal(id, "go", 1);
    assert.deepEqual((await ended(id)).result, [1, "stored"]);
    assert.deepEqual(calls, ["stored"]);
  });

  test("two waits beside each other: the one that ends first wakes the job", async (t) => {
    const { run } = await working(t, (job) => Promise.all([job.waitFor("go"), job.sleep(1)]));
    const id = await run();
    await hasStatus(id, "waiting");
    await until(async () => (await jobs.get(id)).version >= 2, "the sleep to end");
    await hasStatus(id, "waiting");
    await signal(id, "go", "went");
    assert.deepEqual((await ended(id)).result, ["went", null]);
  });

  test("a signal that comes between the look and the wait starts the handler again, in the same run", async (t) => {
    let starts = 0;
    const { run } = await working(t, async (job) => {
      starts++;
      await job.step("first", () => 1);
      try {
        return [await job.waitFor("go"), job.version];
      } catch (error) {
        if (starts === 1) await signal(job.id, "go", "went"); // after the worker has looked for a signal
        throw error;
      }
    });
    const id = await run();
    assert.deepEqual((await ended(id)).result, ["went", 1]);
    assert.equal(starts, 2);
  });

  test("a cancelled wait is undone where it waited", async (t) => {
    const calls = [];
    const { run } = await working(t, async (job) => {
      const seat = await job.step("reserve", () => calls.push("reserve") && "12 A");
      try {
        await job.waitFor("paid", { timeout: 900 });
      } catch (error) {
        if (!(error instanceof Cancelled)) throw error;
        await job.step("give back", () => calls.push(`give back ${seat}`), { cancelable: false });
        throw error;
      }
    });
    const id = await run();
    await hasStatus(id, "waiting");
    await cancel(id);
    const job = await ended(id);
    assert.deepEqual([job.status, calls], ["cancelled", ["reserve", "give back 12 A"]]);
    assert.equal((await eventsOf(id)).at(-1), "cancelled");
  });

  test("a callback is an address that stays the same", async (t) => {
    const server = await publicServer(t);
    const urls = [];
    const { run } = await working(t, async (job) => {
      urls.push(await job.callback("paid", { timeout: 60 }));
      return job.waitFor("paid");
    }, { url: server.url });
    const id = await run();
    await hasStatus(id, "waiting");
    assert.ok(urls[0].startsWith(server.url));
    const answer = await fetch(urls[0], { method: "POST", headers: { "content-type": "application/json" }, body: '{"sum": 7}' });
    assert.ok(answer.ok, `${answer.status} ${await answer.text()}`);
    assert.deepEqual((await ended(id)).result, { sum: 7 });
    assert.deepEqual([urls.length, new Set(urls).size], [2, 1]);
  });

  test("steps and waits after the handler has ended are refused", async (t) => {
    let late;
    const { run } = await working(t, (job) => void (late = job));
    await ended(await run());
    await assert.rejects(late.step("late", () => {}), /the handler has ended/);
    await assert.rejects(late.sleep(1), /the handler has ended/);
  });
});
