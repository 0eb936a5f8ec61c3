// What the tests of workers share: a worker in this process, and workers that are processes of their own.

import { spawn } from "node:child_process";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";

import { Worker } from "../dist/worker.js";
import { client, newTopic, raw, TOKEN, until, URL_ } from "./helpers.js";

export const { jobs } = client();
export const PROGRAM = fileURLToPath(new URL("../dist/bin/rowlock-worker.js", import.meta.url));

/** Start a worker with one handler in this process. It is stopped when the test ends. */
export async function working(t, handler, options = {}) {
  const topic = options.topic ?? newTopic();
  const lines = [];
  const log = (level, text) => lines.push(`${level} ${text}`);
  const worker = new Worker({ [topic]: handler }, { url: URL_, token: TOKEN, lease: 5, log, ...options });
  await worker.start();
  t.after(() => worker.stop({ grace: 0 }).catch(() => {}));
  return { topic, worker, lines, run: (payload = {}, given = {}) => jobs.enqueue(topic, payload, given) };
}

export const ended = (id, seconds = 60) => jobs.wait(id, { timeout: seconds });
export const hasStatus = (id, status) =>
  until(async () => {
    const job = await jobs.get(id);
    return job.status === status && job;
  }, `${id} to be ${status}`);
export const eventsOf = async (id) => (await all(jobs.events(id))).map(({ event }) => event);
export async function all(list) {
  const found = [];
  for await (const one of list) found.push(one);
  return found;
}
export const stepsOf = async (id) => (await jobs.get(id)).steps ?? [];
export const cancel = (id) => raw("POST", `/api/jobs/${id}/cancel`, {});
export const gate = () => {
  let open;
  const opened = new Promise((resolve) => (open = resolve));
  return { open, opened };
};

/** Return a new folder with a module of workers. It is removed when the test ends. */
export function folder(t, text, name = "workers.mjs") {
  const path = mkdtempSync(join(tmpdir(), "rowlock-"));
  t.after(() => rmSync(path, { recursive: true, force: true }));
  write(path, text, name);
  return path;
}

export const write = (path, text, name = "workers.mjs") => writeFileSync(join(path, name), text);

/** Run the program in this folder. `said`: all text that it has written. */
export function program(t, path, { file = "workers.mjs", given = [], environ = {}, node = process.execPath } = {}) {
  const env = { ...process.env, ROWLOCK_API: URL_, ROWLOCK_TOKEN: TOKEN, ...environ };
  const child = spawn(node, [PROGRAM, file, ...given], { cwd: path, env, stdio: ["ignore", "pipe", "pipe"] });
  const state = { child, said: "", code: undefined };
  for (const stream of [child.stdout, child.stderr]) stream.on("data", (data) => (state.said += data));
  state.gone = new Promise((resolve) => child.on("close", (code, signal) => resolve((state.code = code ?? signal))));
  state.kill = (signal) => child.kill(signal);
  state.says = (text, times = 1) =>
    until(() => state.said.split(text).length > times).catch(() => {
      throw new Error(`${JSON.stringify(text)} is not there ${times} times:\n${state.said}`);
    });
  t.after(() => child.kill("SIGKILL"));
  return state;
}
