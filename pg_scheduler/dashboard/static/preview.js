// The form of a schedule: what the server previews of it, while people type.

const DELAY_MS = 300;
const form = document.querySelector("form[data-preview]");
let timer = null;
let last = 0;

const preview = async () => {
  const number = ++last;
  try {
    const body = new URLSearchParams(new FormData(form));
    const answer = await fetch(form.dataset.preview, { method: "POST", body });
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    const found = page.getElementById("shown");
    if (number !== last || found === null) return;
    const kind = form.elements.kind.value;
    const error = page.getElementById(`wrong-${kind}`) ?? page.getElementById("wrong-timezone");
    const shown = document.getElementById("shown");
    shown.replaceChildren(...found.childNodes);
    if (error !== null && form.elements[kind].value !== "") shown.querySelector(".body").replaceChildren(error);
    document.dispatchEvent(new Event("updated"));
  } catch {
    // The button says why.
  }
};

form?.addEventListener("input", () => {
  clearTimeout(timer);
  timer = setTimeout(preview, DELAY_MS);
});
if (form !== null && form.elements.kind.value !== "" && form.elements.version !== undefined) preview();
