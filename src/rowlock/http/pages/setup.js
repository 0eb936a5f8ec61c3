const form = document.getElementById("form");
const said = document.getElementById("said");
const token = location.hash.slice(1);

form.addEventListener("submit", async (event) => {
  event.preventDefault();
  said.textContent = "…";
  try {
    const answer = await fetch("../api/auth/setup", {
      method: "POST",
      headers: { "content-type": "application/json", "x-rowlock-csrf": "1" },
      body: JSON.stringify({
        token,
        email: document.getElementById("email").value,
        password: document.getElementById("password").value,
      }),
    });
    const told = await answer.json();
    if (answer.ok) {
      form.replaceChildren(said);
      history.replaceState(null, "", location.pathname);
      said.textContent = `Done: you are logged in as ${told.name}.`;
    } else {
      said.textContent = told.detail;
    }
  } catch {
    said.textContent = "The server can't be reached.";
  }
});
if (!token) said.textContent = "This page needs the whole link from the console, with what stands behind the #.";
