"use strict";
// Every page works without this script. It adds keys: "/" goes to the search.
(() => {
  const isTyping = (target) => target.closest("input, textarea, select, [contenteditable]") !== null;

  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.altKey || event.metaKey || isTyping(event.target)) return;
    if (event.key !== "/") return;
    const search = document.getElementById("q");
    if (search === null) return;
    event.preventDefault();
    search.focus();
    search.select();
  });
})();
