// Complete the term that somebody types in a search: a list of what the server found in a sample of its jobs.

const DELAY_MS = 120;
const field = document.querySelector("input[data-complete]");

const start = () => {
  const form = field.form;
  const list = Object.assign(document.createElement("ul"), { id: "options", className: "options", hidden: true });
  let options = [];
  let active = -1;
  let timer = null;
  let request = null;

  field.removeAttribute("list"); // the browser would show its own
  for (const [name, value] of Object.entries({
    role: "combobox", "aria-autocomplete": "list", "aria-expanded": "false", "aria-controls": list.id,
  })) field.setAttribute(name, value);
  list.setAttribute("role", "listbox");
  list.setAttribute("aria-label", "Completions");
  field.after(list);

  // The last term starts behind the last blank that is not quoted.
  const split = () => {
    const text = field.value;
    let start = 0;
    let isQuoted = false;
    for (let place = 0; place < text.length; place += 1) {
      if (isQuoted && text[place] === "\\") place += 1;
      else if (text[place] === '"') isQuoted = !isQuoted;
      else if (!isQuoted && /\s/.test(text[place])) start = place + 1;
    }
    return [text.slice(0, start), text.slice(start)];
  };

  const close = () => {
    clearTimeout(timer);
    request?.abort();
    list.hidden = true;
    activate(-1);
    field.setAttribute("aria-expanded", "false");
  };

  const activate = (place) => {
    active = place;
    [...list.children].forEach((each, number) => each.setAttribute("aria-selected", String(number === place)));
    if (place < 0) field.removeAttribute("aria-activedescendant");
    else field.setAttribute("aria-activedescendant", list.children[place].id);
    list.children[place]?.scrollIntoView({ block: "nearest" });
  };

  const pick = (place) => {
    const text = options[place].text;
    field.value = split()[0] + text;
    close();
    field.focus();
    if (text.endsWith(":")) ask();
    else form.requestSubmit();
  };

  const show = (found) => {
    options = found;
    list.replaceChildren(...options.map(({ text, jobs }, place) => {
      const option = Object.assign(document.createElement("li"), { id: `option-${place}` });
      const [term, number] = [document.createElement("bdi"), document.createElement("span")];
      option.setAttribute("role", "option");
      term.textContent = text;
      number.textContent = jobs === null ? "" : jobs.toLocaleString("en");
      option.append(term, number);
      return option;
    }));
    activate(-1);
    list.hidden = options.length === 0;
    field.setAttribute("aria-expanded", String(!list.hidden));
  };

  const load = async () => {
    request?.abort();
    request = new AbortController();
    const [before, term] = split();
    const others = [...form.querySelectorAll("input[type=hidden][name=q]")].map((each) => each.value);
    const url = new URL(field.dataset.complete, window.location.href);
    url.searchParams.set("q", [...others, before.trim()].filter(Boolean).join(" "));
    url.searchParams.set("term", term);
    try {
      const answer = await fetch(url, { headers: { accept: "application/json" }, signal: request.signal });
      if (answer.ok && document.activeElement === field) show((await answer.json()).data);
    } catch (error) {
      if (error.name !== "AbortError") close(); // the server is away
    }
  };

  const ask = () => {
    clearTimeout(timer);
    timer = setTimeout(load, DELAY_MS);
  };

  for (const each of ["input", "click"]) field.addEventListener(each, ask);
  field.addEventListener("blur", close);
  form.addEventListener("submit", close);
  list.addEventListener("pointerdown", (event) => {
    event.preventDefault(); // the field keeps the focus
    const place = [...list.children].indexOf(event.target.closest("li"));
    if (place >= 0) pick(place);
  });
  field.addEventListener("keydown", (event) => {
    if (event.key === "Backspace" && field.value === "") {
      const term = [...form.querySelectorAll(".term")].at(-1);
      if (term === undefined) return;
      event.preventDefault();
      field.value = term.querySelector("input").value; // to be changed
      term.remove();
    } else if (event.key === "ArrowDown" && list.hidden) {
      ask();
    } else if (!list.hidden) {
      if (event.key === "ArrowDown") activate((active + 1) % options.length);
      else if (event.key === "ArrowUp") activate((active <= 0 ? options.length : active) - 1);
      else if (event.key === "Escape") close();
      else if (event.key === "Enter" && active >= 0) pick(active);
      else return;
      event.preventDefault();
    }
  });
};

if (field !== null) start();
