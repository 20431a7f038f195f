// The palette: the field of the top bar, to which Ctrl-K leads from everywhere. It suggests what has been opened last in this
// browser, then tasks, errors, limits, schedules and workers, and after ">" actions. Without a choice it searches jobs, as it
// does without this script.

import { combobox } from "./combobox.js";
import { make, stored } from "./ui.js";

const MAX_RECENT = 8;
const field = document.getElementById("find");
const list = document.getElementById(field.getAttribute("aria-controls"));
const base = list.dataset.url.replace(/find$/, ""); // of this dashboard, and of its source
const here = `${window.location.pathname}${window.location.search}`;
const isMac = navigator.platform.startsWith("Mac");

// -- what was opened last

const isOfHere = ({ text, note, url }) => [text, note, url].every((value) => typeof value === "string")
  && url.startsWith(base) && !url.startsWith("//");

const recent = () => {
  try {
    return JSON.parse(stored("recent") ?? "[]").filter(isOfHere);
  } catch {
    return []; // something else has been written there
  }
};

const remember = ({ kind, id }) => {
  const title = document.querySelector("h1").textContent;
  const opened = { text: id ?? title, note: id === undefined ? kind : `${kind} · ${title}`, url: here };
  const others = recent().filter(({ url }) => url !== here);
  stored("recent", JSON.stringify([opened, ...others].slice(0, MAX_RECENT)));
};

const { dataset } = document.getElementById("main");
if (dataset.kind !== undefined) remember(dataset);

// -- the field

// A label that ends with "…" stands for a question, which is shown here as that of a button is.
const send = (action, label) => {
  const button = make("button", { textContent: label, hidden: true });
  document.body.append(make("form", { method: "post", action }, button));
  button.form.requestSubmit(button);
};

combobox(field, {
  search: () => (field.value.trim() === "" ? null : { q: field.value.trim() }),
  initial: () => recent().filter(({ url }) => url !== here),
  choicesOf: ({ items }) => items.filter(({ button }) => !button || document.getElementById(button) !== null)
    .map((each) => ({ ...each, text: each.name, note: [each.kind, each.note].filter(Boolean).join(" · ") })),
  pick: ({ url, button, action, text }) => {
    if (button) document.getElementById(button).click();
    else if (action) send(action, text);
    else window.location.assign(url);
  },
});

document.addEventListener("keydown", (event) => {
  if (!(isMac ? event.metaKey : event.ctrlKey) || event.altKey || event.shiftKey || event.key !== "k") return;
  if (document.querySelector("dialog[open]") !== null) return;
  event.preventDefault();
  field.focus();
  field.select();
  field.click(); // which asks for suggestions
});
if (isMac) field.nextElementSibling.textContent = "⌘ K";
