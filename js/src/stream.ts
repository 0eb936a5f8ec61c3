// Server-sent events by fetch: an EventSource can't send a token.

import type { LiveJobs } from "./api.ts";
import { ConnectionFailed } from "./errors.ts";
import { backoff, mayRepeat, onAbort, pause, type Requests } from "./request.ts";

const SILENCE = 45; // seconds; a server says something every 15
const LONGEST = 4; // doublings of the pause before the next connection: about eight seconds

/**
 * Yield what the server tells about these jobs, over as many connections as it takes. Each connection begins with the present state
 * (`reset`). The first answer must come within the usual retries. After it, this waits for the server as long as it takes.
 */
export async function* liveJobs(requests: Requests, query: object, signal: AbortSignal | undefined): AsyncGenerator<LiveJobs, void, void> {
  let heard = false;
  for (let failures = 0; ; failures++) {
    let failure: unknown;
    try {
      for await (const told of connection(requests, query, signal)) {
        heard = true;
        failures = 0;
        yield told;
      }
    } catch (error) {
      if (signal?.aborted) throw signal.reason;
      if (!mayRepeat(error) || (!heard && failures >= requests.retries)) throw error;
      failure = error;
    }
    await pause(backoff(Math.min(failures, LONGEST), failure), signal);
  }
}

/** Yield the events of one connection, until the server ends it. If it ends because the token is over, the next request is told so. */
async function* connection(requests: Requests, query: object, signal: AbortSignal | undefined): AsyncGenerator<LiveJobs, void, void> {
  const ours = new AbortController();
  const stop = (): void => ours.abort(signal?.reason);
  signal?.throwIfAborted();
  const forget = signal && onAbort(signal, stop);
  try {
    const answer = await requests.open("/api/events", { query: { ...query, stats: false }, signal: ours.signal });
    for await (const { event, data } of messages(answer)) {
      if (event === "jobs") yield JSON.parse(data) as LiveJobs;
      else if (event === "end") return;
    }
  } finally {
    forget?.();
    ours.abort();
  }
}

interface Message {
  event: string;
  data: string;
}

async function* messages(answer: Response): AsyncGenerator<Message, void, void> {
  if (answer.body === null) return;
  const reader = answer.body.getReader();
  const decoder = new TextDecoder();
  let rest = "";
  let message: Message = { event: "", data: "" };
  for (let part = await read(reader); part !== undefined; part = await read(reader)) {
    const lines = (rest + decoder.decode(part, { stream: true })).split(/\r?\n/);
    rest = lines.pop()!;
    for (const line of lines) {
      if (line === "") {
        if (message.event) yield message;
        message = { event: "", data: "" };
      } else if (line.startsWith("event: ")) {
        message.event = line.slice(7);
      } else if (line.startsWith("data: ")) {
        message.data = line.slice(6);
      }
    }
  }
}

/** Return the next bytes, undefined at the end. A connection that is silent for too long is dead. */
async function read(reader: ReadableStreamDefaultReader<Uint8Array>): Promise<Uint8Array | undefined> {
  let timer: ReturnType<typeof setTimeout> | undefined;
  const silence = new Promise<never>((_, reject) => {
    timer = setTimeout(() => reject(new Error(`nothing for ${SILENCE} s`)), SILENCE * 1000);
  });
  try {
    return (await Promise.race([reader.read(), silence])).value;
  } catch (cause) {
    throw new ConnectionFailed("The stream broke off", { cause });
  } finally {
    clearTimeout(timer);
  }
}
