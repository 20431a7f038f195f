// Complete the term that somebody types in a search with what the server found in a sample of its jobs.

import { combobox } from "./combobox.js";
import { all } from "./ui.js";

const field = document.querySelector("input[data-complete]");

// The last term starts behind the last blank that is not quoted.
const WHOLE_TERMS = /^(?:(?:"(?:\\.|[^"\\])*"|[^\s"])*\s)*/s;
const split = (text) => {
  const [before] = text.match(WHOLE_TERMS);
  return [before, text.slice(before.length)];
};

const search = () => {
  const [before, term] = split(field.value);
  const others = all("input[type=hidden][name=q]", field.form).map((each) => each.value);
  return { q: [...others, before.trim()].filter(Boolean).join(" "), term };
};

const choicesOf = (data) => data.map(({ text, jobs }) => ({ text, note: jobs?.toLocaleString("en") ?? "" }));

const pick = ({ text }, ask) => {
  field.value = split(field.value)[0] + text;
  if (text.endsWith(":")) ask();
  else field.form.requestSubmit();
};

// Take the last term back into the empty field, to be changed.
const takeBack = (event) => {
  const term = all(".term", field.form).at(-1);
  if (event.key !== "Backspace" || field.value !== "" || term === undefined) return;
  event.preventDefault();
  field.value = term.querySelector("input").value;
  term.remove();
};

if (field !== null) {
  field.removeAttribute("list"); // the browser would show its own
  combobox(field, { search, choicesOf, pick });
  field.addEventListener("keydown", takeBack);
}
