export const MOST_BYTES = 1 << 20;
export class Unfit extends Error {
}
export function encode(value) {
    let text;
    try {
        text = value === undefined ? "null" : JSON.stringify(value, refuse);
    }
    catch (error) {
        throw new Unfit(problem(value, "result", []) ?? String(error));
    }
    if (text === undefined)
        throw new Unfit(problem(value, "result", []) ?? "JSON can't hold it");
    const bytes = Buffer.byteLength(text);
    if (bytes > MOST_BYTES)
        throw new Unfit(`it has ${bytes} bytes of JSON, and ${MOST_BYTES} are allowed: store the data elsewhere, and return its id`);
    return text;
}
function refuse(_key, value) {
    if (unfit(value) !== undefined)
        throw new Unfit();
    return value;
}
function unfit(value) {
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
function problem(value, path, above) {
    let plain = value;
    if (typeof value?.toJSON === "function") {
        try {
            plain = value.toJSON();
        }
        catch (error) {
            return `${path}.toJSON() throws ${String(error)}`;
        }
    }
    const why = unfit(plain);
    if (why !== undefined)
        return `${path} ${why}`;
    if (typeof plain !== "object" || plain === null)
        return undefined;
    if (above.includes(plain))
        return `${path} is an object that contains itself`;
    const names = Array.isArray(plain) ? plain.keys() : Object.keys(plain);
    for (const name of names) {
        const inner = typeof name === "number" ? `${path}[${name}]` : `${path}.${name}`;
        const found = problem(plain[name], inner, [...above, plain]);
        if (found !== undefined)
            return found;
    }
    return undefined;
}
