// The field of the top bar suggests pages, tasks, schedules and workers, and after ">" actions. Without a choice it
// searches jobs, as it does without this script.

const WAIT_MS = 120;
const field = document.getElementById("find");
const list = document.getElementById("found");
let timer = null;
let asked = 0;
let place = -1;

const choices = () => [...list.children];

const close = () => {
  asked += 1; // an answer that is under way opens it no more
  list.hidden = true;
  field.setAttribute("aria-expanded", "false");
  field.removeAttribute("aria-activedescendant");
  place = -1;
};

const mark = (next) => {
  const all = choices();
  place = all.length === 0 ? -1 : (next + all.length) % all.length;
  all.forEach((each, index) => each.setAttribute("aria-selected", String(index === place)));
  if (place < 0) return;
  field.setAttribute("aria-activedescendant", all[place].id);
  all[place].scrollIntoView({ block: "nearest" });
};

const open = (choice) => {
  const { button, url } = choice.dataset;
  close();
  if (button) document.getElementById(button)?.click();
  else window.location.assign(url);
};

const choiceOf = (item, index) => {
  const choice = document.createElement("li");
  const kind = document.createElement("span");
  const name = document.createElement("bdi");
  Object.assign(choice, { id: `found-${index}`, role: "option" });
  Object.assign(choice.dataset, item.button ? { button: item.button } : { url: item.url });
  kind.className = "note";
  kind.textContent = item.kind;
  name.textContent = item.name;
  choice.append(name, kind);
  choice.addEventListener("pointerdown", (event) => {
    event.preventDefault();
    open(choice);
  });
  return choice;
};

const ask = async () => {
  const number = ++asked;
  const text = field.value.trim();
  if (text === "") return close();
  const answer = await fetch(`${list.dataset.url}?q=${encodeURIComponent(text)}`, { headers: { accept: "application/json" } });
  if (!answer.ok || number !== asked) return undefined; // a later key has asked again
  const { items } = (await answer.json()).data;
  list.replaceChildren(...items.filter(({ button }) => !button || document.getElementById(button)).map(choiceOf));
  close();
  list.hidden = items.length === 0;
  field.setAttribute("aria-expanded", String(items.length > 0));
  return undefined;
};

field.addEventListener("input", () => {
  clearTimeout(timer);
  timer = setTimeout(ask, WAIT_MS);
});
field.addEventListener("blur", close);
field.addEventListener("keydown", (event) => {
  if (event.key === "Escape") close();
  else if (event.key === "ArrowDown" || event.key === "ArrowUp") mark(place + (event.key === "ArrowDown" ? 1 : -1));
  else if (event.key === "Enter" && place >= 0 && !list.hidden) open(choices()[place]);
  else return;
  event.preventDefault();
});
