// Errors as text, for the job and for its steps.

const MOST_TEXT = 16_000; // characters
const MOST_CAUSES = 5;
const OWN = new URL(".", import.meta.url).href; // frames of the worker itself say nothing

/** Return the name of the error's class. Most classes that extend Error don't set their name. */
export function typeOf(error: unknown): string {
  if (!(error instanceof Error)) return "Error";
  return String(error.name === "Error" && error.constructor.name ? error.constructor.name : error.name);
}

export function messageOf(error: unknown): string {
  return wellFormed(error instanceof Error ? error.message : textOf(error)).slice(0, MOST_TEXT);
}

function textOf(value: unknown): string {
  try {
    return (typeof value === "object" && JSON.stringify(value)) || String(value);
  } catch {
    return "an object that JSON can't hold";
  }
}

/** Return the stack of the error and of its causes. The last line says type and message: lists of jobs show that line. */
export function errorText(error: unknown): string {
  const stacks: string[] = [];
  for (let one = error, n = 0; one instanceof Error && n < MOST_CAUSES; one = one.cause, n++) {
    const frames = (one.stack ?? "").split("\n").filter((line) => /^\s+at /.test(line) && !line.includes(OWN));
    stacks.push([`${n > 0 ? "Caused by: " : ""}${typeOf(one)}: ${one.message}`, ...frames].join("\n"));
  }
  return `${wellFormed(stacks.join("\n")).slice(0, MOST_TEXT)}\n${typeOf(error)}: ${messageOf(error)}`.trimStart();
}

/** Replace halves of surrogate pairs: JSON of other languages can't hold them. */
const wellFormed = (text: string): string => Buffer.from(text).toString();
