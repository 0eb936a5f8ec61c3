// The payload of a new job, or the data of a signal: one text, which the form and the JSON editor both show and change.

import { parse, problem, stringify, type Json } from "./json";
import { check, initial, isRecord, type Misfit, type Picks, type Schema } from "./schema";

const BLANK = "{\n  \n}";

export class Payload {
  text = $state("");
  schema = $state.raw<Schema | null>(null);
  /** Texts of single fields that are no JSON, by path. They are not part of the payload yet. */
  broken = $state.raw<Record<string, string>>({});
  /** The alternatives that an operator has chosen. Where none was, the one that fits best counts. */
  picks = $state.raw<Picks>({});
  private isTried = $state(false); // an operator wanted to send it, so say what is missing
  private told = $state.raw<{ path: string; text: string } | null>(null); // by the server
  private readonly blank: string;
  private prefilled: string;

  /** `root`: the name that the server has for it. Data may be any JSON, and also nothing at all. `hasBlanks`: its texts may have blanks, like
   {{fire_at}}. */
  constructor(readonly root: "payload" | "data" = "payload", readonly hasBlanks = false) {
    this.blank = this.prefilled = this.text = root === "payload" ? BLANK : "";
  }

  /** Why the text can't be sent; null if it can. */
  wrong = $derived.by(() => {
    if (this.root === "data") return this.text.trim() ? problem(this.text) : null;
    return problem(this.text) ?? (this.text.trimStart().startsWith("{") ? null : "The payload must be an object: {…}");
  });
  /** undefined: nothing at all. */
  given = $derived<Json | undefined>(this.wrong === null && this.text.trim() ? parse(this.text) : undefined);
  value = $derived<Record<string, Json>>(isRecord(this.given) ? this.given : {});
  private misfits = $derived.by((): Record<string, Misfit> => (this.schema && this.wrong === null ? check(this.schema, this.given, this.schema, this.root, this.picks) : {}));

  /** What the form shows at its fields, by path. */
  errors = $derived<Record<string, string>>({
    ...Object.fromEntries(Object.entries(this.misfits).filter(([, one]) => this.isTried || !one.isMissing).map(([path, one]) => [path, one.text])),
    ...Object.fromEntries(Object.entries(this.broken).map(([path, text]) => [path, problem(text) ?? ""])),
    ...(this.told ? { [this.told.path]: this.told.text } : {}),
  });

  /** Use another schema. A payload that an operator has begun stays as it is. */
  use(schema: Schema | null): void {
    this.schema = schema;
    if (this.text !== this.prefilled) return;
    const made = schema ? initial(schema, schema) : undefined;
    const isEmpty = made === undefined || made === null || (isRecord(made) && !Object.keys(made).length);
    this.text = this.prefilled = isEmpty || (this.root === "payload" && !isRecord(made)) ? this.blank : stringify(made, 2);
    this.broken = {};
    this.picks = {};
    this.isTried = false;
  }

  change(value: Json | undefined): void {
    this.text = value === undefined && this.root === "data" ? "" : stringify(value ?? {}, 2);
    this.told = null;
  }

  /** Text that was typed or pasted as JSON. */
  type(text: string): void {
    this.text = text;
    this.broken = {};
    this.picks = {};
    this.told = null;
  }

  /** Choose an alternative; null: the one that fits best. What was chosen below it is forgotten. */
  pick(at: string, n: number | null): void {
    this.forget(at);
    if (n !== null) this.picks = { ...this.picks, [at]: n };
  }

  /** Forget what was chosen below this path: the items of a list have moved. */
  forget(path: string): void {
    this.picks = Object.fromEntries(Object.entries(this.picks).filter(([one]) => one !== path && ![".", "[", "|"].some((next) => one.startsWith(path + next))));
  }

  /** Keep the text of a field while it is no JSON; null: it is JSON again. */
  keep(path: string, text: string | null): void {
    const { [path]: _, ...others } = this.broken;
    this.broken = text === null ? others : { ...others, [path]: text };
  }

  /** True if the form has nothing more to ask for. */
  tryIt(): boolean {
    this.isTried = true;
    return !Object.keys(this.misfits).length && !Object.keys(this.broken).length;
  }

  tell(path: string, text: string): void {
    this.told = { path, text };
  }
}
