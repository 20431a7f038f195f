// Update the region of a page with what the server rendered; focus and open details are kept.

import { announce, onKeys } from "./ui.js";

const POLL_MS = 10000;
const FOCUSABLE = "a, summary, button, [tabindex]";
const region = document.getElementById("region");
const pause = document.getElementById("pause");
let source = null;
let timer = null;
let isPaused = false;

const places = (selector) => [...region.querySelectorAll(selector)];

// People select text or rows, fill in a form, or press a button: the region waits for them.
const isInUse = () => !window.getSelection().isCollapsed || region.querySelector(":active") !== null
  || places("input").some((each) => each === document.activeElement || each.checked !== each.defaultChecked
    || each.value !== each.defaultValue);
let waiting = null;

const replace = (nodes) => {
  waiting = isPaused ? null : nodes;
  apply();
  if (waiting !== null) announce("Updates wait until nothing is selected or filled in.");
};

const apply = () => {
  if (waiting === null || isInUse()) return;
  const nodes = waiting;
  waiting = null;
  const focused = places(FOCUSABLE).indexOf(document.activeElement);
  const open = places("details").map((each) => each.open);
  const scrolled = places(".wide").map((each) => each.scrollLeft);
  region.replaceChildren(...nodes);
  places("details").forEach((each, place) => { each.open = open[place] ?? each.open; });
  places(".wide").forEach((each, place) => { each.scrollLeft = scrolled[place] ?? 0; });
  document.dispatchEvent(new Event("updated"));
  if (focused >= 0) places(FOCUSABLE)[focused]?.focus({ preventScroll: true });
  announce("");
};

for (const each of ["change", "focusout", "pointerup"]) region?.addEventListener(each, () => setTimeout(apply));
if (region !== null) document.addEventListener("selectionchange", apply);

const parse = (html) => new DOMParser().parseFromString(html, "text/html");

const showRead = (found) => {
  if (waiting !== null || isPaused) return; // the page still shows what was read before
  document.getElementById("read").replaceChildren(...found.childNodes);
  document.dispatchEvent(new Event("updated"));
};

const poll = async () => {
  try {
    const answer = await fetch(window.location.href, { headers: { accept: "text/html" } });
    const page = answer.ok ? parse(await answer.text()) : null;
    const found = page?.getElementById("region") ?? null;
    if (found === null) throw new Error(`status ${answer.status}`);
    replace([...found.childNodes]);
    showRead(page.getElementById("read"));
  } catch {
    announce("This page could not be updated.");
  }
};

const stop = () => {
  source?.close();
  source = null;
  clearInterval(timer);
  timer = null;
};

const start = () => {
  stop();
  if (region === null || isPaused || document.hidden || region.dataset.live === undefined) return;
  source = new EventSource(region.dataset.live);
  source.addEventListener("region", (event) => replace([...parse(JSON.parse(event.data)).body.childNodes]));
  source.addEventListener("read", (event) => showRead(parse(JSON.parse(event.data)).body));
  source.addEventListener("problem", (event) => announce(JSON.parse(event.data)));
  source.addEventListener("error", () => {
    if (source?.readyState !== EventSource.CLOSED) return; // otherwise the browser connects again
    stop();
    timer = setInterval(poll, POLL_MS);
  });
};

const setPaused = (value) => {
  isPaused = value;
  pause.setAttribute("aria-pressed", String(value));
  const [word, rest] = pause.children;
  word.textContent = value ? "Paused" : "Live";
  rest.textContent = value ? ", resume updates" : ", pause updates";
  start();
};

document.addEventListener("visibilitychange", start);
window.addEventListener("pagehide", stop);
if (pause !== null) {
  pause.hidden = false;
  pause.addEventListener("click", () => setPaused(!isPaused));
  onKeys({ p: () => setPaused(!isPaused) });
}
start();
