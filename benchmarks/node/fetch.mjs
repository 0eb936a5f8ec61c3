// What Node itself can do: `fetch` sends the request of an enqueue, and a server answers it without doing anything.
//
//   node fetch.mjs serve                  prints its port
//   node fetch.mjs enqueue_concurrent     asks the server at BENCH_URL

import { createServer } from "node:http";
import { options, run } from "./verbs.mjs";

const ID = "01926f3e-0000-7000-8000-000000000000";
const ANSWER = JSON.stringify({ id: ID, topic: "noop", status: "pending", run_at: "2030-01-01T00:00:00Z", created: "2030-01-01T00:00:00Z" });

function serve() {
  const server = createServer((request, response) => {
    const parts = [];
    request.on("data", (part) => parts.push(part));
    request.on("end", () => {
      if (parts.length) JSON.parse(Buffer.concat(parts));
      response.writeHead(200, { "content-type": "application/json", "content-length": ANSWER.length });
      response.end(ANSWER);
    });
  });
  server.keepAliveTimeout = 60_000; // the server must not close a connection on which fetch is about to send
  server.listen(0, "127.0.0.1", () => console.log(`:${server.address().port}`));
  process.once("SIGTERM", () => process.exit());
}

async function ask(url, payload) {
  const answer = await fetch(`${url}/api/jobs/enqueue`, {
    method: "POST",
    headers: { authorization: `Bearer ${options.token}`, "content-type": "application/json" },
    body: JSON.stringify({ topic: "noop", payload }),
  });
  if (!answer.ok) throw new Error(`${answer.status} ${await answer.text()}`);
  return (await answer.json()).id;
}

if (process.argv[2] === "serve") serve();
else {
  await run({
    open: (url) => ({ ping: () => fetch(url).then((answer) => answer.text()), enqueue: (payload) => ask(url, payload), close: () => {} }),
  });
}
