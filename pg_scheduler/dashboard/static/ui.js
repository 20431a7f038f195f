// What all scripts use, and what every page has: messages, dialogs, the theme, times, copying, and the keys.

const TYPING_MS = 150;

export const all = (selector, within = document) => [...within.querySelectorAll(selector)];
export const make = (name, properties, ...children) => {
  const element = Object.assign(document.createElement(name), properties);
  element.append(...children);
  return element;
};
export const parse = (html) => new DOMParser().parseFromString(html, "text/html");

// Return the answer of the server with the page in it.
export const load = async (url, options) => {
  const answer = await fetch(url, { headers: { accept: "text/html" }, ...options });
  return { answer, page: parse(await answer.text()) };
};

// Show something now, and after each update of the page.
export const onUpdate = (show) => {
  document.addEventListener("updated", show);
  show();
};
export const updated = () => document.dispatchEvent(new Event("updated"));

// Return two functions: one asks the server once somebody has paused typing, and drops the question before; the other
// only drops it.
export const afterTyping = (ask) => {
  let request = new AbortController();
  const drop = () => request.abort();
  const start = () => {
    drop();
    request = new AbortController();
    const { signal } = request;
    setTimeout(() => signal.aborted || ask(signal).catch(() => {}), TYPING_MS); // the server may be away
  };
  return [start, drop];
};

// -- messages

const TOAST_MS = 6000;
const announcement = document.getElementById("announcement");
let toast = null;

// Show a message at the lower left, which screen readers read; an empty one removes it.
export const announce = (text) => {
  clearTimeout(toast);
  if (announcement.textContent !== text) announcement.textContent = text;
  toast = setTimeout(() => { announcement.textContent = ""; }, TOAST_MS);
};

// Return what this browser stores under a name, after a change if one is given; with "sessionStorage", what this tab
// stores.
export const stored = (name, change, place = "localStorage") => {
  try {
    if (change !== undefined) window[place].setItem(`pg_scheduler.${name}`, change);
    return window[place].getItem(`pg_scheduler.${name}`);
  } catch {
    return null; // the browser forbids storage
  }
};

// Return the members of a stored list, in which something else may have been written: those that pass a test.
export const storedList = (name, isMember) => {
  try {
    return JSON.parse(stored(name) ?? "[]").filter(isMember);
  } catch {
    return [];
  }
};

// -- the message of an action: a toast, which stays while somebody reads or reaches it

const message = document.querySelector("[data-toast]");
message?.classList.add("toast");
setInterval(() => message?.matches(":hover, :focus-within") || message?.remove(), TOAST_MS);

// -- dialogs: a part of another page, whose forms and links are those of that page

// Show the question or the list in the answer to a request. The focus returns to the button, or to that of its menu.
const ask = async (url, options, button) => {
  const { answer, page } = await load(url, options);
  if (answer.type === "opaqueredirect") return window.location.reload(); // it needed no question
  const part = page.querySelector("[data-dialog]");
  if (part === null) return announce(`The server answered with status ${answer.status}.`);
  const dialog = make("dialog", { ariaLabel: part.querySelector("h1, h2")?.textContent }, part);
  dialog.addEventListener("click", (event) => {
    if (event.target !== dialog && event.target.closest("[data-close]") === null) return;
    event.preventDefault();
    dialog.close();
  });
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  button?.closest("[popover]")?.hidePopover();
  dialog.showModal();
  updated();
};

// A button whose label ends with "…" asks first: the question is shown here instead of on a page of its own.
document.addEventListener("submit", (event) => {
  const button = event.submitter;
  if (button === null || !button.textContent.trim().endsWith("…") || event.defaultPrevented) return;
  event.preventDefault();
  const body = new URLSearchParams(new FormData(event.target, button));
  const url = button.hasAttribute("formaction") ? button.formAction : event.target.action;
  if (event.target.method === "get") ask(`${url}?${body}`, {}, button);
  else ask(url, { method: "POST", body, redirect: "manual" }, button);
});

// The address of a page may name a menu of it, as the actions of the palette do.
const showMenu = () => document.querySelector(".menu:has(> .items:target) > button")?.click();
for (const each of ["load", "hashchange"]) window.addEventListener(each, showMenu);

// -- the theme

const root = document.documentElement;
const theme = document.getElementById("theme");
theme.addEventListener("click", () => {
  const system = window.matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
  root.dataset.theme = (root.dataset.theme ?? system) === "dark" ? "light" : "dark";
  stored("theme", root.dataset.theme);
});

// -- times: in UTC, in the zone of the browser, or in that of the schedule that is shown

const zone = document.getElementById("times");
const local = Intl.DateTimeFormat().resolvedOptions().timeZone;
let shownZone = stored("zone") ?? "UTC";
const scheduled = document.querySelector("[data-zone]")?.dataset.zone;
const zones = new Set(["UTC", local, scheduled, shownZone].filter(Boolean));

// Return what writes an instant in the zone that is shown, as in "Fri 2026-11-27 09:30:00".
export const formatter = () => {
  const day = new Intl.DateTimeFormat("en", { timeZone: shownZone, weekday: "short" });
  const time = new Intl.DateTimeFormat("sv-SE", { timeZone: shownZone, dateStyle: "short", timeStyle: "medium" });
  return (instant) => `${day.format(new Date(instant))} ${time.format(new Date(instant))}`;
};

// The server writes instants in UTC, also within sentences, tooltips and what is read aloud. They are replaced wherever
// they stand, except in what people or programs have written, such as code, arguments and errors.
const INSTANT = /\b((?:Mon|Tue|Wed|Thu|Fri|Sat|Sun) )?(\d{4}-\d\d-\d\d) (\d\d:\d\d)(:\d\d)? UTC\b/g;
const NODES = ".//text() | .//@title | .//@aria-label";
const FOREIGN = "pre, code, textarea, option, .json, .traceback, .error, .id, [data-as-is]";
const originals = new WeakMap(); // what the server wrote into a node, and what is shown instead

// Show what a node has in the zone that is shown. An update may have written the text of the server into it again.
export const showText = (node, translate) => {
  const [before, after] = originals.get(node) ?? [];
  const original = node.nodeValue === after ? before : node.nodeValue;
  const text = shownZone === "UTC" ? original : translate(original);
  originals.set(node, [original, text]);
  if (node.nodeValue !== text) node.nodeValue = text;
};

const showTimes = () => {
  for (const each of all("input[data-times]")) each.value = shownZone;
  const format = formatter();
  const translator = (suffix) => (text) => text.replace(INSTANT, (_, day, date, minute, second) => (
    format(`${date}T${minute}${second ?? ":00"}Z`).slice(day ? 0 : 4, second ? undefined : -3) + suffix
  ));
  const [plain, named] = [translator(""), translator(` ${shownZone}`)];
  const nodes = document.evaluate(NODES, document.body, null, XPathResult.UNORDERED_NODE_SNAPSHOT_TYPE);
  for (let place = 0; place < nodes.snapshotLength; place += 1) {
    const node = nodes.snapshotItem(place);
    if (!node.nodeValue.includes(" UTC") && !originals.has(node)) continue;
    const element = node.parentElement; // which attributes have not
    if (!element?.closest(FOREIGN)) showText(node, element?.matches(":not(title, .sr)") ? plain : named);
  }
  // Fire times are written in the zone of their schedule.
  for (const each of all("time[data-local]")) showText(each.firstChild, () => format(each.dateTime));
  // The calendar has a zone of its own, by its address.
  for (const each of all("a[href$='/calendar'], a[href*='/calendar?zone=']")) {
    const [address] = each.getAttribute("href").split("?");
    each.setAttribute("href", shownZone === "UTC" ? address : `${address}?zone=${encodeURIComponent(shownZone)}`);
  }
};

// On phones, the zone and the theme are in the menu of the account.
const phone = window.matchMedia("(max-width: 640px)");
const placeTools = () => {
  const tools = [zone.closest("label"), theme];
  if (phone.matches) document.querySelector("#account .note").after(...tools);
  else document.querySelector(".who").before(...tools);
};
phone.addEventListener("change", placeTools);
placeTools();
zone.append(...[...zones].map((each) => new Option(each, each, false, each === shownZone)));
zone.addEventListener("change", () => {
  shownZone = zone.value;
  stored("zone", formatter() && shownZone); // once the browser knows it
  updated();
});

// -- relative times, by the clock of the server

let skewMs = -Infinity; // the least delay between the read and its display counts
const UNITS = [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]];

const length = (seconds) => {
  const [unit, size] = UNITS.find(([, each]) => seconds >= 2 * each) ?? UNITS.at(-1);
  return `${Math.round(seconds / size)} ${unit}`;
};
const countTimes = () => {
  const readAt = Date.parse(document.querySelector("#read time")?.dateTime);
  skewMs = Math.max(skewMs, (readAt || Date.now()) - Date.now());
  for (const each of all("time:is([data-ago], [data-until], [data-late])")) {
    const left = (Date.parse(each.dateTime) - Date.now() - skewMs) / 1000;
    const [past, least] = each.dataset.ago === undefined ? ["now", 0.5] : [`${length(Math.max(-left, 0))} ago`, 2];
    const text = each.dataset.late !== undefined ? length(Math.abs(left)) : left > least ? `in ${length(left)}` : past;
    if (each.textContent !== text) each.textContent = text;
  }
};
setInterval(countTimes, 1000);

// -- copying

root.toggleAttribute("data-copies", navigator.clipboard !== undefined); // not over HTTP
document.addEventListener("click", async (event) => {
  const button = event.target.closest("button[data-copy]");
  if (button === null) return;
  await navigator.clipboard.writeText(document.getElementById(button.dataset.copy).textContent);
  announce("Copied.");
});

// -- the numbers of the side bar: in the title and the icon of the tab too

const icon = document.querySelector("link[rel=icon]");
const showFindings = () => {
  const count = document.querySelector("#pages [data-findings]");
  document.title = document.title.replace(/^(\(\d+\+?\) )?/, count === null ? "" : `(${count.textContent}) `);
  const address = icon.dataset[count?.classList.contains("bad") ? "bad" : "good"];
  if (icon.getAttribute("href") !== address) icon.setAttribute("href", address);
};

for (const each of [showTimes, countTimes, showFindings]) onUpdate(each);
for (const node of all(".flow .current .box")) node.closest(".flow").scrollLeft = node.getAttribute("x") - 100;

// -- keys: people can turn all of them off
onUpdate(() => { for (const each of all("#keys")) each.checked = stored("keys") !== "off"; });
document.addEventListener("change", ({ target }) => {
  if (target.id === "keys") stored("keys", target.checked ? "on" : "off");
});

const GOING_MS = 1500;
let goingUntil = 0; // until then, a letter leads to a page
const isTyping = (target) => target.closest("input:not([type=checkbox]), textarea, select, [contenteditable]") !== null;
const pages = () => Object.fromEntries(all("nav a[data-key]").map((link) => [link.dataset.key, () => link.click()]));
export const search = (field) => {
  field.focus();
  field.select();
};
const actions = {
  "/": () => search(document.getElementById("q") ?? document.getElementById("find")),
  "?": () => document.getElementById("keyboard") ?? ask(document.querySelector("nav a[data-key='?']").href),
  t: () => theme.click(),
  g: ({ timeStamp }) => { goingUntil = timeStamp + GOING_MS; },
};
// Add functions by their keys.
export const onKeys = (more) => Object.assign(actions, more);

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.altKey || event.metaKey || isTyping(event.target) || stored("keys") === "off") return;
  if (document.querySelector("dialog[open]") !== null) return;
  const action = (event.timeStamp < goingUntil ? pages() : actions)[event.key];
  goingUntil = 0;
  if (action === undefined) return;
  event.preventDefault();
  action(event);
});
