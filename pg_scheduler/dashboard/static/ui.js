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
  let timer = null;
  let request = null;
  const drop = () => {
    clearTimeout(timer);
    request?.abort();
  };
  const start = () => {
    drop();
    request = new AbortController();
    timer = setTimeout((signal) => ask(signal).catch(() => {}), TYPING_MS, request.signal); // the server may be away
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

// Return what this browser stores under a name, after a change if one is given; in "sessionStorage", what this tab stores.
export const stored = (name, change, place = "localStorage") => {
  try {
    if (change !== undefined) window[place].setItem(`pg_scheduler.${name}`, change);
    return window[place].getItem(`pg_scheduler.${name}`);
  } catch {
    return null; // the browser forbids storage
  }
};

// -- the message of an action: a toast, which stays while somebody reads or reaches it

const message = document.querySelector("[data-toast]");
message?.classList.add("toast");
setInterval(() => message?.matches(":hover, :focus-within") || message?.remove(), TOAST_MS);

// -- dialogs: a part of another page, whose forms and links are those of that page

// Show a part of another page. The focus returns to the button that opened it, or to that of its menu, which has closed.
const openDialog = (part, button) => {
  const dialog = make("dialog", {}, part);
  const heading = part.querySelector("h1, h2");
  if (heading?.id) dialog.setAttribute("aria-labelledby", heading.id);
  dialog.addEventListener("click", (event) => {
    if (event.target === dialog || event.target.closest("[data-close]") !== null) {
      event.preventDefault();
      dialog.close();
    }
  });
  dialog.addEventListener("close", () => {
    dialog.remove();
    const menu = button?.closest("[popover]");
    if (menu && document.activeElement === document.body) document.querySelector(`[popovertarget="${CSS.escape(menu.id)}"]`).focus();
  });
  document.body.append(dialog);
  dialog.showModal();
  updated();
};

// A button whose label ends with "…" asks first: the question is shown here instead of on a page of its own.
document.addEventListener("submit", async (event) => {
  const button = event.submitter;
  if (button === null || !button.textContent.trim().endsWith("…") || event.defaultPrevented) return;
  event.preventDefault();
  const body = new URLSearchParams(new FormData(event.target, button));
  const url = button.hasAttribute("formaction") ? button.formAction : event.target.action;
  const isRead = event.target.method === "get";
  const options = isRead ? {} : { method: "POST", body, redirect: "manual" };
  const { answer, page } = await load(isRead ? `${url}?${body}` : url, options);
  if (answer.type === "opaqueredirect") return window.location.reload(); // it needed no question
  const part = page.querySelector("[data-dialog]");
  if (part !== null) openDialog(part, button); else announce(`The server answered with status ${answer.status}.`);
});

const showKeys = async (link) => {
  const part = (await load(link.href)).page.getElementById("keyboard");
  if (part === null || document.getElementById("keyboard") !== null) link.click(); else openDialog(part);
};

// -- menus: popovers, which the browser opens, closes and places; in a browser without anchors they are placed here

const placeBelow = ({ target, newState }) => {
  const button = newState === "open" && document.querySelector(`[popovertarget="${target.id}"]`);
  if (!button || !target.classList.contains("items")) return;
  const { bottom, right } = button.getBoundingClientRect();
  const left = Math.max(right - target.offsetWidth, 12);
  Object.assign(target.style, { margin: 0, inset: `${Math.max(Math.min(bottom + 4, innerHeight - target.offsetHeight), 0)}px auto auto ${left}px` });
};
if (!CSS.supports("position-area", "block-end")) document.addEventListener("toggle", placeBelow, true);

// The address of a page may name a menu or a button of it, as the actions of the palette do.
const showTarget = () => {
  const id = decodeURIComponent(window.location.hash.slice(1));
  const target = id && document.getElementById(id);
  if (target?.popover) document.querySelector(`[popovertarget="${CSS.escape(id)}"]`)?.click();
  else if (target?.localName === "button") target.focus();
};
window.addEventListener("hashchange", showTarget);
showTarget();

// -- the theme

const root = document.documentElement;
const theme = Object.assign(document.getElementById("theme"), { hidden: false });
theme.addEventListener("click", () => {
  const system = window.matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
  root.dataset.theme = (root.dataset.theme ?? system) === "dark" ? "light" : "dark";
  stored("theme", root.dataset.theme);
});

// -- times: in UTC, in the zone of the browser, or in that of the schedule that is shown

const zone = document.getElementById("times");
const local = Intl.DateTimeFormat().resolvedOptions().timeZone;
let shownZone = stored("zone") ?? "UTC";
const zones = [...new Set(["UTC", local, document.querySelector("[data-zone]")?.dataset.zone, shownZone].filter(Boolean))];

const isRelative = (time) => ["ago", "until", "late"].some((name) => name in time.dataset);

// Return a function that writes an instant in the zone that is shown.
export const formatter = (timeStyle) => {
  const format = new Intl.DateTimeFormat("sv-SE", { timeZone: shownZone, dateStyle: "short", timeStyle });
  return (instant) => format.format(new Date(instant));
};

// The server writes instants in UTC, also within sentences, tooltips and what is read aloud. They are replaced wherever they
// stand, except in what people or programs have written, such as code, arguments and errors.
const INSTANT = /\b((?:Mon|Tue|Wed|Thu|Fri|Sat|Sun) )?(\d{4}-\d\d-\d\d) (\d\d:\d\d)(:\d\d)? UTC\b/g;
const FOREIGN = "pre, code, textarea, option, .json, .traceback, .error, .id, [data-as-is]";
const originals = new WeakMap(); // what the server wrote into a node, and what is shown instead

const weekday = (instant) => new Intl.DateTimeFormat("en", { timeZone: shownZone, weekday: "short" }).format(new Date(instant));

// Show what a node has in the zone that is shown. An update may have written the text of the server into it again.
const show = (node, name, translate) => {
  const [before, after] = originals.get(node) ?? [];
  const original = node[name] === after ? before : node[name];
  const text = shownZone === "UTC" ? original : translate(original);
  originals.set(node, [original, text]);
  if (node[name] !== text) node[name] = text;
};

const translator = (suffix) => {
  const formats = [formatter("short"), formatter("medium")];
  return (text) => text.replace(INSTANT, (_, day, date, minute, second) => {
    const instant = `${date}T${minute}${second ?? ":00"}Z`;
    return `${day === undefined ? "" : `${weekday(instant)} `}${formats[second === undefined ? 0 : 1](instant)}${suffix}`;
  });
};

const showTimes = () => {
  for (const each of all("input[data-times]")) each.value = shownZone;
  const hasInstant = (node, text) => text.includes(" UTC") || originals.has(node);
  const [plain, named] = [translator(""), translator(` ${shownZone}`)];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node = walker.nextNode(); node !== null; node = walker.nextNode()) {
    if (hasInstant(node, node.nodeValue) && node.parentElement.closest(FOREIGN) === null) {
      show(node, "nodeValue", node.parentElement.matches("title, .sr") ? named : plain);
    }
  }
  for (const each of all("[title], [aria-label]")) {
    for (const attribute of [each.getAttributeNode("title"), each.getAttributeNode("aria-label")]) {
      if (attribute !== null && hasInstant(attribute, attribute.value)) show(attribute, "value", named);
    }
  }
  // Fire times are written in the zone of their schedule.
  const format = formatter("medium");
  for (const each of all("time[data-local]")) {
    show(each.firstChild, "nodeValue", () => `${weekday(each.dateTime)} ${format(each.dateTime)}`);
  }
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
zone.closest("label").hidden = false;
zone.append(...zones.map((each) => new Option(each, each, false, each === shownZone)));
zone.addEventListener("change", () => {
  shownZone = zone.value;
  stored("zone", formatter("medium") && shownZone); // once the browser knows it
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
  for (const each of all("time[datetime]").filter(isRelative)) {
    const left = (Date.parse(each.dateTime) - Date.now() - skewMs) / 1000;
    const [past, least] = each.dataset.ago === undefined ? ["now", 0.5] : [`${length(Math.max(-left, 0))} ago`, 2];
    const text = each.dataset.late !== undefined ? length(Math.abs(left)) : left > least ? `in ${length(left)}` : past;
    if (each.textContent !== text) each.textContent = text;
  }
};
setInterval(countTimes, 1000);

// -- copying

const showCopying = () => {
  for (const each of all("button[data-copy]")) each.hidden = navigator.clipboard === undefined; // over HTTP
};
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
  const address = count?.classList.contains("bad") ? icon.dataset.bad : icon.dataset.good;
  if (icon.getAttribute("href") !== address) icon.setAttribute("href", address);
};

for (const each of [showTimes, countTimes, showCopying, showFindings]) onUpdate(each);

// -- keys: people can turn all of them off

onUpdate(() => {
  for (const choice of all("#keys")) {
    choice.disabled = false;
    choice.checked = stored("keys") !== "off";
    choice.onchange = () => stored("keys", choice.checked ? "on" : "off");
  }
});

const isTyping = (target) => target.closest("input:not([type=checkbox]), textarea, select, [contenteditable]") !== null;
const linkOf = (key) => all("nav a[data-key]").find((each) => each.dataset.key === key);
const search = () => {
  const field = document.getElementById("q") ?? document.getElementById("find");
  field.focus();
  field.select();
};
const actions = { "/": search, "?": () => showKeys(linkOf("?")), t: () => theme.click() };
let isGoing = false;

// Add functions by their keys.
export const onKeys = (more) => Object.assign(actions, more);

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.altKey || event.metaKey || isTyping(event.target) || stored("keys") === "off") return;
  if (document.querySelector("dialog[open]") !== null) return;
  if (isGoing) {
    isGoing = false;
    linkOf(event.key)?.click();
  } else if (event.key === "g") {
    isGoing = true;
    setTimeout(() => { isGoing = false; }, 1500);
  } else if (actions[event.key] !== undefined) {
    event.preventDefault();
    actions[event.key]();
  }
});
