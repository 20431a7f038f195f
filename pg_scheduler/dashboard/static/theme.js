// Before the page is painted: the theme that was chosen in this browser, else that of the system.
try {
  const theme = window.localStorage.getItem("pg_scheduler.theme");
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
} catch { /* the browser forbids storage */ }
