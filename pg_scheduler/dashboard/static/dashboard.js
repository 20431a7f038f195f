"use strict";
// Every page works without this script. It updates the region of a page, and adds keys and a choice of the theme.
(() => {
  const POLL_MS = 10000;
  const ANNOUNCE_MS = 5000;
  const FOCUSABLE = "a, summary, button, [tabindex]";
  const region = document.getElementById("region");
  const announcement = document.getElementById("announcement");
  const pause = document.getElementById("pause");
  const theme = document.getElementById("theme");
  let source = null;
  let timer = null;
  let isPaused = false;
  let announcedAt = 0;

  const announce = (text) => {
    const now = Date.now();
    if (now - announcedAt < ANNOUNCE_MS || announcement.textContent === text) return;
    announcedAt = now;
    announcement.textContent = text;
  };

  // -- the region: replaced by what the server rendered, with the focus and open details kept

  const places = (selector) => [...region.querySelectorAll(selector)];

  // People select text or rows, fill in a form, or press a button: the region waits for them.
  const isInUse = () => !window.getSelection().isCollapsed || region.querySelector(":active") !== null
    || places("input").some((each) => each === document.activeElement || each.checked !== each.defaultChecked
      || each.value !== each.defaultValue);
  let waiting = null;

  const replace = (nodes) => {
    waiting = isPaused ? null : nodes;
    apply();
    if (waiting !== null) announce("Updates wait until nothing is selected or filled in.");
  };

  const apply = () => {
    if (waiting === null || isInUse()) return;
    const nodes = waiting;
    waiting = null;
    const focused = places(FOCUSABLE).indexOf(document.activeElement);
    const open = places("details").map((each) => each.open);
    const scrolled = places(".wide").map((each) => each.scrollLeft);
    region.replaceChildren(...nodes);
    places("details").forEach((each, place) => { each.open = open[place] ?? each.open; });
    places(".wide").forEach((each, place) => { each.scrollLeft = scrolled[place] ?? 0; });
    showTimes();
    showCopying();
    showAllRows();
    if (focused >= 0) places(FOCUSABLE)[focused]?.focus({ preventScroll: true });
    announce("");
  };

  for (const each of ["change", "focusout", "pointerup"]) region?.addEventListener(each, () => setTimeout(apply));
  if (region !== null) document.addEventListener("selectionchange", apply);

  const parse = (html) => new DOMParser().parseFromString(html, "text/html");

  const showRead = (found) => {
    if (waiting !== null || isPaused) return; // the page still shows what was read before
    document.getElementById("read").replaceChildren(...found.childNodes);
    showTimes();
  };

  const poll = async () => {
    try {
      const answer = await fetch(window.location.href, { headers: { accept: "text/html" } });
      const page = answer.ok ? parse(await answer.text()) : null;
      const found = page?.getElementById("region") ?? null;
      if (found === null) throw new Error(`status ${answer.status}`);
      replace([...found.childNodes]);
      showRead(page.getElementById("read"));
    } catch {
      announce("This page could not be updated.");
    }
  };

  const stop = () => {
    source?.close();
    source = null;
    clearInterval(timer);
    timer = null;
  };

  const start = () => {
    stop();
    if (region === null || isPaused || document.hidden || region.dataset.live === undefined) return;
    if (window.EventSource === undefined) {
      timer = setInterval(poll, POLL_MS);
      return;
    }
    source = new EventSource(region.dataset.live);
    source.addEventListener("region", (event) => replace([...parse(JSON.parse(event.data)).body.childNodes]));
    source.addEventListener("read", (event) => showRead(parse(JSON.parse(event.data)).body));
    source.addEventListener("problem", (event) => announce(JSON.parse(event.data)));
    source.addEventListener("error", () => {
      if (source?.readyState !== EventSource.CLOSED) return; // otherwise the browser connects again
      stop();
      timer = setInterval(poll, POLL_MS);
    });
  };

  const setPaused = (value) => {
    isPaused = value;
    if (pause !== null) {
      pause.setAttribute("aria-pressed", String(value));
      pause.textContent = value ? "Resume updates" : "Pause updates";
    }
    start();
  };

  document.addEventListener("visibilitychange", start);
  window.addEventListener("pagehide", stop);
  if (pause !== null) {
    pause.hidden = false;
    pause.addEventListener("click", () => setPaused(!isPaused));
  }

  // -- the theme: of the system, until another one is chosen

  const stored = (name, change) => {
    try {
      if (change !== undefined) window.localStorage.setItem(`pg_scheduler.${name}`, change);
      return window.localStorage.getItem(`pg_scheduler.${name}`);
    } catch {
      return null; // the browser forbids storage
    }
  };
  const root = document.documentElement;
  const chosen = stored("theme");
  if (chosen === "light" || chosen === "dark") root.dataset.theme = chosen;
  if (theme !== null) {
    theme.hidden = false;
    theme.addEventListener("click", () => {
      const isDark = root.dataset.theme
        ? root.dataset.theme === "dark"
        : window.matchMedia("(prefers-color-scheme: dark)").matches;
      root.dataset.theme = isDark ? "light" : "dark";
      stored("theme", root.dataset.theme);
    });
  }

  // -- times: in UTC, in the zone of the browser, or in that of the schedule that is shown

  const zone = document.getElementById("times");
  const own = document.querySelector("[data-zone]")?.dataset.zone;
  const local = Intl.DateTimeFormat().resolvedOptions().timeZone;
  const zones = [...new Set(["UTC", local, own].filter(Boolean))];
  let shownZone = zones.includes(stored("zone")) ? stored("zone") : "UTC";

  const showTimes = () => {
    const format = new Intl.DateTimeFormat("sv-SE", { timeZone: shownZone, dateStyle: "short", timeStyle: "medium" });
    for (const each of document.querySelectorAll("time[datetime]")) {
      each.dataset.utc ??= each.textContent;
      each.textContent = shownZone === "UTC" ? each.dataset.utc : format.format(new Date(each.dateTime));
      if (shownZone !== "UTC") each.title = `${each.dataset.utc}, ${each.title.split(", ").at(-1)}`;
    }
    if (zone !== null) zone.textContent = `Times: ${shownZone}`;
  };

  if (zone !== null && zones.length > 1) {
    zone.hidden = false;
    zone.addEventListener("click", () => {
      shownZone = zones[(zones.indexOf(shownZone) + 1) % zones.length];
      stored("zone", shownZone);
      showTimes();
    });
  }
  showTimes();

  // -- the time left until fire times, by the clock of the server

  const readAt = document.querySelector("footer time");
  const skewMs = readAt === null ? 0 : Date.parse(readAt.dateTime) - Date.now();
  const UNITS = [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]];

  const countDown = () => {
    for (const each of document.querySelectorAll("[data-until]")) {
      const left = (Date.parse(each.dataset.until) - Date.now() - skewMs) / 1000;
      const [unit, size] = UNITS.find(([, seconds]) => left >= 2 * seconds) ?? UNITS.at(-1);
      each.textContent = left > 0 ? `in ${Math.round(left / size)} ${unit}` : "now";
    }
  };
  setInterval(countDown, 1000);

  // -- copying

  const showCopying = () => {
    for (const each of document.querySelectorAll("button[data-copy]")) {
      each.hidden = navigator.clipboard === undefined; // the page came over HTTP
    }
  };
  document.addEventListener("click", async (event) => {
    const button = event.target.closest("button[data-copy]");
    if (button === null) return;
    await navigator.clipboard.writeText(document.getElementById(button.dataset.copy).textContent);
    announce("Copied.");
  });
  showCopying();

  // -- rows: all of a page are selected at once

  const showAllRows = () => document.getElementById("all-rows")?.removeAttribute("hidden");
  document.addEventListener("change", ({ target }) => {
    if (target.id !== "all-rows") return;
    for (const each of document.getElementsByName("row")) each.checked = target.checked;
  });
  showAllRows();

  // -- keys: "/" to the search, "p" pauses, "t" changes the theme, "j" and "k" go to the next and previous row, "x"
  //    selects it, "e" goes to the explanation of its job, "g" and the first letter of a page goes there, "?" to the list
  //    of keys. People can turn all of them off.

  const keys = document.getElementById("keys");
  if (keys !== null) {
    keys.disabled = false;
    keys.checked = stored("keys") !== "off";
    keys.addEventListener("change", () => stored("keys", keys.checked ? "on" : "off"));
  }

  const isTyping = (target) => target.closest("input:not([type=checkbox]), textarea, select, [contenteditable]") !== null;
  let isGoing = false;

  const moveRow = (step) => {
    const links = [...document.querySelectorAll("main tbody tr")].map((row) => row.querySelector("a")).filter(Boolean);
    const row = document.activeElement?.closest("tr");
    const place = links.findIndex((link) => row !== null && link.closest("tr") === row);
    links[place < 0 ? 0 : Math.min(Math.max(place + step, 0), links.length - 1)]?.focus();
  };

  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.altKey || event.metaKey || isTyping(event.target) || stored("keys") === "off") return;
    const search = document.getElementById("q");
    if (isGoing || event.key === "?") {
      isGoing = false;
      const link = [...document.querySelectorAll("nav a[data-key]")].find((each) => each.dataset.key === event.key);
      if (link !== undefined) window.location.assign(link.href);
    } else if (event.key === "/" && search !== null) {
      event.preventDefault();
      search.focus();
      search.select();
    } else if (event.key === "p" && pause !== null) {
      setPaused(!isPaused);
    } else if (event.key === "t" && theme !== null) {
      theme.click();
    } else if (event.key === "j" || event.key === "k") {
      moveRow(event.key === "j" ? 1 : -1);
    } else if (event.key === "x") {
      document.activeElement?.closest("tr")?.querySelector("input[type=checkbox]")?.click();
    } else if (event.key === "e") {
      const link = document.activeElement?.closest("tr")?.querySelector("a[data-job]");
      if (link) window.location.assign(`${link.href}#explanation`);
      else document.getElementById("explanation")?.focus();
    } else if (event.key === "g") {
      isGoing = true;
      setTimeout(() => { isGoing = false; }, 1500);
    }
  });

  start();
})();
