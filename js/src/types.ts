// The types of requests and answers, made from those of the API.

import type { DebounceAsked, EnqueueBody, JobBody, ListJobsQuery, Status } from "./api.ts";

type Camel<Name extends string> = Name extends `${infer Head}_${infer Tail}` ? `${Head}${Capitalize<Camel<Tail>>}` : Name;
type TimeName = `${string}_at` | `${string}_from` | `${string}_until`;
type IfOptional<Body, Name extends keyof Body> = {} extends Pick<Body, Name> ? undefined : never;

/** A body of the API as callers write it: in camelCase, with Dates for times. The server understands both spellings. */
export type Asked<Body> = {
  [Name in keyof Body as Camel<Name & string>]: Body[Name] | (Name extends TimeName ? Date : never) | IfOptional<Body, Name>;
};

export interface Abortable {
  /** Ends the call, which throws the signal's reason. */
  signal?: AbortSignal | undefined;
}

/** Topics that nothing is known about: any name, any payload, any result. `rowlock templates types` writes an interface that knows yours. */
export type AnyTopics = Record<string, { payload: any; result: any }>;
/** What an interface of topics must look like. */
export type TopicMap<Topics> = { [Topic in keyof Topics]: { payload: unknown; result: unknown } };
export type TopicOf<Topics> = keyof Topics & string;

/** A server of a later version may know more statuses. */
export type JobStatus = Status | (string & {});

/** A job. If `topic` is checked, TypeScript knows the types of its payload and its result. */
export type Job<Topics extends TopicMap<Topics> = AnyTopics, Topic extends TopicOf<Topics> = TopicOf<Topics>> = {
  [Name in Topic]: Omit<JobBody, "topic" | "payload" | "result" | "status"> & {
    topic: Name;
    payload: Topics[Name]["payload"];
    /** null until the job is completed. */
    result: Topics[Name]["result"] | null;
    status: JobStatus;
  };
}[Topic];

interface JobOptions extends Asked<Omit<EnqueueBody, "topic" | "payload" | "debounce">> {
  /** The job runs `seconds` after the last enqueue with its key, but not later than `atMost` seconds after the first one. */
  debounce?: Asked<DebounceAsked> | undefined;
}
export interface EnqueueOptions extends JobOptions, Abortable {}

/** One of the jobs of `enqueueMany`. */
export type NewJob<Topics extends TopicMap<Topics> = AnyTopics> = {
  [Name in TopicOf<Topics>]: { topic: Name; payload: Topics[Name]["payload"] } & JobOptions;
}[TopicOf<Topics>];

type OneOrMany<Value> = Value extends (infer One)[] ? One | readonly One[] : Value;
type Filters = Asked<Omit<ListJobsQuery, "limit" | "offset" | "cursor">>;

/** Which jobs. `payload`: "path=value", such as "user.id=7"; the value is JSON. */
export type Filter<Topics extends TopicMap<Topics> = AnyTopics> = {
  [Name in keyof Omit<Filters, "topic">]: OneOrMany<Filters[Name]>;
} & { topic?: TopicOf<Topics> | readonly TopicOf<Topics>[] | undefined };
