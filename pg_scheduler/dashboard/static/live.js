// Patch the parts of a page with what the server rendered. Elements keep their identity by data-key or id, and with it
// focus, open details, checked boxes and edited fields. A list stands still while it is read: its rows change in place,
// and a button says how many new ones there are.

import { all, announce, load, onKeys, parse, stored, updated } from "./ui.js";

const POLL_MS = 10000;
const NEW_MS = 2000;
const SETTLE_MS = 1500; // after the pointer or the focus has left a list, which may be on its way to the button
const main = document.getElementById("main");
const pause = document.getElementById("pause");
const url = main.dataset.live;
let versions = main.dataset.versions;
const waiting = new Map(); // the content of parts that is not shown yet, or of which only the known rows are shown
let source = null;
let timer = null;
let isPaused = stored("paused", undefined, "sessionStorage") === "true"; // on the next pages of this tab too

// -- patching

const keyOf = (node) => node.dataset?.key ?? node.id ?? "";
const isSame = (one, other) => one.nodeName === other.nodeName && keyOf(one) === keyOf(other);

const patchAttributes = (old, fresh) => {
  for (const { name } of [...old.attributes]) {
    if (name !== "open" && !fresh.hasAttribute(name)) old.removeAttribute(name);
  }
  for (const { name, value } of fresh.attributes) {
    if (name !== "open" && old.getAttribute(name) !== value) old.setAttribute(name, value);
  }
};

const patch = (old, fresh, isRead) => {
  if (old.nodeType === Node.ELEMENT_NODE) {
    patchAttributes(old, fresh);
    patchChildren(old, fresh, isRead);
  } else if (old.nodeValue !== fresh.nodeValue) {
    old.nodeValue = fresh.nodeValue;
  }
};

const showNew = (node) => {
  if (node.dataset?.key === undefined) return;
  node.classList.add("new");
  setTimeout(() => node.classList.remove("new"), NEW_MS);
};

const patchChildren = (old, fresh, isRead) => {
  const gone = [...old.childNodes];
  const pairs = [...fresh.childNodes].map((each) => {
    const place = gone.findIndex((known) => isSame(known, each));
    return [each, place < 0 ? null : gone.splice(place, 1)[0]];
  });
  if (isRead && old.dataset?.still !== undefined) {
    for (const [each, known] of pairs) if (known !== null) patch(known, each, isRead);
    return;
  }
  for (const each of gone) each.remove();
  let place = old.firstChild;
  for (const [each, known] of pairs) {
    const node = known ?? each;
    if (known === null) showNew(each);
    else patch(known, each, isRead);
    if (node === place) place = place.nextSibling;
    else if (known !== null && old.moveBefore) old.moveBefore(node, place); // which leaves its focus and its menus
    else old.insertBefore(node, place);
  }
};

// -- lists that are read: the pointer or the focus is in them, or their beginning is above the screen

const listsOf = (part) => all("[data-still]", part);
const keysOf = (part) => new Set(listsOf(part).flatMap((list) => [...list.children].map(keyOf)));
const news = document.getElementById("news");

const isRead = (part) => listsOf(part).some((list) => (
  list.matches(":hover, :focus-within") || list.getBoundingClientRect().top < 0 || news.matches(":hover, :focus")
));

// A press and its release must be on the same element, so parts wait for the release; lists for their selection to end.
const apply = (isAsked = false) => {
  if (waiting.size === 0 || (!isAsked && main.querySelector(":active") !== null)) return;
  const focused = document.activeElement;
  let [added, gone] = [0, 0];
  for (const [name, content] of waiting) {
    const part = document.getElementById(name);
    if (part?.querySelector("input[name=row]:checked")) continue;
    if (part === null || isAsked || !isRead(part)) {
      waiting.delete(name);
      if (part !== null) patchChildren(part, content, false);
      continue;
    }
    if (listsOf(content).length > 0) patchChildren(part, content.cloneNode(true), true);
    const [before, after] = [keysOf(part), keysOf(content)];
    added += after.difference(before).size;
    gone += before.difference(after).size;
  }
  if (focused.isConnected && focused !== document.activeElement) focused.focus({ preventScroll: true });
  news.hidden = added + gone === 0;
  news.textContent = added > 0 ? `${added} new, show them` : `${gone} gone, update the list`;
  updated();
};

let settling = null;
const settle = () => {
  clearTimeout(settling);
  settling = setTimeout(apply, SETTLE_MS);
};
for (const each of ["pointerup", "pointercancel", "keyup", "click"]) {
  document.addEventListener(each, () => setTimeout(apply));
}
for (const each of ["pointerout", "focusout", "scroll"]) document.addEventListener(each, settle);

const takeNews = () => {
  const list = listsOf(main)[0];
  apply(true);
  if (list?.getBoundingClientRect().top < 0) list.closest("[data-live-part]")?.scrollIntoView();
};
news.addEventListener("click", takeNews);
onKeys({ n: takeNews });

// Put the rows back for which the server sent one element, since they are as before.
const fill = (content, before) => {
  for (const each of all("[data-same]", content)) {
    const row = all(each.localName, before).find((known) => known.dataset.key === each.dataset.key);
    const rows = [...row?.parentNode.children ?? []];
    const first = rows.indexOf(row);
    each.replaceWith(...rows.slice(first, first + Number(each.dataset.same)).map((known) => known.cloneNode(true)));
  }
};

// Show new content in the part of a name.
export const showPart = (name, content) => {
  const before = waiting.get(name) ?? document.getElementById(name);
  if (before !== null) fill(content, before);
  waiting.set(name, content);
  apply();
};

// -- what the server sends

const receive = ({ data, lastEventId }) => {
  versions = lastEventId;
  for (const [name, html] of Object.entries(JSON.parse(data))) {
    // Rows are parsed within a template only: elsewhere they need a table around them.
    showPart(name, parse(`<template>${html}</template>`).querySelector("template").content);
  }
};

const poll = async () => {
  try {
    const { answer, page } = await load(window.location.href);
    if (!answer.ok) throw new Error(`status ${answer.status}`);
    for (const each of all("[data-live-part]", page)) showPart(each.id, each);
    versions = page.getElementById("main").dataset.versions;
  } catch {
    announce("This page could not be updated.");
  }
};

const stop = () => {
  source?.close();
  source = null;
  clearInterval(timer);
};

const start = () => {
  stop();
  if (url === undefined || isPaused || document.hidden) return;
  source = new EventSource(`${url}&seen=${encodeURIComponent(versions)}`);
  source.addEventListener("parts", receive);
  source.addEventListener("problem", (event) => announce(JSON.parse(event.data)));
  source.addEventListener("error", () => {
    if (source?.readyState !== EventSource.CLOSED) return; // otherwise the browser connects again
    stop();
    timer = setInterval(poll, POLL_MS);
  });
};

const showPause = () => {
  pause.setAttribute("aria-pressed", String(isPaused));
  pause.children[0].textContent = isPaused ? "Paused" : "Live";
  pause.children[1].textContent = isPaused ? ", resume updates" : ", pause updates";
};

const togglePause = () => {
  isPaused = !isPaused;
  stored("paused", String(isPaused), "sessionStorage");
  showPause();
  start();
};

document.addEventListener("visibilitychange", start);
window.addEventListener("pagehide", stop);
if (pause !== null) {
  showPause();
  pause.addEventListener("click", togglePause);
  onKeys({ p: togglePause });
}
start();
