// The rows of tables: select all, and the keys "j" and "k" to the next and previous row, "x" to select it, and "e" to
// the explanation of its job.

import { onKeys } from "./ui.js";

const rowOf = (element) => element?.closest("tr") ?? null;

const showAllRows = () => document.getElementById("all-rows")?.removeAttribute("hidden");
document.addEventListener("change", ({ target }) => {
  if (target.id !== "all-rows") return;
  for (const each of document.getElementsByName("row")) each.checked = target.checked;
});
document.addEventListener("updated", showAllRows);
showAllRows();

const moveRow = (step) => {
  const links = [...document.querySelectorAll("main tbody tr")].map((row) => row.querySelector("a")).filter(Boolean);
  const row = rowOf(document.activeElement);
  const place = links.findIndex((link) => row !== null && rowOf(link) === row);
  links[place < 0 ? 0 : Math.min(Math.max(place + step, 0), links.length - 1)]?.focus();
};

const explain = () => {
  const link = rowOf(document.activeElement)?.querySelector("a[data-job]");
  if (link) window.location.assign(`${link.href}#explanation`);
  else document.getElementById("explanation")?.focus();
};

onKeys({
  j: () => moveRow(1),
  k: () => moveRow(-1),
  x: () => rowOf(document.activeElement)?.querySelector("input[type=checkbox]")?.click(),
  e: explain,
});
