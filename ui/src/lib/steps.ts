// The steps of a job: their names, and what a requeue does to their results.

import type { JobStep } from "./types";

/** The name by which a requeue finds the step: "embed", or "embed#3" for the third call. */
export const stepName = ({ name, n }: JobStep): string => (n > 1 ? `${name}#${n}` : name);

/** For people. */
export const stepTitle = (step: JobStep): string => (step.title ? (step.n > 1 ? `${step.title} #${step.n}` : step.title) : stepName(step));

export const isDone = ({ state }: JobStep): boolean => state === "succeeded";

/** The steps whose results a requeue from this one drops, and those that keep theirs. null: from the start. */
export function split(steps: JobStep[], from: JobStep | null): { kept: JobStep[]; dropped: JobStep[] } {
  const before = from?.position ?? 0;
  const done = steps.filter((step) => isDone(step) && step.position !== null);
  return { kept: done.filter((step) => step.position! < before), dropped: done.filter((step) => step.position! >= before) };
}

const MOST_NAMED = 5;

/** "Download, Split and 3 more". */
export function named(steps: JobStep[]): string {
  const titles = steps.map(stepTitle);
  return titles.length <= MOST_NAMED ? titles.join(", ") : `${titles.slice(0, MOST_NAMED - 1).join(", ")} and ${titles.length - MOST_NAMED + 1} more`;
}
