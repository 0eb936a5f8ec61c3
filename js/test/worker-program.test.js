import assert from "node:assert/strict";
import { execFileSync, spawnSync } from "node:child_process";
import { readFileSync } from "node:fs";
import { describe, test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";

import { newTopic, serve, until } from "./helpers.js";
import { ended, eventsOf, folder, jobs, program, PROGRAM, stepsOf, write } from "./worker-helpers.js";

const SEED = `// 必须导出一个名为 \`workers\` 的对象或注册函数
export const workers = {
    // Topic: Handler
    async mail_digest(job) {
        console.log(\`Processing job \${job.id}\`);
        // 业务逻辑...
        // 如果抛出 Error，PocketBase 会自动捕获并增加 retry 计数
        if (Math.random() > 0.5) throw new Error("Network fluke");
    },
    
    async check_payment(job) {
        // ...
    }
};
`;
/** The path of a Node that runs TypeScript by itself: this one, or the one that the environment names. */
const MODERN = [process.execPath, process.env.ROWLOCK_TEST_NODE].find((node) => node && execFileSync(node, ["-p", "!!process.features.typescript"], { encoding: "utf8" }) === "true\n");
const isOld = !process.features.typescript;

const run = (topic, payload = {}, options = {}) => jobs.enqueue(topic, payload, options);

describe("rowlock-worker", { concurrency: 6 }, () => {
  test("runs the sample of the first plan as printed", async (t) => {
    const worker = program(t, folder(t, SEED));
    const ids = [];
    for (let n = 0; n < 8; n++) ids.push(await run("mail_digest", { userId: "123" }));
    assert.equal((await ended(await run("check_payment", { orderId: "456" }))).status, "completed");
    for (const id of ids) {
      const job = await until(async () => {
        const found = await jobs.get(id);
        return (found.status === "completed" || found.retries > 0) && found;
      });
      if (job.status !== "completed") assert.match(job.last_error, /Error: Network fluke/);
      assert.ok(worker.said.includes(`Processing job ${id}`));
    }
  });

  test("says at its start who it is; stops at SIGTERM with 0, after its jobs", async (t) => {
    const topic = newTopic();
    const path = folder(t, `export default { async ${topic}(job) { console.log("BEGINS"); await new Promise((resolve) => setTimeout(resolve, 1000)); return "done"; } };`);
    const worker = program(t, path, { given: ["--name", "cruncher", "--concurrency", "2"] });
    await worker.says(`runs ${topic} of http://`);
    assert.match(worker.said, /info worker cruncher-\d+-[0-9a-f]{8} runs/);
    const id = await run(topic);
    await worker.says("BEGINS");
    worker.kill("SIGTERM");
    assert.equal(await worker.gone, 0);
    assert.equal((await jobs.get(id)).result, "done");
    assert.ok(!worker.said.includes(process.env.ROWLOCK_TOKEN));
  });

  test("a second signal ends it at once", async (t) => {
    const topic = newTopic();
    const worker = program(t, folder(t, `export const workers = { ${topic}: () => new Promise(() => console.log("BEGINS")) };`), { given: ["--lease", "1"] });
    await run(topic);
    await worker.says("BEGINS");
    worker.kill("SIGINT");
    await worker.says("the worker stops");
    await sleep(300); // signals in quick succession count as one
    worker.kill("SIGINT");
    assert.equal(await worker.gone, 1);
  });

  test("killed with kill -9: the job runs elsewhere, and steps that are done are not repeated", async (t) => {
    const topic = newTopic();
    const path = folder(t, `
      export const workers = { async ${topic}(job) {
        await job.step("first", () => console.log("FIRST", job.version));
        await job.step("second", () => job.version === 1 ? new Promise(() => console.log("HANGS")) : 2);
        return job.version;
      } };`);
    const first = program(t, path, { given: ["--lease", "1"] });
    const id = await run(topic);
    await first.says("HANGS");
    first.kill("SIGKILL");
    await first.gone;
    const second = program(t, path, { given: ["--lease", "1"] });
    const job = await ended(id);
    assert.deepEqual([job.status, job.result, job.retries], ["completed", 2, 1]);
    assert.ok(!(first.said + second.said).includes("FIRST 2"));
    assert.deepEqual((await stepsOf(id)).map(({ name, state }) => [name, state]), [["first", "succeeded"], ["second", "succeeded"]]);
  });

  test("frozen past its lease: the zombie changes nothing", async (t) => {
    const topic = newTopic();
    const text = (result) => `
      export const workers = { async ${topic}(job) {
        console.log("BEGINS");
        await new Promise((resolve) => setTimeout(resolve, ${result === "zombie" ? 3000 : 0}));
        return "${result}";
      } };`;
    const zombie = program(t, folder(t, text("zombie")), { given: ["--lease", "1", "--log-level", "debug"] });
    const id = await run(topic);
    await zombie.says("BEGINS");
    zombie.kill("SIGSTOP");
    const other = program(t, folder(t, text("other")), { given: ["--lease", "1"] });
    const job = await ended(id);
    assert.deepEqual([job.status, job.result, job.version], ["completed", "other", 2]);
    zombie.kill("SIGCONT");
    await zombie.says("lost");
    await other.says("runs");
    const after = await jobs.get(id);
    assert.deepEqual([after.result, after.version, after.retries], ["other", 2, 1]);
    assert.equal((await eventsOf(id)).filter((event) => event === "completed").length, 1);
  });

  test("a handler that blocks the event loop keeps its job; what it could not begin is given back", async (t) => {
    const topic = newTopic();
    const given = { maxRetries: 0 };
    const [id, other] = [await run(topic, { block: true }, given), await run(topic, {}, given)]; // one claim brings both
    const path = folder(t, `
      export const workers = { ${topic}(job) {
        job.progress(50, { message: "gets out" }); // although the loop is blocked from now on
        if (job.payload.block) for (const end = Date.now() + 6000; Date.now() < end; );
        return "done";
      } };`);
    program(t, path, { given: ["--lease", "2"] });
    await until(async () => (await jobs.get(id)).message === "gets out");
    for (const one of [id, other]) {
      const job = await ended(one);
      assert.deepEqual([job.status, job.result, job.retries], ["completed", "done", 0]);
    }
    assert.equal((await jobs.get(id)).version, 1);
    assert.ok((await eventsOf(other)).includes("released"));
  });

  const isSlow = process.env.ROWLOCK_TEST_SLOW === undefined && "takes 30 s: make proof";
  test("a handler that blocks for 30 s past its timeout ends the process with 70", { skip: isSlow }, async (t) => {
    const topic = newTopic();
    const worker = program(t, folder(t, `export const workers = { ${topic}() { for (;;); } };`), { given: ["--lease", "5"] });
    const id = await run(topic, {}, { timeout: 1, maxRetries: 0 });
    assert.equal((await ended(id)).status, "failed"); // the thread settles the job long before the process ends
    assert.equal(await worker.gone, 70);
    assert.match(worker.said, new RegExp(`${topic} ${id} blocks the event loop`));
  });

  test("an error that no code has caught is logged, charged to its job, and ends the process with 1", async (t) => {
    for (const how of [`setTimeout(() => { throw new TypeError("in a timer"); }, 10)`, `void Promise.reject(new TypeError("in a timer"))`]) {
      const topic = newTopic();
      const path = folder(t, `
        export const workers = { async ${topic}(job) {
          console.log("BEGINS");
          if (job.payload.guilty) ${how};
          await new Promise((resolve) => setTimeout(resolve, 60_000));
        } };`);
      const worker = program(t, path);
      const innocent = await run(topic);
      await worker.says("BEGINS");
      const guilty = await run(topic, { guilty: true });
      assert.equal(await worker.gone, 1);
      assert.match(worker.said, /error a handler has left an error uncaught.*TypeError: in a timer/s);
      const [one, other] = [await jobs.get(guilty), await jobs.get(innocent)];
      assert.deepEqual([one.retries, other.status, other.retries], [1, "pending", 0]);
      assert.match(one.last_error, /TypeError: in a timer/);
    }
  });

  test("waits for a server that is not there yet, and says so once", async (t) => {
    const topic = newTopic();
    const first = await serve();
    await first.stop();
    const worker = program(t, folder(t, `export const workers = { ${topic}: () => "done" };`), { environ: { ROWLOCK_API: first.url } });
    await worker.says("the server is away");
    const second = await serve(first.port);
    t.after(() => second.stop("SIGKILL"));
    assert.equal((await ended(await run(topic))).result, "done");
    assert.equal(worker.said.split("the server is away").length, 2);
    worker.kill("SIGTERM");
    assert.equal(await worker.gone, 0);
  });

  const isEarly = isOld && "Node 20's --watch is an experiment, and may not end";
  test("--watch: a change of the file, or of a module that it imports, starts the worker again", { skip: isEarly }, async (t) => {
    const topic = newTopic();
    const path = folder(t, `export const text = "one";`, "text.mjs");
    const workers = (suffix) => `import { text } from "./text.mjs";\nexport const workers = { ${topic}: () => text + "${suffix}" };`;
    write(path, workers(""));
    const worker = program(t, path, { given: ["--watch"] });
    await worker.says("runs");
    assert.equal((await ended(await run(topic))).result, "one");
    write(path, `export const text = "two";`, "text.mjs");
    await worker.says("runs", 2);
    assert.equal((await ended(await run(topic))).result, "two");
    write(path, workers("!"));
    await worker.says("runs", 3);
    assert.equal((await ended(await run(topic))).result, "two!");
    assert.equal(worker.said.split("the worker has stopped").length, 3); // both old workers have stopped gracefully
    worker.kill("SIGTERM");
    await worker.gone;
    await worker.says("the worker has stopped", 3);
  });

  test("wrong arguments, files and tokens are refused, with the way out", async (t) => {
    const path = folder(t, "export const other = 1;");
    write(path, "export const workers = {;", "broken.mjs");
    const says = async (given, code, text, environ = {}) => {
      const { file = "workers.mjs", ...more } = given;
      const worker = program(t, path, { file, environ, ...more });
      assert.equal(await worker.gone, code, worker.said);
      assert.match(worker.said, text);
    };
    await says({ given: ["--no-such"] }, 2, /Unknown option '--no-such'/);
    await says({ given: ["second.mjs"] }, 2, /Give one file/);
    await says({ given: ["--lease", "soon"] }, 1, /exports no workers/);
    await says({ file: "none.mjs" }, 1, /There is no file none.mjs/);
    await says({ file: "broken.mjs" }, 1, /broken.mjs can't be imported: .*SyntaxError/s);
    await says({}, 1, /workers.mjs exports no workers. Write: export const workers/);
    write(path, "export const workers = { t() {} };");
    await says({ given: ["--lease", "soon"] }, 2, /--lease: must be a number, not "soon"/);
    await says({ given: ["--log-level", "loud"] }, 2, /--log-level: must be one of debug, info/);
    await says({ given: ["--concurrency", "0"] }, 2, /concurrency/);
    await says({ given: ["--topics", "t,u"] }, 2, /no handler of the topic "u". There are t/);
    await says({}, 2, /needs a token/, { ROWLOCK_TOKEN: "" });
    await says({}, 2, /needs the address of a server/, { ROWLOCK_API: "" });
    await says({}, 1, /refused the worker: .*rowlock token create NAME --scope worker/s, { ROWLOCK_TOKEN: "rlk_wrong" });
  });

  test("--version and --help", () => {
    const { version } = JSON.parse(readFileSync(new URL("../package.json", import.meta.url), "utf8"));
    const said = (option) => spawnSync(process.execPath, [PROGRAM, option], { encoding: "utf8" });
    assert.deepEqual([said("--version").stdout, said("--version").status], [`${version}\n`, 0]);
    assert.match(said("--help").stdout, /--concurrency N/);
  });

  const TYPED = (topic) => `
    import type { Run } from "rowlock/worker";
    export const workers = { async ${topic}(job: Run<{ n: number }>): Promise<number> { return job.payload.n * 2; } };`;

  test("TypeScript on a Node that can't run it: the error says what to do", { skip: !isOld && "this Node can" }, async (t) => {
    const worker = program(t, folder(t, TYPED("typed"), "workers.ts"), { file: "workers.ts" });
    assert.equal(await worker.gone, 1);
    assert.match(worker.said, /can't run TypeScript: workers.ts. Use Node 22.18 or newer, or compile the file/);
  });

  test("TypeScript on a Node that can", { skip: MODERN === undefined && "needs Node 22.18 or newer (ROWLOCK_TEST_NODE)" }, async (t) => {
    const topic = newTopic();
    const worker = program(t, folder(t, TYPED(topic), "workers.ts"), { file: "workers.ts", node: MODERN });
    await worker.says("runs");
    assert.equal((await ended(await run(topic, { n: 21 }))).result, 42);
  });
});
