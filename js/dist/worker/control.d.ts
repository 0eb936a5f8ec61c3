import { AsyncLocalStorage } from "node:async_hooks";
import type { RunBody } from "../api.ts";
import type { News, Verb, Why } from "./messages.ts";
import { Interrupted } from "./outcomes.ts";
/** The run, and the step of it, in which the code is that asks. */
export declare const here: AsyncLocalStorage<{
    control: Control;
    step?: string;
}>;
export interface Link {
    /** Ask the server. `insist`: until it answers, however long that takes. */
    ask<T>(verb: Verb, body: object, insist?: boolean): Promise<T>;
    report(news: News): void;
}
export declare class Control {
    #private;
    readonly body: RunBody;
    readonly link: Link;
    /** Why the run must end. */
    reason: Interrupted | undefined;
    /** The job was cancelled while it waited: this run is to undo what earlier ones have done. */
    isUndo: boolean;
    hasEnded: boolean;
    constructor(body: RunBody, link: Link);
    get signal(): AbortSignal;
    /** The first reason is kept. Only a lost lease replaces it: it says that nothing counts any more. */
    interrupt(why: Why): void;
    /** Start the handler again. A cancel takes effect where the handler comes to something new. */
    restart(): void;
    /** Throw if the run must end. `cancelable` false: a cancel doesn't end it. */
    check(cancelable?: boolean): void;
    /** The handler has come to a step or a wait of which no end is stored. Throw if the run must end. */
    beginAnew(cancelable?: boolean): void;
    /** Also while the handler blocks the event loop: then no timer helps, and the next report takes this one along. */
    report({ lines, ...progress }: News): void;
    /** Hand over what was reported. */
    flush(): void;
}
