// JSON that the server can store, or the reason why a value is none.

export const MOST_BYTES = 1 << 20;

/** The value can't be stored as it is. The message says where the problem is. */
export class Unfit extends Error {}

/** Return the JSON text of a result. undefined is null. Throw Unfit if JSON can't hold it, or if it is too large. */
export function encode(value: unknown): string {
  let text: string | undefined;
  try {
    text = value === undefined ? "null" : JSON.stringify(value, refuse);
  } catch (error) {
    throw new Unfit(problem(value, "result", []) ?? String(error));
  }
  if (text === undefined) throw new Unfit(problem(value, "result", []) ?? "JSON can't hold it");
  const bytes = Buffer.byteLength(text);
  if (bytes > MOST_BYTES) throw new Unfit(`it has ${bytes} bytes of JSON, and ${MOST_BYTES} are allowed: store the data elsewhere, and return its id`);
  return text;
}

function refuse(_key: string, value: unknown): unknown {
  if (unfit(value) !== undefined) throw new Unfit();
  return value;
}

function unfit(value: unknown): string | undefined {
  switch (typeof value) {
    case "number":
      return Number.isFinite(value) ? undefined : `is ${value}`;
    case "bigint":
      return "is a BigInt: return a number or a text";
    case "function":
    case "symbol":
      return `is a ${typeof value}`;
    default:
      return value instanceof Map || value instanceof Set ? "is a Map or a Set: return an object or a list" : undefined;
  }
}

/** Return the first place that JSON can't hold, and why. */
function problem(value: unknown, path: string, above: unknown[]): string | undefined {
  let plain = value;
  if (typeof (value as { toJSON?: unknown } | null | undefined)?.toJSON === "function") {
    try {
      plain = (value as { toJSON(): unknown }).toJSON();
    } catch (error) {
      return `${path}.toJSON() throws ${String(error)}`;
    }
  }
  const why = unfit(plain);
  if (why !== undefined) return `${path} ${why}`;
  if (typeof plain !== "object" || plain === null) return undefined;
  if (above.includes(plain)) return `${path} is an object that contains itself`;
  const names = Array.isArray(plain) ? plain.keys() : Object.keys(plain);
  for (const name of names) {
    const inner = typeof name === "number" ? `${path}[${name}]` : `${path}.${name}`;
    const found = problem((plain as Record<string | number, unknown>)[name], inner, [...above, plain]);
    if (found !== undefined) return found;
  }
  return undefined;
}
