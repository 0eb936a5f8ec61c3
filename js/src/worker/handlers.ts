// Which topics a worker runs, and by which functions.

import { readFileSync } from "node:fs";
import { resolve } from "node:path";
import { pathToFileURL } from "node:url";
import type { RunBody } from "../api.ts";
import type { Handler } from "./run.ts";

const LANE = /^([A-Za-z0-9_.:/-]+)(?:@(\d{1,7}))?$/;
const MOST_LANES = 100;

export type Register = (topic: string, handler: Handler) => void;
/** `topic` or `topic@version` → handler; or a function that registers them. */
export type Workers = Record<string, Handler> | ((register: Register) => void);
/** @internal By lane: `mail` is version 0 of its template, `mail@1` version 1. */
export type Handlers = ReadonlyMap<string, Handler>;

/** @internal */
export function laneOf({ topic, template_version }: Pick<RunBody, "topic" | "template_version">): string {
  return template_version === 0 ? topic : `${topic}@${template_version}`;
}

/** @internal Return the handlers of these topics. Throw TypeError if something is wrong with them. */
export function readHandlers(workers: Workers, topics?: readonly string[]): Handlers {
  const found = new Map<string, Handler>();
  const register: Register = (name, handler) => {
    const [, topic, version = "0"] = LANE.exec(name) ?? [];
    if (topic === undefined) throw new TypeError(`${JSON.stringify(name)} is no topic. Use letters, digits and _ . : / -, and @1 for version 1 of its template`);
    if (typeof handler !== "function") throw new TypeError(`The handler of ${name} is not a function`);
    const lane = laneOf({ topic, template_version: Number(version) });
    if (found.has(lane)) throw new TypeError(`There are two handlers of ${lane}`);
    found.set(lane, handler);
  };
  if (typeof workers === "function") {
    const promise: unknown = workers(register);
    if (promise instanceof Promise) throw new TypeError("The function that registers the workers must not be async. Use await at the top of the module");
  } else for (const name of Object.keys(workers)) register(name, typeof workers[name] === "function" ? workers[name].bind(workers) : (workers[name] as never));
  if (found.size === 0) throw new TypeError("There are no workers: give an object of topics and handlers");
  return chosen(found, topics);
}

function chosen(all: Handlers, topics: readonly string[] | undefined): Handlers {
  const missing = topics?.find((wanted) => ![...all.keys()].some((lane) => isMeant(wanted, lane)));
  if (missing !== undefined) throw new TypeError(`There is no handler of the topic ${JSON.stringify(missing)}. There are ${[...all.keys()].join(", ")}`);
  const some = new Map([...all].filter(([lane]) => topics?.some((wanted) => isMeant(wanted, lane)) ?? true));
  if (some.size > MOST_LANES) throw new TypeError(`A worker may run at most ${MOST_LANES} topics, and there are ${some.size}: choose some by the option topics`);
  return some;
}

const isMeant = (wanted: string, lane: string): boolean => lane === wanted || lane.startsWith(`${wanted}@`);

/** @internal Import a file, and return the workers that it exports. Throw TypeError, with the way out, if there are none. */
export async function load(file: string): Promise<Workers> {
  const path = resolve(file);
  try {
    readFileSync(path);
  } catch {
    throw new TypeError(`There is no file ${file}`);
  }
  const module = await imported(path, file);
  const workers = module["workers"] ?? module["default"];
  if ((typeof workers !== "object" && typeof workers !== "function") || workers === null) {
    throw new TypeError(`${file} exports no workers. Write: export const workers = { async my_topic(job) { … } };`);
  }
  return workers as Workers;
}

async function imported(path: string, file: string): Promise<Record<string, unknown>> {
  try {
    return (await import(pathToFileURL(path).href)) as Record<string, unknown>;
  } catch (error) {
    if ((error as { code?: string }).code !== "ERR_UNKNOWN_FILE_EXTENSION") {
      throw new TypeError(`${file} can't be imported: ${error instanceof Error ? error.stack : String(error)}`, { cause: error });
    }
    throw new TypeError(
      `Node ${process.versions.node} can't run TypeScript: ${file}. Use Node 22.18 or newer, or compile the file and give the .js file, or start with: node --import tsx node_modules/.bin/rowlock-worker ${file}`,
    );
  }
}
