// The steps of a job: their names, and what a requeue does to their results.

import type { JobStep } from "./types";
import { isRealStep, isWait, waitTitle } from "./waits";

/** For people. */
export function stepTitle(step: JobStep): string {
  const title = step.title ?? (isRealStep(step) ? null : waitTitle(step));
  return title === null ? step.label : step.n > 1 ? `${title} #${step.n}` : title;
}

export const isDone = ({ state }: JobStep): boolean => state === "succeeded";

/** What a requeue from this step does: the steps that run again and those that keep their results, and the waits that begin again.
 null: from the start. */
export function split(steps: JobStep[], from: JobStep | null): { kept: JobStep[]; dropped: JobStep[]; waits: JobStep[] } {
  const before = from?.position ?? 0;
  const reached = steps.filter((step) => step.position !== null);
  const done = reached.filter((step) => isDone(step) && isRealStep(step));
  return {
    kept: done.filter((step) => step.position! < before),
    dropped: done.filter((step) => step.position! >= before),
    waits: reached.filter((step) => isWait(step) && step.state !== "running" && step.position! >= before),
  };
}

const MOST_NAMED = 5;

/** "Download, Split and 3 more". */
export function named(steps: JobStep[]): string {
  const titles = steps.map(stepTitle);
  return titles.length <= MOST_NAMED ? titles.join(", ") : `${titles.slice(0, MOST_NAMED - 1).join(", ")} and ${titles.length - MOST_NAMED + 1} more`;
}
