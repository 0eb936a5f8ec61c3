// This file is compiled, never run: it has what TypeScript must accept, and what it must refuse.

import { Rowlock, type api, type Filter, type Job, type JobStatus } from "../src/index.ts";

interface Topics {
  mail_digest: { payload: { userId: string; at?: string }; result: { sent: number } };
  check_payment: { payload: { orderId: string }; result: unknown };
}
type Same<A, B> = (<T>() => T extends A ? 1 : 2) extends <T>() => T extends B ? 1 : 2 ? true : false;
const is = <_ extends true>(): void => {};

// ── With topics ──
const client = new Rowlock<Topics>("/queue", { token: () => fetch("/token").then((answer) => answer.text()) });
const { jobs } = client;
const id: string = await jobs.enqueue("mail_digest", { userId: "123" }, { runAt: new Date(), maxRetries: 3, priority: "backfill", ifLive: "queue" });
await jobs.enqueue("check_payment", { orderId: "4" }, { runAt: "2030-01-01T00:00:00Z", scopeId: undefined });
await jobs.enqueue("check_payment", { orderId: "4" }, { key: "4", debounce: { seconds: 30, atMost: 300 } });
await jobs.enqueueMany([{ topic: "check_payment", payload: { orderId: "4" }, key: "4", throttle: 3600 }]);
// @ts-expect-error: an option in the spelling of answers
await jobs.enqueue("check_payment", { orderId: "4" }, { key: "4", debounce: { seconds: 30, at_most: 300 } });
// @ts-expect-error: no such topic
await jobs.enqueue("mail_digset", { userId: "123" });
// @ts-expect-error: a wrong payload
await jobs.enqueue("mail_digest", { userId: 123 });
// @ts-expect-error: the payload of another topic
await jobs.enqueue("mail_digest", { orderId: "4" });
// @ts-expect-error: no such option
await jobs.enqueue("mail_digest", { userId: "123" }, { maxRetrys: 3 });
// @ts-expect-error: an option in the spelling of answers
await jobs.enqueue("mail_digest", { userId: "123" }, { max_retries: 3 });
// @ts-expect-error: not a time
await jobs.enqueue("mail_digest", { userId: "123" }, { runAt: 5 });
// @ts-expect-error: not a Date
await jobs.enqueue("mail_digest", { userId: "123" }, { key: new Date() });

await jobs.enqueueMany([{ topic: "mail_digest", payload: { userId: "1" }, tags: ["a"] }, { topic: "check_payment", payload: { orderId: "1" } }]);
// @ts-expect-error: a wrong payload
await jobs.enqueueMany([{ topic: "mail_digest", payload: { orderId: "1" } }]);

const job = await jobs.get(id);
if (job.topic === "mail_digest") {
  is<Same<typeof job.payload, { userId: string; at?: string }>>();
  is<Same<typeof job.result, { sent: number } | null>>();
}
const known = await jobs.wait<"mail_digest">(id, { timeout: 5 });
is<Same<typeof known.payload.userId, string>>();
is<Same<typeof known.created, api.Time>>();
const status: JobStatus = known.status;
if (status === "completed" || status === "a status of a later version") client.tokens.list();

for await (const one of jobs.watch(id)) is<Same<typeof one, api.LiveJob>>();
for await (const view of jobs.watch({ topic: "mail_digest", status: ["pending", "failed"] })) is<Same<typeof view.jobs, api.LiveJob[]>>();
for await (const one of jobs.list({ topic: ["mail_digest", "check_payment"], createdFrom: new Date() })) is<Same<typeof one, Job<Topics>>>();
// @ts-expect-error: no such topic
jobs.list({ topic: "mail" });
// @ts-expect-error: no such status
jobs.list({ status: "done" });
const filter: Filter<Topics> = { tag: "a" };
is<Same<Awaited<ReturnType<typeof jobs.stats>>, api.StatsAnswer>>();
await jobs.stats(filter);
await jobs.requeue(id, { fromStep: "embed", version: 3 });
// @ts-expect-error: a new job has no such option
await jobs.clone(id, { ifLive: "queue" });
is<Same<Awaited<ReturnType<typeof jobs.signal>>, boolean>>();
is<Same<Awaited<ReturnType<typeof jobs.chain>>, api.FlowCreated>>();
await jobs.chain([id, { topic: "check_payment", payload: { orderId: "4" } }, { topic: "mail_digest", payload: { userId: { $result: "check_payment.user" } } }]);
await client.flows.create({ name: "order", jobs: [{ name: "pay", topic: "check_payment", payload: { orderId: "4" }, maxRetries: 3 }] });
await client.flows.create({ name: "order", jobs: [{ topic: "mail_digest", payload: { userId: "1" }, after: ["pay"], ifFailed: "hold", when: "pay.status = 'failed'" }] });
// @ts-expect-error: a wrong payload
await client.flows.create({ name: "order", jobs: [{ topic: "mail_digest", payload: { userId: 1 } }] });
// @ts-expect-error: no such topic
await jobs.chain([{ topic: "mail_digset", payload: {} }]);
// @ts-expect-error: no such policy
await jobs.chain([id], { ifFailed: "wait" });
for await (const flow of client.flows.list({ name: "order" })) is<Same<typeof flow, api.FlowBody>>();
is<Same<Awaited<ReturnType<typeof client.flows.cancel>>, number>>();
await jobs.signal({ topic: "order", key: "7" }, "paid", { amount: 3 }, { id: "once" });
const { token } = await client.tokens.create({ name: "shop", scopes: ["enqueue"], expiresAt: new Date() });
is<Same<typeof token, string>>();
await client.tokens.create({ scope: "user", scopeId: "7", enqueue: ["mail_digest"], cancel: true, seconds: 900 });

// ── Without topics, everything is allowed ──
const pb = new Rowlock("http://127.0.0.1:8090", { token: "rlk_…" });
interface Payload {
  userId: string;
}
const payload: Payload = { userId: "1" };
await pb.jobs.enqueue("anything", payload);
await pb.jobs.enqueueMany([{ topic: "anything", payload }]);
const free = await pb.jobs.get(id);
is<Same<typeof free.topic, string>>();
free.payload.anything.at.all;
// @ts-expect-error: but options are checked
await pb.jobs.enqueue("anything", payload, { retries: 3 });
