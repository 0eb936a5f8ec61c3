import { Rowlock } from "rowlock";

// The client asks for a token when it needs one, and for a new one when the server refuses the old one.
const client = new Rowlock("/queue", { token: askForToken });

async function askForToken() {
  const answer = await fetch("/token");
  if (answer.status === 401) location.reload(); // the login has ended
  if (!answer.ok) throw new Error(`no token: ${answer.status}`);
  return answer.text();
}

document.querySelector("#new").addEventListener("submit", async (event) => {
  event.preventDefault();
  const film = new FormData(event.target).get("film");
  await tell(async () => {
    const id = await client.jobs.enqueue("render", { film });
    follow(id, film);
  });
});

/** Show a job until it has ended. */
async function follow(id, film) {
  const row = add(id, film);
  await tell(async () => {
    for await (const job of client.jobs.watch(id)) show(row, job);
  });
}

function add(id, film) {
  const row = document.querySelector("#job").content.cloneNode(true).querySelector("li");
  row.dataset.id = id;
  row.querySelector(".film").textContent = film;
  row.querySelector("progress").ariaLabel = film;
  const cancel = row.querySelector(".cancel");
  cancel.addEventListener("click", () => {
    cancel.disabled = true;
    return tell(() => client.jobs.cancel(id, { reason: "on the page" }));
  });
  document.querySelector("#jobs").prepend(row);
  document.querySelector("#empty").hidden = true;
  return row;
}

const LIVE = ["pending", "blocked", "processing", "waiting", "cancel_requested"];

function show(row, job) {
  row.dataset.status = job.status;
  row.querySelector(".status").textContent = job.status.replace("_", " ");
  row.querySelector("progress").value = job.progress;
  row.querySelector(".message").textContent = job.message ?? "";
  row.querySelector(".cancel").hidden = !LIVE.includes(job.status);
}

/** Do it, and show what went wrong. */
async function tell(work) {
  const problem = document.querySelector("#problem");
  problem.hidden = true;
  try {
    await work();
  } catch (error) {
    problem.textContent = error.message;
    problem.hidden = false;
  }
}

// After a reload, the page goes on with the jobs that this user has. It sees no others.
await tell(async () => {
  const { items } = await client.jobs.list({ topic: "render", limit: 20 }).page();
  for (const job of items.reverse()) {
    if (LIVE.includes(job.status)) follow(job.id, job.payload.film);
    else show(add(job.id, job.payload.film), job);
  }
});
document.body.dataset.ready = "true";
