// What the page does on top of plain links: panes are exchanged in place (htmx), news are shown as they come, and
// keys move through the list. All of it can be missing: every view is a page of its own.
"use strict";
(() => {
  const PANES = ["pane-boxes", "pane-list", "pane-main"];
  const POLL_MS = 15000;
  const page = () => document.getElementById("page");
  const panes = () => PANES.map((id) => document.getElementById(id)).filter(Boolean);

  // -- scroll positions ---------------------------------------------------------------------------------------------

  const key = (pane) => {
    const first = pane.querySelector("h2");
    return pane.id + "\n" + (first ? first.textContent : "");
  };
  const positions = () => new Map(panes().map((pane) => [key(pane), pane.scrollTop]));
  const restore = (kept) => panes().forEach((pane) => {
    const top = kept.get(key(pane));
    if (top !== undefined) pane.scrollTop = top;
  });
  let kept = new Map();
  document.addEventListener("htmx:beforeSwap", () => { kept = positions(); });
  document.addEventListener("htmx:afterSettle", () => { restore(kept); arrive(); });

  // -- news -------------------------------------------------------------------------------------------------------

  let shown = 0;      // the version that the page shows
  let wanted = 0;     // the version that there is
  let loading = false;

  const isBusy = () => {
    const field = document.activeElement;
    return field instanceof HTMLInputElement && field.value !== field.defaultValue;
  };

  async function refresh() {
    if (loading || wanted <= shown || document.hidden || isBusy()) return;
    loading = true;
    const address = location.href;
    const target = wanted;
    try {
      const answer = await fetch(address, { headers: { "X-Postmaster-Reload": "1" } });
      const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
      if (address === location.href && fresh.getElementById("page")) { exchange(fresh); shown = target; }
    } catch (fault) {
      setTimeout(refresh, POLL_MS);
    } finally {
      loading = false;
    }
    if (wanted > shown && !isBusy()) setTimeout(refresh, 300);
  }

  // Only a pane that differs is exchanged: what is selected, open or scrolled in the others stays as it is.
  function exchange(fresh) {
    const before = positions();
    const focused = document.activeElement && document.activeElement.getAttribute("href");
    const open = new Set([...document.querySelectorAll("#pane-main details[open]")].map(place));
    for (const pane of panes()) {
      const other = fresh.getElementById(pane.id);
      if (!other || other.innerHTML === (pane.source || pane.innerHTML)) continue;
      pane.replaceChildren(...other.childNodes);
      pane.source = undefined;
      window.htmx.process(pane);
    }
    document.querySelectorAll("#pane-main details").forEach((one) => { one.open = open.has(place(one)); });
    restore(before);
    if (focused && document.activeElement === document.body) {
      const again = [...document.querySelectorAll("a[href]")].find((link) => link.getAttribute("href") === focused);
      if (again) again.focus({ preventScroll: true });
    }
    const said = document.getElementById("said");
    if (said) said.textContent = "The page shows new mail.";
    remember();
    window.postmasterPictures.draw(true);
  }

  const place = (one) => [...document.querySelectorAll("#pane-main details")].indexOf(one);

  // A picture is drawn into its pane: what the server sent is kept to tell whether the pane differs.
  function remember() { panes().forEach((pane) => { if (!pane.source) pane.source = pane.innerHTML; }); }

  function heard(version) {
    wanted = version;
    if (version < shown) shown = 0;  // another server
    refresh();
  }

  let source = null;
  function listen() {
    if (source || document.hidden || !window.EventSource) return;
    source = new EventSource("/events");
    source.addEventListener("mail", (event) => heard(Number(event.data)));
  }
  async function poll() {
    if (document.hidden || (source && source.readyState === EventSource.OPEN)) return;
    try { heard(Number(await (await fetch("/version")).text())); } catch (fault) { /* the next time */ }
    if (source && source.readyState === EventSource.CLOSED) { source = null; listen(); }
  }
  document.addEventListener("visibilitychange", () => {  // a browser has few connections: none for a page nobody sees
    if (document.hidden && source) { source.close(); source = null; } else listen();
  });
  document.addEventListener("focusout", () => setTimeout(refresh, 100));
  setInterval(poll, POLL_MS);

  // -- keys -------------------------------------------------------------------------------------------------------

  const links = () => {
    const rows = [...document.querySelectorAll("#rows a")];
    return rows.length ? rows : [...document.querySelectorAll("#pane-boxes a")];
  };
  function move(by) {
    const all = links();
    if (!all.length) return;
    let at = all.indexOf(document.activeElement);
    if (at < 0) at = all.findIndex((link) => link.hasAttribute("aria-current")) - (by > 0 ? 0 : 0);
    const next = at < 0 ? 0 : Math.min(all.length - 1, Math.max(0, at + by));
    all[next].focus();
    all[next].scrollIntoView({ block: "nearest" });
  }
  function back() {
    const depth = Number(page().dataset.depth);
    const pane = document.getElementById(depth === 2 ? "pane-main" : "pane-list");
    const link = pane && pane.querySelector("[data-back]");
    if (link) link.click();
  }
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
    const typing = event.target instanceof HTMLInputElement;
    if (event.key === "Escape") {
      if (typing) event.target.blur(); else back();
    } else if (typing) {
      return;
    } else if (event.key === "j") move(1);
    else if (event.key === "k") move(-1);
    else if (event.key === "/") document.getElementById("q")?.focus();
    else return;
    event.preventDefault();
  });

  // -- every time a page is there -----------------------------------------------------------------------------------

  function arrive() {
    shown = Number(page().dataset.version);
    remember();
    const current = document.querySelector("#rows [aria-current]");
    if (current && document.activeElement === document.body) current.focus({ preventScroll: true });
    window.postmasterPictures.draw(false);
    refresh();
  }
  document.addEventListener("DOMContentLoaded", () => { arrive(); listen(); });
})();
