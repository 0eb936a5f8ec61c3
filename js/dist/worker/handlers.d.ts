import type { Handler } from "./run.ts";
export type Register = (topic: string, handler: Handler) => void;
/** `topic` or `topic@version` → handler; or a function that registers them. */
export type Workers = Record<string, Handler> | ((register: Register) => void);
