// A service that renders films, and sends each to the address that came with its order. Node 20 or later, no dependency.
//   PORT=8191 node service.mjs
import { createServer } from "node:http";
import { setTimeout as sleep } from "node:timers/promises";

const { PORT = "8191", PACE = "0.5" } = process.env;

/** Send it, again and again until the address answers. Return the HTTP status, and what became of the job. */
async function tell(address, body) {
  for (;;) {
    try {
      const answer = await fetch(address, { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body) });
      if (answer.status < 500 && answer.status !== 429) return { status: answer.status, ...(await answer.json()) };
    } catch {} // the server is away
    await sleep(1000);
  }
}

async function render({ target, frames, callback }) {
  for (let frame = 1; frame <= frames; frame++) {
    await sleep(1000 * Number(PACE));
    // Restarts the time that the job waits, and says whether it still wants the film.
    const told = await tell(`${callback}/progress`, { percent: (100 * frame) / frames, message: `frame ${frame} of ${frames}` });
    if (told.status !== 200) {
      if (told.code === "callback_cancelled") await tell(`${callback}/acknowledge`, {});
      return console.log(`${target}: ${told.detail}`);
    }
  }
  const { state, detail } = await tell(callback, { target, frames }); // a repeat is refused: the job gets it once
  console.log(`${target}: ${state ?? detail}`);
}

createServer(async (request, response) => {
  const parts = [];
  for await (const part of request) parts.push(part);
  if (request.method !== "POST" || request.url !== "/render") return response.writeHead(404).end();
  response.writeHead(202).end();
  await render(JSON.parse(Buffer.concat(parts).toString()));
}).listen(Number(PORT), "127.0.0.1", function () {
  console.log(`listening on ${this.address().port}`);
});
