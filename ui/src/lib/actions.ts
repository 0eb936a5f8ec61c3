// The actions on one job, and the toast that reports each.

import { patch, post, remove } from "./api";
import { link } from "./router.svelte";
import { session } from "./session.svelte";
import { act } from "./toasts.svelte";
import type { Job, Status } from "./types";

const short = (id: string): string => id.slice(-8);
const said = (reason?: string): { reason?: string } => (reason ? { reason } : {});

export const jobActions = {
  requeue: (id: string, reason?: string, more: { from_step?: string; keep_steps?: boolean; version?: number } = {}) =>
    act(() => post<Job>(`jobs/${id}/requeue`, { ...said(reason), ...more }), () => `…${short(id)} is pending again`, { href: link("job", id) }),
  cancel: (id: string, reason?: string) =>
    act(() => post<Job>(`jobs/${id}/cancel`, said(reason)), (job) => (job.status === "cancelled" ? `…${short(id)} is cancelled` : `…${short(id)} was asked to stop`), (job) => ({
      href: link("job", id),
      ...(job.status === "cancelled" && session.may("manage") ? { undo: () => post(`jobs/${id}/requeue`, { reason: "cancel undone" }) } : {}),
    })),
  runNow: (id: string) => act(() => patch<Job>(`jobs/${id}`, { delay: 0 }), () => `…${short(id)} is due now`, { href: link("job", id) }),
  wake: (id: string, reason?: string) => act(() => post<Job>(`jobs/${id}/wake`, said(reason)), () => `…${short(id)} goes on now`, { href: link("job", id) }),
  delete: (id: string) => act(() => remove(`jobs/${id}`).then(() => true), () => `…${short(id)} is deleted`),
};

const FROM: Record<string, Status[]> = {
  requeue: ["failed", "expired", "cancelled"],
  cancel: ["pending", "blocked", "waiting", "processing"],
  delete: ["pending", "failed", "cancelled", "expired", "completed"],
  edit: ["pending"],
  signal: ["pending", "blocked", "processing", "waiting"],
};

/** Return why the action is not possible; undefined if it is. */
export function hindrance(action: string, status: Status): string | undefined {
  return FROM[action]?.includes(status) ? undefined : `not possible while the job is ${status.replace("_", " ")}`;
}
