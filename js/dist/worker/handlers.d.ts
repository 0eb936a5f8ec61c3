import type { RunBody } from "../api.ts";
import type { Handler } from "./run.ts";
export type Register = (topic: string, handler: Handler) => void;
/** `topic` or `topic@version` → handler; or a function that registers them. */
export type Workers = Record<string, Handler> | ((register: Register) => void);
/** By lane: `mail` is version 0 of its template, `mail@1` version 1. */
export type Handlers = ReadonlyMap<string, Handler>;
export declare function laneOf({ topic, template_version }: Pick<RunBody, "topic" | "template_version">): string;
/** Return the handlers of these topics. Throw TypeError if something is wrong with them. */
export declare function readHandlers(workers: Workers, topics?: readonly string[]): Handlers;
/** Import a file, and return the workers that it exports. Throw TypeError, with the way out, if there are none. */
export declare function load(file: string): Promise<Workers>;
