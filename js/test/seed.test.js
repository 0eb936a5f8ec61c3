// The samples of the first plan for this client, as they are printed there.

import assert from "node:assert/strict";
import { test } from "node:test";

import { Rowlock } from "../dist/index.js";
import { TOKEN, URL_ } from "./helpers.js";

const pb = new Rowlock(URL_, { token: TOKEN });

test("a job for now", async () => {
  const jobId = await pb.jobs.enqueue('mail_digest', { userId: '123' });
  const job = await pb.jobs.get(jobId);
  assert.equal(job.topic, "mail_digest");
  assert.deepEqual(job.payload, { userId: "123" });
  assert.equal(job.status, "pending");
});

test("a job for later", async () => {
  const jobId = await pb.jobs.enqueue('check_payment', { orderId: '456' }, { 
      runAt: new Date(Date.now() + 15 * 60 * 1000) // 15分钟后执行
  });
  const job = await pb.jobs.get(jobId);
  const minutes = (Date.parse(job.run_at) - Date.now()) / 60_000;
  assert.ok(minutes > 14 && minutes < 15.1, `${minutes}`);
});
