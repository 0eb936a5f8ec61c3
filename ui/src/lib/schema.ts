// JSON Schema (draft 2020-12) for people: what a form asks for, what a tree shows, what is surely wrong. The server checks everything.

import { plural } from "./format";
import { Exact, stringify, type Json } from "./json";

export type Schema = Record<string, Json>;
export type Kind = "object" | "array" | "choice" | "enum" | "const" | "string" | "integer" | "number" | "boolean" | "any";

export interface Member {
  name: string;
  schema: Json;
  required: boolean;
}

/** A schema as a form sees it: without $ref, and with null taken out of its types. */
export interface Look {
  kind: Kind;
  schema: Schema;
  nullable: boolean;
  members: Member[]; // of an object
  options: { label: string; schema: Json }[]; // of a choice
  values: Json[]; // of an enum; of a const the one
}

const DEEPEST = 24;

export function isRecord(value: unknown): value is Record<string, Json> {
  return typeof value === "object" && value !== null && !Array.isArray(value) && !(value instanceof Exact);
}

export const same = (a: Json | undefined, b: Json | undefined): boolean => stringify(sorted(a)) === stringify(sorted(b));

function sorted(value: Json | undefined): Json | undefined {
  if (value instanceof Exact) return String(Number(value.text)) === value.text ? Number(value.text) : value;
  if (Array.isArray(value)) return value.map((one) => sorted(one)!);
  if (!isRecord(value)) return value;
  return Object.fromEntries(Object.keys(value).sort().map((name) => [name, sorted(value[name])!]));
}

const number = (value: Json | undefined): number | null => (typeof value === "number" ? value : value instanceof Exact ? Number(value.text) : null);
const list = (value: Json | undefined): Json[] => (Array.isArray(value) ? value : []);
const text = (value: Json | undefined): string => (typeof value === "string" ? value : "");

/** Follow `$ref` and merge `allOf`. */
export function resolved(schema: Json | undefined, root: Schema, depth = 0): Schema {
  if (!isRecord(schema) || depth > DEEPEST) return {};
  let found = schema;
  if (typeof found["$ref"] === "string") {
    const { $ref, ...beside } = found;
    found = { ...resolved(pointed(text($ref), root), root, depth + 1), ...beside };
  }
  if (!Array.isArray(found["allOf"])) return found;
  const { allOf, ...own } = found;
  return [...list(allOf).map((part) => resolved(part, root, depth + 1)), own].reduce((whole, part) => ({
    ...whole,
    ...part,
    ...(isRecord(whole["properties"]) || isRecord(part["properties"]) ? { properties: { ...(whole["properties"] as Schema), ...(part["properties"] as Schema) } } : {}),
    ...(whole["required"] || part["required"] ? { required: [...list(whole["required"]), ...list(part["required"])] } : {}),
  }), {});
}

function pointed(ref: string, root: Schema): Json | undefined {
  if (!ref.startsWith("#")) return undefined;
  let found: Json | undefined = root;
  for (const part of ref.slice(1).split("/").filter(Boolean)) {
    const name: string = decodeURIComponent(part).replaceAll("~1", "/").replaceAll("~0", "~");
    found = isRecord(found) && Object.hasOwn(found, name) ? found[name] : undefined;
  }
  return found;
}

export function look(given: Json | undefined, root: Schema, depth = 0): Look {
  const schema = resolved(given, root);
  const made = (kind: Kind, more: Partial<Look> = {}): Look => ({ kind, schema, nullable: false, members: [], options: [], values: [], ...more });
  if (depth > DEEPEST) return made("any");
  const alternatives = list(schema["anyOf"]).length ? list(schema["anyOf"]) : list(schema["oneOf"]);
  if (alternatives.length && !isRecord(schema["properties"])) {
    const { anyOf: _, oneOf: __, ...notes } = schema;
    const others = alternatives.filter((one) => !isNull(resolved(one, root)));
    const nullable = others.length < alternatives.length;
    if (others.length === 1) {
      const inner = look({ ...resolved(others[0], root), ...notes }, root, depth + 1);
      return { ...inner, nullable: nullable || inner.nullable };
    }
    if (others.length) return made("choice", { nullable, options: others.map((one, n) => ({ label: label(one, root, n), schema: one })) });
  }
  if ("const" in schema) return made("const", { values: [schema["const"]!] });
  if (Array.isArray(schema["enum"])) {
    const values = schema["enum"].filter((one) => one !== null);
    const nullable = values.length < schema["enum"].length;
    return made(values.length === 1 && !nullable ? "const" : "enum", { values, nullable });
  }
  if (Array.isArray(schema["type"])) {
    const types = schema["type"].filter((one) => one !== "null");
    const nullable = types.length < schema["type"].length;
    if (types.length === 1) return { ...look({ ...schema, type: types[0]! }, root, depth + 1), nullable };
    return made("choice", { nullable, options: types.map((type) => ({ label: text(type), schema: { ...schema, type } })) });
  }
  const properties = schema["properties"];
  if (isRecord(properties) && Object.keys(properties).length) {
    const required = list(schema["required"]);
    return made("object", { members: Object.entries(properties).map(([name, one]) => ({ name, schema: one, required: required.includes(name) })) });
  }
  switch (schema["type"]) {
    case "object":
      return made(schema["additionalProperties"] === false ? "object" : "any");
    case "array":
      return made(isRecord(schema["items"]) || list(schema["prefixItems"]).length ? "array" : "any");
    case "null":
      return made("const", { values: [null] });
    case "string":
    case "integer":
    case "number":
    case "boolean":
      return made(schema["type"]);
    default:
      return made("any");
  }
}

const isNull = (schema: Schema): boolean => schema["type"] === "null" || schema["const"] === null;

/** The name of an alternative: its title, its definition's name, its tag, its type. */
function label(schema: Json, root: Schema, n: number): string {
  const whole = resolved(schema, root);
  if (typeof whole["title"] === "string") return whole["title"];
  const ref = isRecord(schema) ? text(schema["$ref"]) : "";
  if (ref) return decodeURIComponent(ref.split("/").at(-1)!);
  if ("const" in whole) return stringify(whole["const"]);
  const tag = isRecord(whole["properties"]) ? Object.values(whole["properties"]).find((one) => isRecord(one) && typeof one["const"] === "string") : undefined;
  if (isRecord(tag)) return text(tag["const"]);
  return text(whole["type"]) || `option ${n + 1}`;
}

/** The schema of the n-th item of an array; false: there can't be one. */
export function itemOf(schema: Schema, n: number): Json {
  const first = list(schema["prefixItems"]);
  return n < first.length ? first[n]! : schema["items"] ?? true;
}

export function mayAdd(schema: Schema, length: number): boolean {
  return itemOf(schema, length) !== false && length < (number(schema["maxItems"]) ?? Infinity);
}

// ── Values ──

/** Return what a new form holds: defaults, constants, and the objects that must be there. undefined: nothing yet. */
export function initial(given: Json | undefined, root: Schema, depth = 0): Json | undefined {
  const { kind, schema, nullable, members, options, values } = look(given, root);
  if ("default" in schema) return schema["default"];
  if (nullable) return null;
  if (depth > DEEPEST / 3) return undefined;
  switch (kind) {
    case "const":
      return values[0];
    case "boolean":
      return false;
    case "object": {
      const made: [string, Json][] = [];
      for (const member of members) {
        if (!member.required && !hasDefault(member.schema, root)) continue;
        const value = initial(member.schema, root, depth + 1);
        if (value !== undefined) made.push([member.name, value]);
      }
      return Object.fromEntries(made);
    }
    case "array": {
      const least = Math.min(number(schema["minItems"]) ?? 0, 10);
      return Array.from({ length: least }, (_, n) => newItem(itemOf(schema, n), root, depth + 1));
    }
    case "choice":
      return initial(options[0]!.schema, root, depth + 1);
    default:
      return undefined;
  }
}

/** Return what a field holds that was just added: its default is not asked for. */
export function fresh({ kind, schema, options }: Look, root: Schema): Json | undefined {
  const { default: _, ...rest } = schema;
  return initial(kind === "choice" ? options[0]!.schema : rest, root);
}

/** An empty default says nothing that an absent field would not say. */
function hasDefault(given: Json, root: Schema): boolean {
  const value = resolved(given, root)["default"];
  return value !== undefined && value !== null && !(Array.isArray(value) && !value.length) && !(isRecord(value) && !Object.keys(value).length);
}

/** An item can't be absent: null stands for one that is not filled in yet. */
export function newItem(given: Json, root: Schema, depth = 0): Json {
  return initial(given, root, depth) ?? (look(given, root).kind === "string" ? "" : null);
}

export interface Misfit {
  text: string;
  isMissing: boolean;
  isTag?: boolean; // a constant differs: the value is meant for another alternative
}

/** The alternatives that an operator has chosen, by `pickOf`. */
export type Picks = Readonly<Record<string, number>>;

/** A choice may stand in a choice: `nest` counts them. */
export const pickOf = (path: string, nest: number): string => `${path}${"|".repeat(nest)}`;

/** Return what is surely wrong, by the path of the field. */
export function check(given: Json | undefined, value: Json | undefined, root: Schema, path: string, picks: Picks = {}, found: Record<string, Misfit> = {}, depth = 0, nest = 0): Record<string, Misfit> {
  const { kind, schema, nullable, members, options, values } = look(given, root);
  const wrong = (said: string, at = path, isMissing = false): void => void (found[at] ??= { text: said, isMissing });
  if (depth > DEEPEST || (value === null && (nullable || kind === "any" || (kind === "const" && values[0] === null)))) return found;
  if (value === undefined || (value === null && kind !== "choice")) {
    wrong("is missing", path, true);
    return found;
  }
  switch (kind) {
    case "const":
      if (!same(value, values[0])) found[path] ??= { text: `must be ${stringify(values[0])}`, isMissing: false, isTag: true };
      break;
    case "enum":
      if (!values.some((one) => same(one, value))) wrong(`must be one of ${values.map((one) => stringify(one)).join(", ")}`);
      break;
    case "string":
      if (typeof value !== "string") wrong("must be a text");
      else if ([...value].length < (number(schema["minLength"]) ?? 0)) wrong(`needs ${plural(number(schema["minLength"])!, "character")} at least`);
      else if ([...value].length > (number(schema["maxLength"]) ?? Infinity)) wrong(`has more than ${plural(number(schema["maxLength"])!, "character")}`);
      break;
    case "integer":
    case "number": {
      const n = number(value);
      if (n === null) wrong(kind === "integer" ? "must be a whole number" : "must be a number");
      else if (kind === "integer" && !Number.isInteger(n)) wrong("must be a whole number");
      else if (n < (number(schema["minimum"]) ?? -Infinity)) wrong(`must be at least ${stringify(schema["minimum"])}`);
      else if (n > (number(schema["maximum"]) ?? Infinity)) wrong(`must be at most ${stringify(schema["maximum"])}`);
      else if (n <= (number(schema["exclusiveMinimum"]) ?? -Infinity)) wrong(`must be more than ${stringify(schema["exclusiveMinimum"])}`);
      else if (n >= (number(schema["exclusiveMaximum"]) ?? Infinity)) wrong(`must be less than ${stringify(schema["exclusiveMaximum"])}`);
      break;
    }
    case "boolean":
      if (typeof value !== "boolean") wrong("must be true or false");
      break;
    case "object":
      if (!isRecord(value)) wrong("must be an object");
      else {
        for (const member of members) {
          const one = Object.hasOwn(value, member.name) ? value[member.name] : undefined;
          if (one !== undefined || member.required) check(member.schema, one, root, `${path}.${member.name}`, picks, found, depth + 1);
        }
        if (schema["additionalProperties"] === false) {
          for (const name of Object.keys(value)) if (!members.some((one) => one.name === name)) wrong("there is no such field", `${path}.${name}`);
        }
      }
      break;
    case "array":
      if (!Array.isArray(value)) wrong("must be a list");
      else {
        if (value.length < (number(schema["minItems"]) ?? 0)) wrong(`needs ${plural(number(schema["minItems"])!, "item")} at least`);
        if (value.length > (number(schema["maxItems"]) ?? Infinity)) wrong(`has more than ${plural(number(schema["maxItems"])!, "item")}`);
        value.forEach((one, n) => check(itemOf(schema, n), one, root, `${path}[${n}]`, picks, found, depth + 1));
      }
      break;
    case "choice": {
      const picked = options[picks[pickOf(path, nest)] ?? -1];
      if (picked) check(picked.schema, value, root, path, picks, found, depth + PER_CHOICE, nest + 1);
      else Object.assign(found, bestFit(options, value, root, path, depth + PER_CHOICE, picks, nest).misfits);
      break;
    }
  }
  return found;
}

const PER_CHOICE = 6; // levels of depth that one choice counts for: each multiplies the work

/** Return the alternative that the value fits best. A wrong tag or type weighs more than a missing field. */
function bestFit(options: Look["options"], value: Json, root: Schema, path: string, depth: number, picks: Picks = {}, nest = 0): { n: number; misfits: Record<string, Misfit> } {
  let best = { n: 0, misfits: {} as Record<string, Misfit>, cost: Infinity };
  options.forEach(({ schema }, n) => {
    const misfits = check(schema, value, root, path, picks, {}, depth, nest + 1);
    const cost = Object.values(misfits).reduce((sum, one) => sum + (one.isMissing ? 1 : one.isTag ? 100 : 10), 0);
    if (cost < best.cost) best = { n, misfits, cost };
  });
  return best;
}

export const bestOption = (options: Look["options"], value: Json | undefined, root: Schema): number => (value === undefined ? 0 : bestFit(options, value, root, "", 0).n);

// ── Trees ──

export interface Row {
  path: string;
  name: string;
  depth: number;
  type: string;
  required: boolean;
  notes: string[];
  description: string;
}

/** Return all fields of a schema, each with its depth: for a tree, and to compare two versions. */
export function rows(root: Schema): Row[] {
  const found: Row[] = [];
  walk(root, root, "", 0, new Set(), found);
  return found;
}

function walk(given: Json, root: Schema, path: string, depth: number, above: ReadonlySet<string>, found: Row[]): void {
  const ref = refOf(given);
  if (depth > 10 || (ref && above.has(ref))) return;
  const inside = ref ? new Set([...above, ref]) : above;
  const { kind, members, options, schema } = look(given, root);
  if (kind === "object") {
    for (const member of members) {
      const at = path ? `${path}.${member.name}` : member.name;
      found.push({ ...described(member.schema, root, inside), path: at, name: member.name, depth, required: member.required });
      walk(member.schema, root, at, depth + 1, inside, found);
    }
  } else if (kind === "array") {
    const item = itemOf(schema, 0);
    if (!isPlain(item, root)) walk(item, root, `${path}[]`, depth, above, found);
  } else if (kind === "choice" && options.some((one) => !isPlain(one.schema, root))) {
    for (const option of options) {
      const at = `${path}(${option.label})`;
      found.push({ ...described(option.schema, root, inside), path: at, name: option.label, depth, required: false });
      walk(option.schema, root, at, depth + 1, inside, found);
    }
  }
}

/** The definition that a schema refers to, also through null and lists. */
function refOf(given: Json): string {
  if (!isRecord(given)) return "";
  if (typeof given["$ref"] === "string") return given["$ref"];
  const refs = [...list(given["anyOf"]), ...list(given["oneOf"]), ...(given["items"] === undefined ? [] : [given["items"]])].map(refOf).filter(Boolean);
  return refs.length === 1 ? refs[0]! : "";
}

const isPlain = (schema: Json, root: Schema): boolean => ["string", "integer", "number", "boolean", "any", "enum", "const"].includes(look(schema, root).kind);

function described(given: Json, root: Schema, above: ReadonlySet<string>): Omit<Row, "path" | "name" | "depth" | "required"> {
  const { schema } = look(given, root);
  const ref = refOf(given);
  const title = text(schema["title"]);
  return {
    type: typeWords(given, root),
    notes: [...(ref && above.has(ref) ? [`the same fields as ${ref.split("/").at(-1)} above`] : []), ...bounds(given, root)],
    description: text(schema["description"]) || (/\s/.test(title) ? title : ""),
  };
}

export function typeWords(given: Json | undefined, root: Schema, depth = 0): string {
  const { kind, schema, nullable, options, values } = look(given, root);
  const format = text(schema["format"]);
  let words: string;
  if (depth > 3) words = "…";
  else if (kind === "string") words = format || "string";
  else if (kind === "array") words = list(schema["prefixItems"]).length ? "tuple" : `list of ${typeWords(schema["items"], root, depth + 1)}`;
  else if (kind === "choice") words = options.map((one) => one.label).join(" or ");
  else if (kind === "enum") words = values.every((one) => typeof one === "string") ? "string" : "value";
  else if (kind === "const") words = stringify(values[0]);
  else if (kind === "any") words = schema["type"] === "object" ? mapWords(schema, root, depth) : schema["type"] === "array" ? "list" : "any JSON";
  else words = kind;
  return nullable ? `${words} or null` : words;
}

const mapWords = (schema: Schema, root: Schema, depth: number): string =>
  isRecord(schema["additionalProperties"]) ? `object of ${typeWords(schema["additionalProperties"], root, depth + 1)}` : "object";

/** What narrows a value, in words. */
export function bounds(given: Json | undefined, root: Schema): string[] {
  const { schema, kind, values } = look(given, root);
  const n = (name: string): string | null => (schema[name] === undefined ? null : stringify(schema[name]));
  const range = (low: string, high: string, what = ""): string[] => {
    const [from, to] = [n(low), n(high)];
    const said = from !== null && to !== null ? (from === to ? from : `${from} to ${to}`) : from !== null ? `at least ${from}` : to !== null ? `at most ${to}` : "";
    return said ? [what ? `${said} ${what}${(to ?? from) === "1" ? "" : "s"}` : said] : [];
  };
  return [
    ...(kind === "enum" ? [`one of ${values.map((one) => (typeof one === "string" ? one : stringify(one))).join(", ")}`] : []),
    ...range("minimum", "maximum"),
    ...(n("exclusiveMinimum") === null ? [] : [`more than ${n("exclusiveMinimum")}`]),
    ...(n("exclusiveMaximum") === null ? [] : [`less than ${n("exclusiveMaximum")}`]),
    ...(n("multipleOf") === null ? [] : [`a multiple of ${n("multipleOf")}`]),
    ...range("minLength", "maxLength", "character"),
    ...range("minItems", "maxItems", "item"),
    ...(typeof schema["pattern"] === "string" ? [`matches ${schema["pattern"]}`] : []),
    ...(schema["default"] === undefined || schema["default"] === null ? [] : [`default ${stringify(schema["default"])}`]),
  ];
}
