export declare const LEVELS: readonly ["debug", "info", "warning", "error"];
export type Level = (typeof LEVELS)[number];
