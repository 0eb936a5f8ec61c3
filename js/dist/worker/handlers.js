var __rewriteRelativeImportExtension = (this && this.__rewriteRelativeImportExtension) || function (path, preserveJsx) {
    if (typeof path === "string" && /^\.\.?\//.test(path)) {
        return path.replace(/\.(tsx)$|((?:\.d)?)((?:\.[^./]+?)?)\.([cm]?)ts$/i, function (m, tsx, d, ext, cm) {
            return tsx ? preserveJsx ? ".jsx" : ".js" : d && (!ext || !cm) ? m : (d + ext + "." + cm.toLowerCase() + "js");
        });
    }
    return path;
};
import { readFileSync } from "node:fs";
import { resolve } from "node:path";
import { pathToFileURL } from "node:url";
const LANE = /^([A-Za-z0-9_.:/-]+)(?:@(\d{1,7}))?$/;
const MOST_LANES = 100;
export function laneOf({ topic, template_version }) {
    return template_version === 0 ? topic : `${topic}@${template_version}`;
}
export function readHandlers(workers, topics) {
    const found = new Map();
    const register = (name, handler) => {
        const [, topic, version = "0"] = LANE.exec(name) ?? [];
        if (topic === undefined)
            throw new TypeError(`${JSON.stringify(name)} is no topic. Use letters, digits and _ . : / -, and @1 for version 1 of its template`);
        if (typeof handler !== "function")
            throw new TypeError(`The handler of ${name} is not a function`);
        const lane = laneOf({ topic, template_version: Number(version) });
        if (found.has(lane))
            throw new TypeError(`There are two handlers of ${lane}`);
        found.set(lane, handler);
    };
    if (typeof workers === "function") {
        const promise = workers(register);
        if (promise instanceof Promise)
            throw new TypeError("The function that registers the workers must not be async. Use await at the top of the module");
    }
    else
        for (const name of Object.keys(workers))
            register(name, typeof workers[name] === "function" ? workers[name].bind(workers) : workers[name]);
    if (found.size === 0)
        throw new TypeError("There are no workers: give an object of topics and handlers");
    return chosen(found, topics);
}
function chosen(all, topics) {
    const missing = topics?.find((wanted) => ![...all.keys()].some((lane) => isMeant(wanted, lane)));
    if (missing !== undefined)
        throw new TypeError(`There is no handler of the topic ${JSON.stringify(missing)}. There are ${[...all.keys()].join(", ")}`);
    const some = new Map([...all].filter(([lane]) => topics?.some((wanted) => isMeant(wanted, lane)) ?? true));
    if (some.size > MOST_LANES)
        throw new TypeError(`A worker may run at most ${MOST_LANES} topics, and there are ${some.size}: choose some by the option topics`);
    return some;
}
const isMeant = (wanted, lane) => lane === wanted || lane.startsWith(`${wanted}@`);
export async function load(file) {
    const path = resolve(file);
    try {
        readFileSync(path);
    }
    catch {
        throw new TypeError(`There is no file ${file}`);
    }
    const module = await imported(path, file);
    const workers = module["workers"] ?? module["default"];
    if ((typeof workers !== "object" && typeof workers !== "function") || workers === null) {
        throw new TypeError(`${file} exports no workers. Write: export const workers = { async my_topic(job) { … } };`);
    }
    return workers;
}
async function imported(path, file) {
    try {
        return (await import(__rewriteRelativeImportExtension(pathToFileURL(path).href)));
    }
    catch (error) {
        if (error.code !== "ERR_UNKNOWN_FILE_EXTENSION") {
            throw new TypeError(`${file} can't be imported: ${error instanceof Error ? error.stack : String(error)}`, { cause: error });
        }
        throw new TypeError(`Node ${process.versions.node} can't run TypeScript: ${file}. Use Node 22.18 or newer, or compile the file and give the .js file, or start with: node --import tsx node_modules/.bin/rowlock-worker ${file}`);
    }
}
