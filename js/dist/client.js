import { FlowsClient } from "./flows.js";
import { JobsClient } from "./jobs.js";
import { Requests } from "./request.js";
import { TokensClient } from "./tokens.js";
export class Rowlock {
    jobs;
    flows;
    tokens;
    constructor(url, options) {
        const requests = new Requests(url, options);
        this.jobs = new JobsClient(requests);
        this.flows = new FlowsClient(requests);
        this.tokens = new TokensClient(requests);
    }
}
