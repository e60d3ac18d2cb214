// The page's frame: tabs, colours, the stream of events, and which view is told of them.
import { el, number, setText } from "./dom.js";
import * as decisions from "./decisions.js";
import * as fleet from "./fleet.js";
import * as gateways from "./gateways.js";
import * as orders from "./orders.js";
import * as settings from "./settings.js";
import * as traffic from "./traffic.js";

const VIEWS = { fleet, traffic, decisions, gateways, settings };
const NAMES = Object.keys(VIEWS);
const by = (id) => document.getElementById(id);
// Seconds after which a page that nobody sees asks its gateway for nothing more, and without word is said to be old.
const HIDDEN = 30, SILENT = 15;
// Pages that a gateway serves at once, and seconds after which one that had to give way, or found no place, comes again.
const PAGES = 16, AGAIN = 30, TURNED_AWAY = 5;
let shown = "fleet", news = null, fleetNews = null, heard = 0, stream = null, leaving = 0;

function show(name, focus = false) {
  shown = NAMES.includes(name) ? name : "fleet";
  for (const each of NAMES) {
    const tab = by(`tab-${each}`), on = each === shown;
    tab.setAttribute("aria-selected", String(on));
    tab.tabIndex = on ? 0 : -1;
    by(each).hidden = !on;
    if (on && focus) tab.focus();
  }
  if (location.hash !== `#${shown}`) history.replaceState(null, "", `#${shown}`);
  if (news) VIEWS[shown].render(news);
}

document.querySelector("[role=tablist]").addEventListener("keydown", (event) => {
  const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
  const place = event.key === "Home" ? 0 : event.key === "End" ? NAMES.length - 1 : step ? (NAMES.indexOf(shown) + step + NAMES.length) % NAMES.length : -1;
  if (place >= 0) { event.preventDefault(); show(NAMES[place], true); }
});
for (const name of NAMES) by(`tab-${name}`).addEventListener("click", () => show(name));
addEventListener("hashchange", () => { if (NAMES.includes(location.hash.slice(1))) show(location.hash.slice(1)); });

const THEMES = { "": "Auto", light: "Light", dark: "Dark" };
function paint(theme) {
  if (theme) document.documentElement.dataset.theme = theme; else delete document.documentElement.dataset.theme;
  setText(by("theme"), THEMES[theme]);
  by("theme").setAttribute("aria-label", `${THEMES[theme]} colours`);
  localStorage.setItem("kvsteer-theme", theme);
}
by("theme").addEventListener("click", () => {
  const names = Object.keys(THEMES), now = document.documentElement.dataset.theme || "";
  paint(names[(names.indexOf(now) + 1) % names.length]);
});
const stored = localStorage.getItem("kvsteer-theme") || "";
paint(stored in THEMES ? stored : "");

by("lock").addEventListener("click", () => show("settings", true));

function frame() {
  orders.allow(news.orders);
  setText(by("who"), `${news.gateway}, version ${news.version}, ${number(news.streams)} ${news.streams === 1 ? "request" : "requests"} open`);
  setText(by("lock"), orders.unlocked() ? "Orders unlocked" : "Read-only");
  const texts = { off: "state not shared", ok: "state shared", degraded: `state not shared: ${news.shared_why || "unknown why"}` };
  health(texts[news.shared] || news.shared, news.shared !== "degraded");
}

function health(text, good) {
  const box = by("health");
  if (box.dataset.text === text) return;
  box.dataset.text = text;
  box.replaceChildren(el("span", { class: `lamp ${good ? "" : "bad"}` }, el("i", { class: `dot ${good ? "on" : "off"}`, "aria-hidden": "true" }), text));
}

function refresh() {
  if (!news) return;
  frame();
  VIEWS[shown].render(news);
}

function listen() {
  stream = new EventSource("page/events");
  stream.addEventListener("way", () => {
    leave();
    health(`${PAGES} newer pages of this gateway are open, so this one gave way; what is shown is old`, false);
    setTimeout(again, AGAIN * 1000);
  });
  stream.addEventListener("news", (event) => {
    news = JSON.parse(event.data);
    news.replicas = fleetNews;
    heard = Date.now();
    traffic.take(news);
    if (!document.hidden) refresh();
  });
  stream.addEventListener("fleet", (event) => {
    fleetNews = JSON.parse(event.data);
    if (news) news.replicas = fleetNews;
    if (!document.hidden && shown === "fleet") refresh();
  });
  stream.addEventListener("error", () => {
    if (stream?.readyState !== EventSource.CLOSED) { health(`no word from the gateway; ${shownIs()}`, false); return; }
    stream = null;
    setTimeout(again, TURNED_AWAY * 1000);
    turnedAway();
  });
}

const shownIs = () => (heard ? "what is shown is old" : "nothing is known yet");

// A stream of events does not tell why it was refused; the same path without a stream does.
async function turnedAway() {
  let why = "the gateway can't be reached";
  try {
    const { status } = await fetch("page/events", { method: "HEAD" });
    why = status === 503 ? `${PAGES} pages of this gateway are open already, and that is the most: close one` : status === 200 ? "no word from the gateway" : `the stream of news was refused with status ${status}`;
  } catch { /* as it says */ }
  if (!stream) health(`${why}; ${shownIs()}`, false);
}

function again() {
  if (!stream && !document.hidden) listen();
}

function leave() {
  stream?.close();
  stream = null;
}

document.addEventListener("visibilitychange", () => {
  clearTimeout(leaving);
  if (document.hidden) { leaving = setTimeout(leave, HIDDEN * 1000); return; }
  again();
  refresh();
});
for (const [name, view] of Object.entries(VIEWS)) view.mount(by(name), refresh);
setInterval(() => {
  if (stream && heard && !document.hidden && Date.now() - heard > SILENT * 1000) health(`no word from the gateway for ${SILENT} s; what is shown is old`, false);
}, 5000);
show(location.hash.slice(1));
listen();
