// What the tests share: the server that runs, a worker, and servers before it that lose or refuse requests.

import { spawn } from "node:child_process";
import http from "node:http";
import net from "node:net";

import { Rowlock } from "../dist/index.js";

export const { ROWLOCK_URL: URL_, ROWLOCK_TOKEN: TOKEN, ROWLOCK_COOKIE: COOKIE, ROWLOCK_SERVE } = process.env;
if (!URL_) throw new Error("start these tests by `make js-test`: they need a server");

export const client = (options = {}, url = URL_) => new Rowlock(url, { token: TOKEN, ...options });

let topics = 0;
/** Return the name of a topic that no other test uses. */
export const newTopic = (name = "topic") => `${name}_${process.pid}_${++topics}`;

/** Send a request without the client. */
export async function raw(method, path, body, headers = { authorization: `Bearer ${TOKEN}` }) {
  const sent = body === undefined ? {} : { body: JSON.stringify(body) };
  const answer = await fetch(URL_ + path, { method, headers: { "content-type": "application/json", ...headers }, ...sent });
  const text = await answer.text();
  return { status: answer.status, body: text ? JSON.parse(text) : undefined };
}

/** Claim a job of the topic, as a worker does. */
export async function claim(topic) {
  const { body } = await raw("POST", "/api/worker/claim", { worker: "tests", topics: [topic], wait: 10 });
  const [job] = body.items;
  if (!job) throw new Error(`no job of ${topic} came`);
  return {
    job,
    tell: (call, more = {}) => raw("POST", `/api/worker/${call}`, { worker: "tests", id: job.id, version: job.version, ...more }),
  };
}

/** Resolve when the condition holds. */
export async function until(condition, what = "the condition", seconds = 20) {
  const end = Date.now() + seconds * 1000;
  for (;;) {
    const found = await condition();
    if (found) return found;
    if (Date.now() > end) throw new Error(`waited ${seconds} s for ${what}`);
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
}

const listen = (server, port = 0) => new Promise((resolve) => server.listen(port, "127.0.0.1", () => resolve(server.address().port)));

/** Return an address at which no server listens. */
export async function nowhere() {
  const server = net.createServer();
  const port = await listen(server);
  await new Promise((resolve) => server.close(resolve));
  return `http://127.0.0.1:${port}`;
}

/** Start a server that accepts connections, and never answers. */
export async function silent() {
  const sockets = new Set();
  const server = net.createServer((socket) => sockets.add(socket.on("error", () => {})));
  const url = `http://127.0.0.1:${await listen(server)}`;
  const drop = () => (sockets.forEach((socket) => socket.destroy()), sockets.clear());
  return { url, server, sockets, drop, close: () => (drop(), server.close()) };
}

/** Start a front: it passes requests on to the server. `before(request)` may answer instead: {status, headers, body}. */
export async function front(before) {
  const seen = [];
  const server = http.createServer((request, answer) => {
    seen.push({ method: request.method, url: request.url, headers: request.headers });
    const instead = before(request, seen.length);
    if (instead) {
      request.resume();
      answer.writeHead(instead.status, instead.headers ?? {});
      return answer.end(instead.body ?? "");
    }
    const to = new URL(URL_ + request.url);
    const passed = http.request(to, { method: request.method, headers: { ...request.headers, host: to.host } }, (from) => {
      answer.writeHead(from.statusCode, from.headers);
      from.pipe(answer);
    });
    passed.on("error", () => answer.destroy());
    answer.on("close", () => passed.destroy());
    request.pipe(passed);
  });
  const port = await listen(server);
  return { url: `http://127.0.0.1:${port}`, seen, close: () => (server.closeAllConnections(), server.close()) };
}

/**
 * Start a TCP proxy. With `lose` = n it loses the next n answers, and cuts their connections. After `freeze()` the connections of that moment stay
 * open, and the client gets nothing through them any more.
 */
export async function proxy() {
  const { hostname, port } = new URL(URL_);
  const state = { lose: 0, lost: 0, connections: 0, closed: 0, url: "" };
  const sockets = new Set();
  let frozen = 0;
  const server = net.createServer((near) => {
    state.connections++;
    const far = net.connect(Number(port), hostname);
    for (const [one, other] of [[near, far], [far, near]]) {
      sockets.add(one);
      one.on("error", () => other.destroy());
      one.on("close", () => (sockets.delete(one), other.destroy()));
    }
    near.on("close", () => state.closed++);
    near.pipe(far);
    const number = state.connections;
    far.on("data", (data) => {
      if (number <= frozen) return;
      if (state.lose > 0) {
        state.lose--;
        state.lost++;
        near.resetAndDestroy();
      } else near.write(data);
    });
  });
  state.url = `http://127.0.0.1:${await listen(server)}`;
  state.freeze = () => (frozen = state.connections);
  state.cut = () => sockets.forEach((one) => one.destroy());
  state.close = () => (state.cut(), server.close());
  return state;
}

/** Start one more server over the same database. `stop` waits for its end. */
export async function serve(port = 0) {
  const [program, ...given] = JSON.parse(ROWLOCK_SERVE);
  const child = spawn(program, [...given, "--port", String(port)], { env: { ...process.env, PYTHONUNBUFFERED: "1" }, stdio: ["ignore", "pipe", "inherit"] });
  const url = await new Promise((resolve, reject) => {
    child.stdout.on("data", (data) => {
      const found = /http:\/\/\S+/.exec(String(data));
      if (found) resolve(found[0]);
    });
    child.on("exit", (code) => reject(new Error(`the server ended with ${code}`)));
  });
  const gone = new Promise((resolve) => child.on("exit", resolve));
  return { url, port: Number(new URL(url).port), stop: (signal = "SIGTERM") => (child.kill(signal), gone) };
}
