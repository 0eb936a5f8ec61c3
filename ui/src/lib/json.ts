// Exact JSON: a number that JavaScript would round keeps its text.

export class Exact {
  constructor(readonly text: string) {}
}

export type Json = null | boolean | number | string | Exact | Json[] | { [name: string]: Json };

/** A number that JavaScript might write differently than it was sent. */
const SUSPICIOUS = /\d{16}|\d[eE][-+\d]|\.\d*0(?!\d)/;

/** As JSON.parse, but exact. Throws a SyntaxError that names the place. */
export function parse(text: string): Json {
  return SUSPICIOUS.test(text) ? new Reader(text).document() : (JSON.parse(text) as Json);
}

/** Names of members that hold values of users. All other numbers of the API fit into JavaScript's numbers. */
const THEIRS = new Set(["payload", "result", "data", "schema"]);

export function parseAnswer(text: string): Json {
  return SUSPICIOUS.test(text) ? new Reader(text, THEIRS).document() : (JSON.parse(text) as Json);
}

/** Return the error with line and column; null if the text is valid. */
export function problem(text: string): string | null {
  try {
    new Reader(text).document();
    return null;
  } catch (error) {
    return error instanceof SyntaxError ? error.message : String(error);
  }
}

export function stringify(value: Json | undefined, indent = 0, depth = 0): string {
  if (value === undefined) return "null";
  if (value instanceof Exact) return value.text;
  if (value === null || typeof value !== "object") return JSON.stringify(value);
  const pairs = Array.isArray(value)
    ? value.map((one) => stringify(one, indent, depth + 1))
    : Object.entries(value).map(([name, one]) => `${JSON.stringify(name)}:${indent ? " " : ""}${stringify(one, indent, depth + 1)}`);
  const [open, close] = Array.isArray(value) ? ["[", "]"] : ["{", "}"];
  if (!pairs.length) return open + close;
  if (!indent) return open + pairs.join(",") + close;
  const edge = "\n" + " ".repeat(indent * depth);
  const inner = edge + " ".repeat(indent);
  return open + inner + pairs.join("," + inner) + edge + close;
}

const DEEPEST = 200;
const NUMBER = /-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][-+]?\d+)?/y;
const STRING = /"(?:[^"\\\u0000-\u001f]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*"/y;
const WORDS: Record<string, Json> = { true: true, false: false, null: null };

class Reader {
  private at = 0;
  private depth = 0;

  /** `below`: exact only in members of these names; else everywhere. */
  constructor(
    private readonly text: string,
    private readonly below: Set<string> | null = null,
    private exact = below === null,
  ) {}

  document(): Json {
    const value = this.value();
    this.space();
    if (this.at < this.text.length) this.wrong("nothing more");
    return value;
  }

  private value(): Json {
    this.space();
    const sign = this.text[this.at];
    if (sign === "{") return this.object();
    if (sign === "[") return this.array();
    if (sign === '"') return this.string();
    for (const word in WORDS) {
      if (this.text.startsWith(word, this.at)) {
        this.at += word.length;
        return WORDS[word]!;
      }
    }
    const digits = this.match(NUMBER) ?? this.wrong("a value");
    return !this.exact || String(Number(digits)) === digits ? Number(digits) : new Exact(digits);
  }

  private object(): Json {
    const found: Record<string, Json> = {};
    this.members("}", () => {
      this.space();
      if (this.text[this.at] !== '"') this.wrong("a name in double quotes");
      const name = this.string();
      this.space();
      if (this.text[this.at] !== ":") this.wrong("a colon");
      this.at++;
      const before = this.exact;
      this.exact ||= this.below?.has(name) ?? false;
      const value = this.value();
      this.exact = before;
      // Not an assignment: a member may be called __proto__.
      Object.defineProperty(found, name, { value, enumerable: true, configurable: true, writable: true });
    });
    return found;
  }

  private array(): Json {
    const found: Json[] = [];
    this.members("]", () => found.push(this.value()));
    return found;
  }

  private members(close: string, member: () => void): void {
    this.at++;
    if (++this.depth > DEEPEST) this.wrong("less depth");
    this.space();
    if (this.text[this.at] !== close) {
      for (;;) {
        member();
        this.space();
        if (this.text[this.at] !== ",") break;
        this.at++;
      }
      if (this.text[this.at] !== close) this.wrong(`a comma or ${close}`);
    }
    this.at++;
    this.depth--;
  }

  private string(): string {
    return JSON.parse(this.match(STRING) ?? this.wrong("a text that ends, without line breaks")) as string;
  }

  private match(pattern: RegExp): string | null {
    pattern.lastIndex = this.at;
    const found = pattern.exec(this.text)?.[0] ?? null;
    this.at += found?.length ?? 0;
    return found;
  }

  private space(): void {
    while (" \n\r\t".includes(this.text[this.at] ?? "x")) this.at++;
  }

  private wrong(expected: string): never {
    const before = this.text.slice(0, this.at).split("\n");
    throw new SyntaxError(`line ${before.length}, column ${before.at(-1)!.length + 1}: expected ${expected}`);
  }
}
