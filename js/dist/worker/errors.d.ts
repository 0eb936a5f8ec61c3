/** Return the name of the error's class. Most classes that extend Error don't set their name. */
export declare function typeOf(error: unknown): string;
export declare function messageOf(error: unknown): string;
/** Return the stack of the error and of its causes. The last line says type and message: lists of jobs show that line. */
export declare function errorText(error: unknown): string;
