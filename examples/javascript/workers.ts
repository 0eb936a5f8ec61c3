// Handlers of three topics. README.md says how to run them.
import { Cancelled, Final, Suspend, type Run } from "rowlock/worker";

const pause = (seconds: number, signal: AbortSignal): Promise<void> =>
  new Promise((resolve, reject) => {
    const timer = setTimeout(resolve, seconds * 1000);
    signal.addEventListener("abort", () => (clearTimeout(timer), reject(signal.reason)), { once: true });
  });

export const workers = {
  /** A plain job: an error is retried, Final is not. */
  async mail_digest(job: Run<{ to: string }>) {
    if (!job.payload.to.includes("@")) throw new Final(`${job.payload.to} is no address`);
    return `sent to ${job.payload.to}`;
  },

  /** A long job: it reports, and stops when it is cancelled. */
  async render(job: Run<{ frames: number }>) {
    for (let frame = 1; frame <= job.payload.frames; frame++) {
      await pause(0.1, job.signal);
      job.progress((100 * frame) / job.payload.frames, { stage: "rendering", message: `frame ${frame}` });
    }
    job.log("all frames are there");
    return { frames: job.payload.frames };
  },

  /** Steps are done once. The job waits for days, holds no worker meanwhile, and is undone if it is cancelled. */
  async booking(job: Run<{ seat: string }>) {
    const seat = await job.step("reserve", () => `reservation of ${job.payload.seat}`);
    try {
      const paid = await job.waitFor<{ ok: boolean }>("paid", { timeout: 3 * 86_400, default: { ok: false } });
      if (paid.ok) return await job.step("confirm", () => `${seat} is paid`, { maxRetries: 5, delays: [5, 30, 120] });
    } catch (error) {
      if (error instanceof Suspend) throw error; // the job only waits
      if (!(error instanceof Cancelled)) throw error;
      await job.step("give back", () => console.log("given back:", seat), { cancelable: false });
      throw error;
    }
    await job.step("give back", () => console.log("given back:", seat));
    return "not paid in time";
  },
};
