// The form of a schedule: what the server previews of it, while people type.

import { showPart } from "./live.js";
import { afterTyping, load } from "./ui.js";

const form = document.querySelector("form[data-preview]");

const [preview] = afterTyping(async (signal) => {
  const body = new URLSearchParams(new FormData(form));
  const { page } = await load(form.dataset.preview, { method: "POST", body, signal });
  const shown = page.getElementById("shown");
  if (shown === null) return; // the button says why
  const kind = form.elements.kind.value;
  const error = page.getElementById(`wrong-${kind}`) ?? page.getElementById("wrong-timezone");
  if (error !== null && form.elements[kind].value !== "") shown.querySelector(".body").replaceChildren(error);
  for (const name of ["shown", "parameters"]) showPart(name, page.getElementById(name));
});

form?.addEventListener("input", preview);
if (form !== null && form.elements.kind.value !== "" && form.elements.version !== undefined) preview();
