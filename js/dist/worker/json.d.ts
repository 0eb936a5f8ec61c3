export declare const MOST_BYTES: number;
/** The value can't be stored as it is. The message says where the problem is. */
export declare class Unfit extends Error {
}
/** Return the JSON text of a result. undefined is null. Throw Unfit if JSON can't hold it, or if it is too large. */
export declare function encode(value: unknown): string;
