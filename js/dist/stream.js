import { ConnectionFailed } from "./errors.js";
import { backoff, mayRepeat, onAbort, pause } from "./request.js";
const SILENCE = 45;
const LONGEST = 4;
export async function* liveJobs(requests, query, signal) {
    let heard = false;
    for (let failures = 0;; failures++) {
        let failure;
        try {
            for await (const told of connection(requests, query, signal)) {
                heard = true;
                failures = 0;
                yield told;
            }
        }
        catch (error) {
            if (signal?.aborted)
                throw signal.reason;
            if (!mayRepeat(error) || (!heard && failures >= requests.retries))
                throw error;
            failure = error;
        }
        await pause(backoff(Math.min(failures, LONGEST), failure), signal);
    }
}
async function* connection(requests, query, signal) {
    const ours = new AbortController();
    const stop = () => ours.abort(signal?.reason);
    signal?.throwIfAborted();
    const forget = signal && onAbort(signal, stop);
    try {
        const answer = await requests.open("/api/events", { query: { ...query, stats: false }, signal: ours.signal });
        for await (const { event, data } of messages(answer)) {
            if (event === "jobs")
                yield JSON.parse(data);
            else if (event === "end")
                return;
        }
    }
    finally {
        forget?.();
        ours.abort();
    }
}
async function* messages(answer) {
    if (answer.body === null)
        return;
    const reader = answer.body.getReader();
    const decoder = new TextDecoder();
    let rest = "";
    let message = { event: "", data: "" };
    for (let part = await read(reader); part !== undefined; part = await read(reader)) {
        const lines = (rest + decoder.decode(part, { stream: true })).split(/\r?\n/);
        rest = lines.pop();
        for (const line of lines) {
            if (line === "") {
                if (message.event)
                    yield message;
                message = { event: "", data: "" };
            }
            else if (line.startsWith("event: ")) {
                message.event = line.slice(7);
            }
            else if (line.startsWith("data: ")) {
                message.data = line.slice(6);
            }
        }
    }
}
async function read(reader) {
    let timer;
    const silence = new Promise((_, reject) => {
        timer = setTimeout(() => reject(new Error(`nothing for ${SILENCE} s`)), SILENCE * 1000);
    });
    try {
        return (await Promise.race([reader.read(), silence])).value;
    }
    catch (cause) {
        throw new ConnectionFailed("The stream broke off", { cause });
    }
    finally {
        clearTimeout(timer);
    }
}
