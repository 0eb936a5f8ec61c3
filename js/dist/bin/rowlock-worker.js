#!/usr/bin/env node
import { spawn } from "node:child_process";
import { readFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { parseArgs } from "node:util";
import { load } from "../worker/handlers.js";
import { LEVELS } from "../worker/messages.js";
import { Worker } from "../worker/worker.js";
const ONE_SIGNAL = 250;
const AFTER_CRASH = 10;
const HELP = `Run the jobs of a rowlock server by the handlers of a file.

  rowlock-worker workers.ts [options]

The file exports the handlers by topic:  export const workers = { async mail_digest(job) { … } };

  --url URL          the address of the server; or ROWLOCK_API
  --token TOKEN      a token with the scope worker; better: ROWLOCK_TOKEN, which other users can't see
  --topics A,B       run only these topics
  --concurrency N    handlers that run at the same time (10)
  --lease SECONDS    until other workers may take the jobs of a worker that has died (30)
  --grace SECONDS    for running handlers, after SIGTERM or Ctrl-C (25)
  --name NAME        what the worker's name begins with (the name of the host)
  --watch            start again when the file, or a module that it imports, changes
  --log-level LEVEL  debug, info, warning or error (info)
  --version, --help

Exit codes: 0 after a stop, 1 if the worker can't go on, 2 for wrong arguments, 70 if a handler blocked the event loop for longer than its
job's timeout and 30 s. Run it under a process manager, which starts it again.
`;
const OPTIONS = {
    url: { type: "string" },
    token: { type: "string" },
    topics: { type: "string" },
    concurrency: { type: "string" },
    lease: { type: "string" },
    grace: { type: "string" },
    name: { type: "string" },
    watch: { type: "boolean" },
    "log-level": { type: "string", default: "info" },
    version: { type: "boolean" },
    help: { type: "boolean", short: "h" },
};
class Usage extends Error {
}
function read() {
    try {
        return parseArgs({ options: OPTIONS, allowPositionals: true });
    }
    catch (error) {
        throw new Usage(error.message);
    }
}
async function main() {
    const { values, positionals } = read();
    if (values.help)
        return void process.stdout.write(HELP);
    if (values.version)
        return void console.log(JSON.parse(readFileSync(new URL("../../package.json", import.meta.url), "utf8")).version);
    const [file, ...more] = positionals;
    if (file === undefined || more.length > 0)
        throw new Usage("Give one file, such as: rowlock-worker workers.ts");
    if (!LEVELS.includes(values["log-level"]))
        throw new Usage(`--log-level: must be one of ${LEVELS.join(", ")}`);
    if (values.watch)
        watch(number("grace", values.grace) ?? 25);
    else
        await work(file, values);
}
function watch(grace) {
    const given = process.argv.slice(2).filter((argument) => argument !== "--watch");
    const child = spawn(process.execPath, [...process.execArgv, "--watch", "--watch-preserve-output", fileURLToPath(import.meta.url), ...given], { stdio: "inherit" });
    for (const signal of ["SIGTERM", "SIGINT"]) {
        process.on(signal, () => {
            child.kill(signal);
            setTimeout(() => child.kill("SIGKILL"), (grace + 10) * 1000);
        });
    }
    child.on("exit", (code) => process.exit(code ?? 1));
}
async function work(file, given) {
    const log = (level, text) => void process.stderr.write(`${new Date().toISOString()} ${level} ${text}\n`);
    const worker = make(await load(file), {
        url: given.url,
        token: given.token,
        name: given.name,
        topics: given.topics?.split(",").map((topic) => topic.trim()),
        concurrency: number("concurrency", given.concurrency),
        lease: number("lease", given.lease),
        log,
        logLevel: given["log-level"],
    });
    const grace = number("grace", given.grace) ?? 25;
    let isCrashed = false;
    const crash = (error) => {
        const whose = worker.blame(error) ? "a handler has" : "code of no known handler has";
        log("error", `${whose} left an error uncaught; the worker stops: ${error instanceof Error ? error.stack : String(error)}`);
        isCrashed = true;
        worker.stop({ grace: 0 }).finally(() => process.exit(1));
        setTimeout(() => process.exit(1), AFTER_CRASH * 1000);
    };
    process.on("uncaughtException", crash);
    process.on("unhandledRejection", crash);
    onSignals((signal) => {
        log("info", `${signal}: the worker stops. Running handlers have ${grace} s; a second signal ends them at once`);
        void worker.stop({ grace }).catch(() => { });
    });
    await worker.start();
    log("info", `worker ${worker.name} runs ${worker.topics.join(", ")} of ${worker.url}`);
    await worker.done;
    log("info", "the worker has stopped");
    process.exit(isCrashed ? 1 : 0);
}
function make(...given) {
    try {
        return new Worker(...given);
    }
    catch (error) {
        throw new Usage(error.message);
    }
}
function onSignals(stop) {
    let first;
    for (const signal of ["SIGTERM", "SIGINT"]) {
        process.on(signal, () => {
            if (first === undefined)
                stop(signal);
            else if (performance.now() - first > ONE_SIGNAL)
                process.exit(1);
            first ??= performance.now();
        });
    }
}
function number(name, text) {
    if (text === undefined)
        return undefined;
    const value = Number(text);
    if (text.trim() === "" || Number.isNaN(value))
        throw new Usage(`--${name}: must be a number, not ${JSON.stringify(text)}`);
    return value;
}
main().catch((error) => {
    console.error(`rowlock-worker: ${error instanceof Error ? error.message : String(error)}`);
    process.exit(error instanceof Usage ? 2 : 1);
});
