// The two fields of search, which suggest in the list that their aria-controls names. That of the top bar is the
// palette, to which Ctrl-K leads from everywhere: it suggests what has been opened last in this browser, then tasks,
// errors, limits, schedules and workers, and after ">" actions; without a choice it searches jobs, as it does without
// this script. The other one completes the last term of a search with what the server found in a sample of its jobs.

import { afterTyping, all, make, search, stored, storedList } from "./ui.js";

// "question" returns the parameters for the server, or null for none, in which case "initial" returns the choices;
// "pick" gets the choice, and a function that asks again.
const suggest = (field, { question, initial, pick }) => {
  const list = document.getElementById(field.getAttribute("aria-controls"));
  let choices = [];
  let place = -1;

  const mark = (next) => {
    place = next;
    [...list.children].forEach((each, number) => each.setAttribute("aria-selected", String(number === place)));
    field.setAttribute("aria-activedescendant", list.children[place]?.id ?? "");
    list.children[place]?.scrollIntoView({ block: "nearest" });
  };

  const show = (items) => {
    choices = items.filter(({ button }) => !button || document.getElementById(button) !== null);
    list.replaceChildren(...choices.map(({ text, name, kind, note, jobs, is_capped: is_cut }, number) => {
      const notes = [kind, note, jobs && jobs.toLocaleString("en") + (is_cut ? "+" : "")].filter(Boolean).join(" · ");
      const label = make("bdi", { textContent: text ?? name });
      const remark = make("span", { className: "note", textContent: notes });
      return make("li", { id: `${list.id}-${number}`, role: "option" }, label, remark);
    }));
    list.hidden = choices.length === 0;
    field.setAttribute("aria-expanded", String(!list.hidden));
    mark(-1);
  };

  const [ask, forget] = afterTyping(async (signal) => {
    const parameters = question();
    if (parameters === null) return show(initial());
    const address = `${list.dataset.url}?${new URLSearchParams(parameters)}`;
    const answer = await fetch(address, { headers: { accept: "application/json" }, signal });
    const { data } = await answer.json();
    if (answer.ok && document.activeElement === field) show(data.items ?? data);
  });

  const close = () => {
    forget();
    show([]);
  };

  const choose = (choice) => {
    close();
    pick(choice, ask);
  };

  for (const each of ["input", "click"]) field.addEventListener(each, ask);
  field.addEventListener("blur", close);
  field.form.addEventListener("submit", close);
  list.addEventListener("pointerdown", (event) => {
    event.preventDefault(); // the field keeps the focus
    const choice = choices[[...list.children].indexOf(event.target.closest("li"))];
    if (choice !== undefined) choose(choice);
  });
  field.addEventListener("keydown", (event) => {
    if (event.key === "ArrowDown" && list.hidden) ask();
    else if (list.hidden) return;
    else if (event.key === "ArrowDown") mark((place + 1) % choices.length);
    else if (event.key === "ArrowUp") mark((place <= 0 ? choices.length : place) - 1);
    else if (event.key === "Escape") close();
    else if (event.key === "Enter" && place >= 0) choose(choices[place]);
    else return;
    event.preventDefault();
  });
};

// -- the palette

const MAX_RECENT = 8;
const palette = document.getElementById("find");
const base = document.getElementById("found").dataset.url.replace(/find$/, ""); // of this dashboard, and of its source
const here = `${window.location.pathname}${window.location.search}`;
const others = () => storedList("recent", ({ url }) => url.startsWith(base) && !url.startsWith("//") && url !== here);

const { kind, id } = document.getElementById("main").dataset;
if (kind !== undefined) {
  const title = document.querySelector("h1").textContent;
  const opened = { name: id ?? title, kind, note: id && title, url: here };
  stored("recent", JSON.stringify([opened, ...others()].slice(0, MAX_RECENT)));
}

// A label that ends with "…" stands for a question, which is shown here as that of a button is.
const send = (action, label) => {
  const button = make("button", { textContent: label, hidden: true });
  document.body.append(make("form", { method: "post", action }, button));
  button.form.requestSubmit(button);
};

suggest(palette, {
  question: () => (palette.value.trim() === "" ? null : { q: palette.value.trim() }),
  initial: others,
  pick: ({ url, button, action, name }) => {
    if (button) document.getElementById(button).click();
    else if (action) send(action, name);
    else window.location.assign(url);
  },
});

const isMac = navigator.platform.startsWith("Mac");
if (isMac) palette.nextElementSibling.textContent = "⌘ K";
document.addEventListener("keydown", (event) => {
  if (!event[isMac ? "metaKey" : "ctrlKey"] || event.altKey || event.shiftKey || event.key !== "k") return;
  if (document.querySelector("dialog[open]") !== null) return;
  event.preventDefault();
  search(palette);
  palette.click(); // which asks for suggestions
});

// -- the terms of a search

const field = document.querySelector("input[data-complete]");

// The last term starts behind the last blank that is not quoted.
const WHOLE_TERMS = /^(?:(?:"(?:\\.|[^"\\])*"|[^\s"])*\s)*/s;
const wholeTerms = () => field.value.match(WHOLE_TERMS)[0];

const complete = {
  question: () => {
    const others = all("input[type=hidden][name=q]", field.form).map((each) => each.value);
    const whole = wholeTerms();
    return { q: [...others, whole.trim()].filter(Boolean).join(" "), term: field.value.slice(whole.length) };
  },
  pick: ({ text }, ask) => {
    field.value = wholeTerms() + text;
    if (text.endsWith(":")) ask();
    else field.form.requestSubmit();
  },
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
  suggest(field, complete);
  field.addEventListener("keydown", takeBack);
}
