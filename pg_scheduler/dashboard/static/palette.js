// The field of the top bar suggests pages, tasks, schedules and workers, and after ">" actions. Without a choice it
// searches jobs, as it does without this script.

import { combobox } from "./combobox.js";
import { make } from "./ui.js";

const field = document.getElementById("find");

combobox(field, {
  search: () => (field.value.trim() === "" ? null : { q: field.value.trim() }),
  choicesOf: ({ items }) => items.filter(({ button }) => !button || document.getElementById(button) !== null)
    .map((each) => ({ ...each, text: each.name, note: each.kind })),
  pick: ({ url, button, action }) => {
    if (button) document.getElementById(button).click();
    else if (action) document.body.appendChild(make("form", { method: "post", action })).requestSubmit();
    else window.location.assign(url);
  },
});
