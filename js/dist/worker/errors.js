const MOST_TEXT = 16_000;
const MOST_CAUSES = 5;
const OWN = new URL(".", import.meta.url).href;
export function typeOf(error) {
    if (!(error instanceof Error))
        return "Error";
    return String(error.name === "Error" && error.constructor.name ? error.constructor.name : error.name);
}
export function messageOf(error) {
    return wellFormed(error instanceof Error ? error.message : textOf(error)).slice(0, MOST_TEXT);
}
function textOf(value) {
    try {
        return (typeof value === "object" && JSON.stringify(value)) || String(value);
    }
    catch {
        return "an object that JSON can't hold";
    }
}
export function errorText(error) {
    const stacks = [];
    for (let one = error, n = 0; one instanceof Error && n < MOST_CAUSES; one = one.cause, n++) {
        const frames = (one.stack ?? "").split("\n").filter((line) => /^\s+at /.test(line) && !line.includes(OWN));
        stacks.push([`${n > 0 ? "Caused by: " : ""}${typeOf(one)}: ${one.message}`, ...frames].join("\n"));
    }
    return `${wellFormed(stacks.join("\n")).slice(0, MOST_TEXT)}\n${typeOf(error)}: ${messageOf(error)}`.trimStart();
}
const wellFormed = (text) => Buffer.from(text).toString();
