// The handlers that `rowlock-worker` runs.

import { seen } from "./marks.mjs";

export const workers = {
  async noop(job) {
    seen(job.payload.n);
  },
};
