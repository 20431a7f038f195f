// What every page has: messages, the theme, the zone of times, copying, and the keys that go to pages.

const ANNOUNCE_MS = 5000;
const announcement = document.getElementById("announcement");
let announcedAt = 0;

export const announce = (text) => {
  const now = Date.now();
  if (now - announcedAt < ANNOUNCE_MS || announcement.textContent === text) return;
  announcedAt = now;
  announcement.textContent = text;
};

export const stored = (name, change) => {
  try {
    if (change !== undefined) window.localStorage.setItem(`pg_scheduler.${name}`, change);
    return window.localStorage.getItem(`pg_scheduler.${name}`);
  } catch {
    return null; // the browser forbids storage
  }
};

// -- the theme

const root = document.documentElement;
const theme = document.getElementById("theme");
theme.hidden = false;
theme.addEventListener("click", () => {
  const isDark = root.dataset.theme
    ? root.dataset.theme === "dark"
    : window.matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = isDark ? "light" : "dark";
  stored("theme", root.dataset.theme);
});

// -- times: in UTC, in the zone of the browser, or in that of the schedule that is shown

const zone = document.getElementById("times");
const own = document.querySelector("[data-zone]")?.dataset.zone;
const local = Intl.DateTimeFormat().resolvedOptions().timeZone;
const zones = [...new Set(["UTC", local, own].filter(Boolean))];
let shownZone = zones.includes(stored("zone")) ? stored("zone") : "UTC";

const showTimes = () => {
  const format = new Intl.DateTimeFormat("sv-SE", { timeZone: shownZone, dateStyle: "short", timeStyle: "medium" });
  for (const each of document.querySelectorAll("time[datetime]")) {
    const isRelative = ["ago", "until", "late"].some((name) => name in each.dataset);
    each.dataset.utc ??= isRelative ? each.title : each.textContent;
    const text = shownZone === "UTC" ? each.dataset.utc : `${format.format(new Date(each.dateTime))} ${shownZone}`;
    if (isRelative) each.title = text;
    else each.textContent = shownZone === "UTC" ? text : text.slice(0, 19);
    if (!isRelative && shownZone !== "UTC") each.title = `${each.dataset.utc}, ${each.title.split(", ").at(-1)}`;
  }
};
if (zones.length > 1) {
  zone.closest("label").hidden = false;
  zone.append(...zones.map((each) => new Option(each, each, false, each === shownZone)));
  zone.addEventListener("change", () => {
    shownZone = zone.value;
    stored("zone", shownZone);
    showTimes();
  });
}

// -- relative times, by the clock of the server

const readAt = document.querySelector("#read time");
const skewMs = readAt === null ? 0 : Date.parse(readAt.dateTime) - Date.now();
const UNITS = [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]];

const countDown = () => {
  for (const each of document.querySelectorAll("time[data-until], time[data-late]")) {
    const left = (Date.parse(each.dateTime) - Date.now() - skewMs) / 1000;
    const [unit, size] = UNITS.find(([, seconds]) => Math.abs(left) >= 2 * seconds) ?? UNITS.at(-1);
    const text = `${Math.round(Math.abs(left) / size)} ${unit}`;
    if (each.dataset.late !== undefined) each.textContent = text;
    else each.textContent = left > 0 ? `in ${text}` : "now";
  }
};
setInterval(countDown, 1000);

// -- copying

const showCopying = () => {
  for (const each of document.querySelectorAll("button[data-copy]")) {
    each.hidden = navigator.clipboard === undefined; // the page came over HTTP
  }
};
document.addEventListener("click", async (event) => {
  const button = event.target.closest("button[data-copy]");
  if (button === null) return;
  await navigator.clipboard.writeText(document.getElementById(button.dataset.copy).textContent);
  announce("Copied.");
});

const show = () => { showTimes(); showCopying(); };
document.addEventListener("updated", show);
show();

// -- keys: "/" to the search, "t" changes the theme, "g" and the first letter of a page goes there, "?" to the list of
//    keys. People can turn all of them off.

const keys = document.getElementById("keys");
if (keys !== null) {
  keys.disabled = false;
  keys.checked = stored("keys") !== "off";
  keys.addEventListener("change", () => stored("keys", keys.checked ? "on" : "off"));
}

const isTyping = (target) => target.closest("input:not([type=checkbox]), textarea, select, [contenteditable]") !== null;
const go = (key) => [...document.querySelectorAll("nav a[data-key]")].find((each) => each.dataset.key === key)?.click();
const search = () => {
  const field = document.getElementById("q") ?? document.getElementById("find");
  field.focus();
  field.select();
};
const actions = { "/": search, "?": () => go("?"), t: () => theme.click() };
let isGoing = false;

// Add functions by their keys.
export const onKeys = (more) => Object.assign(actions, more);

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.altKey || event.metaKey || isTyping(event.target) || stored("keys") === "off") return;
  if (isGoing) {
    isGoing = false;
    go(event.key);
  } else if (event.key === "g") {
    isGoing = true;
    setTimeout(() => { isGoing = false; }, 1500);
  } else if (actions[event.key] !== undefined) {
    event.preventDefault();
    actions[event.key]();
  }
});
