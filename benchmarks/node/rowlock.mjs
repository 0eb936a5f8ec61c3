// The JavaScript SDK of rowlock, which asks `rowlock serve`. rowlock-workers.mjs has the handlers.

import { Rowlock } from "../../js/dist/index.js";
import { options, run } from "./verbs.mjs";

await run({
  async open(url) {
    const { jobs } = new Rowlock(url, { token: options.token });
    return {
      ping: () => jobs.stats(),
      enqueue: (payload) => jobs.enqueue("noop", payload),
      enqueueMany: (payloads) => jobs.enqueueMany(payloads.map((payload) => ({ topic: "noop", payload }))),
      close: () => {},
    };
  },
});
