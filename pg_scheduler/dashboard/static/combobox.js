// A field that suggests what the server finds for it while somebody types: in the list that its aria-controls names.

import { afterTyping, make } from "./ui.js";

// "search" returns the parameters of the question, or null for none, in which case "initial" returns the choices;
// "choicesOf" makes { text, note } of the data of an answer; "pick" gets the one that was chosen.
export const combobox = (field, { search, choicesOf, pick, initial = () => [] }) => {
  const list = document.getElementById(field.getAttribute("aria-controls"));
  let choices = [];
  let place = -1;

  const mark = (next) => {
    place = next;
    [...list.children].forEach((each, number) => each.setAttribute("aria-selected", String(number === place)));
    if (place < 0) field.removeAttribute("aria-activedescendant");
    else field.setAttribute("aria-activedescendant", list.children[place].id);
    list.children[place]?.scrollIntoView({ block: "nearest" });
  };

  const show = (found) => {
    choices = found;
    list.replaceChildren(...choices.map(({ text, note }, number) => make(
      "li", { id: `${list.id}-${number}`, role: "option" },
      make("bdi", { textContent: text }), make("span", { className: "note", textContent: note }),
    )));
    list.hidden = choices.length === 0;
    field.setAttribute("aria-expanded", String(!list.hidden));
    mark(-1);
  };

  const [ask, forget] = afterTyping(async (signal) => {
    const parameters = search();
    if (parameters === null) return show(initial());
    const answer = await fetch(`${list.dataset.url}?${new URLSearchParams(parameters)}`, {
      headers: { accept: "application/json" }, signal,
    });
    if (answer.ok && document.activeElement === field) show(choicesOf((await answer.json()).data));
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
