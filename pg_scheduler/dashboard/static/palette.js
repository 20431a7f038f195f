// The field of the top bar suggests pages, tasks, schedules and workers, and after ">" actions. Without a choice it
// searches jobs, as it does without this script.

import { combobox } from "./combobox.js";

const field = document.getElementById("find");
const buttonOf = ({ button }) => document.getElementById(button);

combobox(field, {
  search: () => (field.value.trim() === "" ? null : { q: field.value.trim() }),
  choicesOf: ({ items }) => items.filter((each) => !each.button || buttonOf(each) !== null)
    .map((each) => ({ ...each, text: each.name, note: each.kind })),
  pick: (choice) => {
    if (choice.button) buttonOf(choice).click();
    else window.location.assign(choice.url);
  },
});
