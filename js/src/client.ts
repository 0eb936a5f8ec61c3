import { FlowsClient } from "./flows.ts";
import { JobsClient } from "./jobs.ts";
import { Requests, type Options } from "./request.ts";
import { TokensClient } from "./tokens.ts";
import type { AnyTopics, TopicMap } from "./types.ts";

/**
 * A rowlock server. In a page, the address may be a path, such as "/queue".
 * `new Rowlock<Topics>(…)` checks topics and payloads; `rowlock templates types` writes `Topics`.
 */
export class Rowlock<Topics extends TopicMap<Topics> = AnyTopics> {
  readonly jobs: JobsClient<Topics>;
  readonly flows: FlowsClient<Topics>;
  readonly tokens: TokensClient;

  constructor(url: string | URL, options?: Options) {
    const requests = new Requests(url, options);
    this.jobs = new JobsClient(requests);
    this.flows = new FlowsClient(requests);
    this.tokens = new TokensClient(requests);
  }
}
