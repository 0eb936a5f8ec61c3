// Flows: how their jobs stand, who waits for whom, and what an operator can do.

import { call, post } from "./api";
import { plural } from "./format";
import type { Link } from "./graph";
import { link } from "./router.svelte";
import { act } from "./toasts.svelte";
import { STATUSES, type Flow, type FlowEdge, type FlowGraph, type FlowNode, type Job, type Shown, type Status } from "./types";

const LIVE: readonly string[] = ["pending", "blocked", "processing", "waiting", "cancel_requested"];
const FAILED: readonly string[] = ["failed", "expired"];

/** The order of a tally: what an operator looks for comes first. */
const ORDER: readonly Shown[] = ["failed", "expired", "held", "processing", "waiting", "cancel_requested", "pending", "blocked", "completed", "cancelled", "not_taken", "deleted"];

/** The status as the page shows it. */
export function shownStatus({ status, held, taken }: Pick<FlowNode, "status" | "held" | "taken">): Shown {
  if (held) return "held";
  if (!taken) return "not_taken";
  return STATUSES.includes(status as Status) ? (status as Status) : "deleted";
}

export const isLive = ({ status }: FlowNode): boolean => LIVE.includes(status ?? "");
export const hasFailed = ({ status }: FlowNode): boolean => FAILED.includes(status ?? "");
export const isCancelled = ({ status, taken }: FlowNode): boolean => status === "cancelled" && taken;

const sumOf = ({ counts }: Flow, which: readonly string[]): number => which.reduce((sum, one) => sum + (counts[one] ?? 0), 0);
export const liveOf = (flow: Flow): number => sumOf(flow, LIVE);
export const failedOf = (flow: Flow): number => sumOf(flow, FAILED);

/** How many jobs stand how. */
export function tally(nodes: readonly FlowNode[]): [Shown, number][] {
  const found = new Map<Shown, number>();
  for (const node of nodes) found.set(shownStatus(node), (found.get(shownStatus(node)) ?? 0) + 1);
  return ORDER.flatMap((one) => (found.has(one) ? [[one, found.get(one)!]] : []));
}

/** The same for a flow of which only the numbers are known. */
export function tallyOf({ counts, held }: Flow): [Shown, number][] {
  const all: Record<string, number> = { ...counts, held, blocked: (counts["blocked"] ?? 0) - held };
  return ORDER.flatMap((one) => ((all[one] ?? 0) > 0 ? [[one, all[one]!]] : []));
}

/** How it is drawn: a job that ctx.gather has started stands behind the one that has started it, which waits for it. */
export const drawn = ({ parent, child, call }: FlowEdge): Link => (call === null ? { from: parent, to: child } : { from: child, to: parent, isCall: true });

/** What a job has to do with others of its flow. */
export interface Relations {
  waitsFor: FlowEdge[]; // edge.parent is the other one
  waitFor: FlowEdge[]; // edge.child is the other one
  started: FlowEdge[]; // edge.parent is the other one
  startedBy: FlowEdge[]; // edge.child is the other one
}

export function relations({ edges }: FlowGraph): (id: string) => Relations {
  const known = new Map<string, Relations>();
  const of = (id: string): Relations => {
    if (!known.has(id)) known.set(id, { waitsFor: [], waitFor: [], started: [], startedBy: [] });
    return known.get(id)!;
  };
  for (const edge of edges) {
    of(edge.child)[edge.call === null ? "waitsFor" : "started"].push(edge);
    of(edge.parent)[edge.call === null ? "waitFor" : "startedBy"].push(edge);
  }
  return of;
}

/** A job and all that wait for it. */
export function branch({ nodes, edges }: FlowGraph, id: string): FlowNode[] {
  const after = new Map<string, string[]>();
  for (const { parent, child } of edges) after.set(parent, [...(after.get(parent) ?? []), child]);
  const found = new Set([id]);
  for (const one of found) for (const child of after.get(one) ?? []) found.add(child); // a Set also visits what is added meanwhile
  return nodes.filter((node) => found.has(node.id));
}

/** What the edge does if its parent does not complete. */
export function edgeWords({ when, if_failed: policy }: FlowEdge): string {
  if (when !== null) return `if ${when}`;
  return { run: "runs even if one fails", hold: "held if one fails" }[policy as string] ?? "";
}

// ── Actions ──

export const path = (id: string, verb = ""): string => `flows/${encodeURIComponent(id)}${verb && `/${verb}`}`;
const said = (reason: string, node?: string): { reason?: string; node?: string } => ({ ...(reason ? { reason } : {}), ...(node ? { node } : {}) });
type Changed = { changed: number };

export const flowActions = {
  cancel: (id: string, reason: string, node?: string) =>
    act(() => post<Changed>(path(id, "cancel"), said(reason, node)), ({ changed }) => (changed ? `${plural(changed, "job is", "jobs are")} cancelled, or asked to stop` : "No job was live any more")),
  requeue: (id: string, reason: string, node?: string) =>
    act(() => post<Changed>(path(id, "requeue"), said(reason, node)), ({ changed }) => (changed ? `${plural(changed, "job runs", "jobs run")} again` : "There was no job to run again")),
  delete: ({ id, name }: Flow, reason: string) => act(() => call("DELETE", path(id), { query: { reason } }).then(() => true), () => `${name} is deleted`),
  release: (id: string, name: string, reason: string) => act(() => post<Job>(`jobs/${encodeURIComponent(id)}/release`, said(reason)), () => `${name} is released`, { href: link("job", id) }),
};
