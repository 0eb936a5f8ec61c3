import type { FlowBody, FlowCreateBody, FlowCreated, FlowJob as JobOfFlow, GraphAnswer } from "./api.ts";
import { newId } from "./ids.ts";
import { List } from "./pages.ts";
import { part, type Requests } from "./request.ts";
import { isOwn } from "./together.ts";
import type { Abortable, AnyTopics, Asked, TopicMap, TopicOf } from "./types.ts";

/** Stands for the result of a job of the flow, or for a part of it: `{ $result: "pay.amount" }`. */
export interface Result {
  $result: string | (string | number)[];
}
type OrResult<Value> = Result | (Value extends object ? { [Name in keyof Value]: OrResult<Value[Name]> } : Value);

/** A job of a flow. `after`: names of jobs of the flow, or ids of jobs. */
export type FlowJob<Topics extends TopicMap<Topics> = AnyTopics> = {
  [Name in TopicOf<Topics>]: { topic: Name; payload?: OrResult<Topics[Name]["payload"]> } & Asked<Omit<JobOfFlow, "topic" | "payload">>;
}[TopicOf<Topics>];
export type NewFlow<Topics extends TopicMap<Topics> = AnyTopics> = Asked<Omit<FlowCreateBody, "jobs">> & { jobs: readonly FlowJob<Topics>[] };
type Branch = { node?: string | undefined; reason?: string | undefined } & Abortable;

export class FlowsClient<Topics extends TopicMap<Topics> = AnyTopics> {
  readonly #requests: Requests;

  /** @internal */
  constructor(requests: Requests) {
    this.#requests = requests;
  }

  /** Add jobs that wait for each other: all or none. A retry adds no second flow. `jobs` has them by their names in the flow. */
  create(flow: NewFlow<Topics>, { signal }: Abortable = {}): Promise<FlowCreated> {
    return createFlow(this.#requests, flow, signal);
  }

  /** The flow with its jobs and what they wait for. */
  get(id: string, { signal }: Abortable = {}): Promise<GraphAnswer> {
    return this.#requests.send("GET", `/api/flows/${part(id)}`, { signal });
  }

  /** Flows, the newest first. `limit`: of one page. */
  list({ signal, ...query }: { name?: string | undefined; limit?: number | undefined } & Abortable = {}): List<FlowBody> {
    return new List(this.#requests, "/api/flows", { query, signal });
  }

  /** Cancel the live jobs; with `node`, that job and those that wait for it. Returns how many. */
  cancel(id: string, branch: Branch = {}): Promise<number> {
    return this.#steer(id, "cancel", branch);
  }

  /** Run the failed and expired jobs again; if there are none, the cancelled ones. Returns how many. */
  requeue(id: string, branch: Branch = {}): Promise<number> {
    return this.#steer(id, "requeue", branch);
  }

  /** Delete the flow and its jobs, if none of them is live. */
  async delete(id: string, { signal, ...query }: Omit<Branch, "node"> = {}): Promise<void> {
    await this.#requests.send("DELETE", `/api/flows/${part(id)}`, { query, signal });
  }

  async #steer(id: string, verb: string, { signal, ...body }: Branch): Promise<number> {
    return (await this.#requests.send<{ changed: number }>("POST", `/api/flows/${part(id)}/${verb}`, { body, signal })).changed;
  }
}

/** @internal */
export async function createFlow(
  requests: Requests, flow: { id?: string | null | undefined; name: string; jobs: readonly object[] }, signal: AbortSignal | undefined,
): Promise<FlowCreated> {
  const id = flow.id ?? newId();
  try {
    return await requests.send("POST", "/api/flows", { body: { ...flow, id }, signal, repeatable: true });
  } catch (error) {
    if (flow.id || !isOwn(error)) throw error;
    return { id, name: flow.name, jobs: {} };
  }
}
