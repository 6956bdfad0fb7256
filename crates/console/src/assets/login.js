// Takes the secret of the login link out of the address, and sends it in a body: it is in no request line, history or Referer.
"use strict";
(async () => {
  const token = location.hash.slice(1);
  history.replaceState(null, "", location.pathname);
  const message = document.getElementById("message");
  if (!token) {
    return;
  }
  message.textContent = "Logging in …";
  try {
    const answer = await fetch("/login", {
      method: "POST",
      body: new URLSearchParams({ token }),
      credentials: "same-origin",
    });
    const text = await answer.text();
    if (answer.ok) {
      location.replace(text);
    } else {
      message.textContent = text;
      message.setAttribute("role", "alert");
    }
  } catch {
    message.textContent = "The console does not answer any more. Run strongroom console again, and open its new link.";
  }
})();
