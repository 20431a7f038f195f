// Charts: one readout at the same time in all of them, by pointer or arrow keys, and a drag that opens the jobs of a
// span. Without this script each slot shows its own readout and leads to its jobs.

import { all, formatter, make, onUpdate, showText } from "./ui.js";

const said = document.body.appendChild(make("p", { className: "sr", role: "status" }));

let shown = null; // the start of the slot that is read out, in seconds
let from = null; // the slot where a drag began

const show = (key) => {
  shown = key;
  for (const slot of all(".slot")) slot.classList.toggle("on", key !== null && slot.dataset.key === key);
};

// -- the pointer

document.addEventListener("pointerover", (event) => {
  const slot = event.target.closest?.(".slot") ?? null;
  if (slot === null && shown === null) return;
  if (from === null) show(slot?.dataset.key ?? null);
  else if (slot?.parentElement === from.parentElement) drag(slot);
});

const drag = (slot) => {
  const slots = [...from.parentElement.children];
  const [first, last] = [slots.indexOf(from), slots.indexOf(slot)].sort((one, other) => one - other);
  slots.forEach((each, place) => each.classList.toggle("brushed", first < last && first <= place && place <= last));
};

const drop = () => {
  for (const slot of all(".brushed")) slot.classList.remove("brushed");
  from = null;
};

const minute = (seconds) => `${new Date(seconds * 1000).toISOString().slice(0, 16)}Z`;

// Return the address of the jobs that ended in the slots of a drag; the unsuccessful ones if there are any.
const addressOf = (slots) => {
  const { jobs, terms, width } = slots[0].closest("[data-chart]").dataset;
  const hasFailures = slots.some((slot) => new URL(slot.href).searchParams.get("q").includes("status:failed"));
  const [first, last] = [Number(slots[0].dataset.key), Number(slots.at(-1).dataset.key) + Number(width) - 60];
  const search = [terms, hasFailures ? "status:failed,expired" : "", `finished:${minute(first)}..${minute(last)}`];
  return `${jobs}?q=${encodeURIComponent(search.filter(Boolean).join(" "))}`;
};

document.addEventListener("pointerdown", (event) => {
  const hasKey = event.ctrlKey || event.metaKey || event.shiftKey;
  const isDrag = event.button === 0 && event.pointerType === "mouse" && !hasKey;
  from = isDrag ? event.target.closest?.(".slot") ?? null : null;
});
document.addEventListener("dragstart", (event) => { if (from !== null) event.preventDefault(); });
document.addEventListener("pointerup", () => {
  const slots = all(".brushed");
  if (slots.length > 0) window.location.assign(addressOf(slots));
  drop();
});
document.addEventListener("pointercancel", drop);

// -- keys: the arrows on the link to the table of a chart

document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") {
    drop();
    show(null);
  }
  const chart = event.target.closest?.(".chart .link")?.closest(".chart");
  const slots = chart ? all(".slot", chart) : [];
  if (slots.length === 0) return;
  const move = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity }[event.key];
  const last = slots.length - 1;
  const place = slots.findIndex((slot) => slot.dataset.key === shown);
  if (move !== undefined) {
    event.preventDefault();
    const slot = slots[place < 0 ? last : Math.min(Math.max(place + move, 0), last)];
    show(slot.dataset.key);
    said.textContent = slot.querySelector(".tip").textContent.match(/[^\n\t]+/g).join(", ");
  } else if (event.key === "Enter" && place >= 0) {
    event.preventDefault();
    window.location.assign(slots[place].href);
  }
});

// -- what an update leaves to do: times in the zone that is shown, except days, which are those of UTC; and the readout

onUpdate(() => {
  const format = formatter();
  for (const slot of all(".slot, .values tr[data-key]")) {
    const time = format(slot.dataset.key * 1000);
    const translate = (text) => text.replace(/^\d\d-\d\d/, time.slice(9, 14)).replace(/\d\d:\d\d/, time.slice(15, 20));
    for (const each of all(".tick, .tip > b:first-child, time", slot)) showText(each.firstChild, translate);
  }
  show(shown);
});
