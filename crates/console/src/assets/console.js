// Keeps what a page shows up to date: asks for the page again and exchanges the parts that are marked with data-live.
"use strict";
(() => {
  const EVERY_MS = 2000;
  const FAILED_EVERY_MS = 5000;
  const banner = document.getElementById("banner");
  const lived = () => document.querySelectorAll("[data-live]");

  function say(text) {
    if (banner.textContent !== text) {
      banner.textContent = text;
      banner.hidden = text === "";
    }
  }

  // Who uses the keyboard stays where they are.
  function exchange(old, fresh) {
    if (old.innerHTML === fresh.innerHTML) {
      return;
    }
    const focused = old.contains(document.activeElement) ? document.activeElement : null;
    const index = focused ? [...old.querySelectorAll("a, button")].indexOf(focused) : -1;
    const key = focused && (focused.getAttribute("href") || focused.textContent);
    old.replaceChildren(...fresh.childNodes);
    if (focused) {
      const all = [...old.querySelectorAll("a, button")];
      const same = all.find((one) => (one.getAttribute("href") || one.textContent) === key) || all[index];
      same?.focus({ preventScroll: true });
    }
  }

  async function refresh() {
    if (document.hidden) {
      return EVERY_MS;
    }
    let answer;
    try {
      answer = await fetch(location.href, { headers: { "X-Console-Refresh": "1" }, credentials: "same-origin" });
    } catch {
      say("The console does not answer. What is shown is old. Trying again …");
      return FAILED_EVERY_MS;
    }
    if (answer.status === 401) {
      say("The login has expired. Get a new link where strongroom console runs, or run it again.");
      return 0;
    }
    const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
    // A target that is back has forms, too.
    if (document.body.dataset.target === "away" && fresh.body.dataset.target === "here") {
      location.reload();
      return 0;
    }
    if (fresh.body.dataset.target === "away") {
      say(fresh.getElementById("problem")?.textContent || "The target does not answer.");
      return FAILED_EVERY_MS;
    }
    say("");
    for (const old of lived()) {
      const one = fresh.getElementById(old.id);
      if (one) {
        exchange(old, one);
      }
    }
    return EVERY_MS;
  }

  async function goOn() {
    const next = await refresh();
    if (next) {
      setTimeout(goOn, next);
    }
  }

  if (lived().length > 0) {
    setTimeout(goOn, EVERY_MS);
  }

  for (const button of document.querySelectorAll("button[data-copy]")) {
    button.hidden = false;
    button.addEventListener("click", async () => {
      const text = document.getElementById(button.dataset.copy);
      await navigator.clipboard.writeText(text.value ?? text.textContent);
      button.textContent = "Copied";
    });
  }
})();
