// The rows of tables: the selection with its bar, the keys "j" and "k" to the next and previous row, "x" to select it,
// "X" to select the rows up to it, "a" to the bar, "e" to the explanation of its job; and the saved views.

import { all, announce, make, onKeys, onUpdate, stored, storedList } from "./ui.js";

const rowOf = (element) => element?.closest("tr") ?? null;
const boxes = () => all("input[name=row]");

// -- the selection

let last = null; // the value of the box that was changed last

const selectTo = (box) => {
  const rows = boxes();
  const places = [rows.findIndex((each) => each.value === last), rows.indexOf(box)];
  const [first, end] = places.sort((one, other) => one - other);
  if (first >= 0) for (const each of rows.slice(first, end + 1)) each.checked = box.checked;
};

// The bar is there while something is selected, with the actions that can succeed for some of it.
const showSelection = () => {
  const selected = boxes().filter((each) => each.checked);
  for (const each of all("#all-rows")) {
    each.checked = selected.length > 0 && selected.length === boxes().length;
    each.indeterminate = selected.length > 0 && !each.checked;
  }
  for (const bar of all("[data-selection]")) {
    const isForAll = bar.querySelector("input[name=all]")?.checked === true;
    bar.querySelector("[data-selected]").textContent = isForAll ? "" : `${selected.length} selected`;
    for (const each of all("[data-action]", bar)) {
      const able = selected.filter((box) => box.dataset.actions.split(" ").includes(each.dataset.action)).length;
      each.hidden = !isForAll && able === 0;
      each.dataset.number = isForAll || able === selected.length ? "" : able;
    }
  }
};

const clear = () => {
  for (const each of all("input[name=row], input[name=all]")) each.checked = false;
  showSelection();
};

document.addEventListener("click", (event) => {
  if (event.target.closest("[data-clear]") !== null) clear();
  if (event.target.name !== "row") return;
  if (event.shiftKey) selectTo(event.target);
  last = event.target.value;
});
document.addEventListener("change", ({ target }) => {
  if (target.id === "all-rows") for (const each of boxes()) each.checked = target.checked;
  if (target.id === "all-rows" || target.name === "row" || target.name === "all") showSelection();
});
onUpdate(showSelection);
window.addEventListener("pageshow", showSelection); // the browser may have restored boxes

// -- the keys

const moveRow = (step) => {
  const links = all("main tbody tr").map((row) => row.querySelector("a")).filter(Boolean);
  const place = links.findIndex((link) => rowOf(link) === rowOf(document.activeElement));
  links[place < 0 ? 0 : Math.min(Math.max(place + step, 0), links.length - 1)]?.focus();
};

const select = (shiftKey = false) => {
  const box = rowOf(document.activeElement)?.querySelector("input[type=checkbox]");
  if (shiftKey && box) box.checked = false; // rows up to it are selected, never the reverse
  box?.dispatchEvent(new MouseEvent("click", { bubbles: true, cancelable: true, shiftKey }));
};

const explain = () => {
  const link = rowOf(document.activeElement)?.querySelector("a[data-job]");
  if (link) window.location.assign(`${link.href}#explanation`);
  else document.getElementById("explanation")?.focus();
};

const act = () => all("[data-selection] button").find((each) => each.checkVisibility())?.focus();
onKeys({ j: () => moveRow(1), k: () => moveRow(-1), x: () => select(), X: () => select(true), a: act, e: explain });

// -- saved views: addresses of this list, in this browser

const views = document.getElementById("views");

const savedViews = () => storedList("views", (each) => each.startsWith("?"));

const showViews = () => {
  const found = savedViews();
  const here = window.location.search || "?";
  views.querySelector("[data-own]").replaceChildren(...found.map((search) => {
    const textContent = new URLSearchParams(search).getAll("q").join(" ") || "all jobs";
    return make("li", {}, make("a", { href: search, textContent, ariaCurrent: search === here ? "true" : null }));
  }));
  const isSaved = found.includes(here);
  const button = views.querySelector("[data-save]");
  button.textContent = isSaved ? "Remove this view" : "Save this view";
  button.onclick = () => {
    const others = savedViews().filter((each) => each !== here);
    stored("views", JSON.stringify(isSaved ? others : [here, ...others].slice(0, 20)));
    showViews();
    announce(isSaved ? "The view was removed." : "The view was saved in this browser.");
  };
};

if (views !== null) {
  views.hidden = false;
  showViews();
}
