// Traffic: the last five minutes, a point a second, and who was refused.
import { el, number, seconds, share, svg, table } from "./dom.js";

const POINTS = 300;
const points = [];
let charts, refused, tenants;

const CHARTS = [
  { title: "Decisions", read: (p) => p.decisions, write: (v) => number(v, 1, "/s") },
  { title: "Time to first token", read: (p) => p.ttft, second: (p) => p.ttft_p95, write: seconds, note: "mean; dashed: P95" },
  { title: "Prompt tokens found in caches", read: (p) => p.hit, write: (v) => share(v), top: 1 },
  { title: "Held by late binding, queued by admission", read: (p) => p.held + p.queued, write: (v) => number(v, 0, "requests") },
  { title: "Refused", read: (p) => Object.values(p.refused).reduce((a, b) => a + b, 0), write: (v) => number(v, 1, "/s") },
];

export function mount(panel) {
  charts = el("div", { class: "cards" });
  refused = el("div");
  tenants = el("div");
  panel.append(charts, refused, tenants);
}

export function take(news) {
  if (news.history) points.splice(0, points.length, ...news.history);
  else if (news.point && (!points.length || points.at(-1).at !== news.point.at)) points.push(news.point);
  if (points.length > POINTS) points.splice(0, points.length - POINTS);
}

export function render(news) {
  if (!news) return;
  charts.replaceChildren(...CHARTS.map(chart));
  refused.replaceChildren(el("h2", { class: "head" }, "Refused in these five minutes, by reason"), reasons());
  tenants.replaceChildren(el("h2", { class: "head" }, "Admission since the start, by tenant"), answers(news.answers));
}

function lastKnown(read) {
  for (let i = points.length - 1; i >= 0 && i > points.length - 30; i--) {
    const value = read(points[i]);
    if (value !== null && value !== undefined) return value;
  }
  return null;
}

function chart({ title, read, second, write, note, top }) {
  const now = lastKnown(read);
  const values = points.map(read), beside = second ? points.map(second) : [];
  const highest = Math.max(...[...values, ...beside].filter((v) => v !== null && v !== undefined), 0);
  const most = top || highest || 1;
  const drawn = svg("svg", { viewBox: "0 0 300 92", preserveAspectRatio: "none", role: "img", "aria-label": `${title}: ${write(now)} now, at most ${write(highest)} in the last five minutes` });
  drawn.append(svg("path", { class: "base", d: "M0 91H300M0 1H300" }));
  if (second) drawn.append(svg("path", { class: "line second", d: path(beside, most) }));
  drawn.append(svg("path", { class: "line", d: path(values, most) }));
  return el("figure", { class: "card chart" },
    el("figcaption", {}, el("span", {}, title, note ? el("span", { class: "muted" }, ` (${note})`) : null), el("span", { class: "now" }, write(now))),
    drawn,
    el("p", { class: "axis" }, el("span", {}, "5 min ago"), el("span", {}, `top: ${write(top ?? highest)}`), el("span", {}, "now")));
}

// Points at which nothing is known are gaps, not zeros; a lone point is a short dash.
function path(values, most) {
  let d = "", pen = false;
  const shift = POINTS - values.length;
  values.forEach((value, i) => {
    if (value === null || value === undefined) { pen = false; return; }
    const x = shift + i, y = (91 - (90 * Math.min(value, most)) / most).toFixed(1);
    d += pen ? `L${x} ${y}` : `M${x} ${y}h.6`;
    pen = true;
  });
  return d;
}

function reasons() {
  const counts = new Map();
  for (const point of points) for (const [why, rate] of Object.entries(point.refused)) counts.set(why, (counts.get(why) || 0) + rate);
  if (!counts.size) return el("p", { class: "muted" }, "None.");
  return table("Refused by reason", [["Reason"], ["About", true]], [...counts].map(([why, n]) => [why, number(n, 0, "requests")]));
}

function answers(list) {
  if (list === null) return el("p", { class: "muted" }, "Admission is off in this gateway.");
  if (!list.length) return el("p", { class: "muted" }, "Nothing was asked yet.");
  return table("Admission by tenant", [["Pool"], ["Tenant"], ["Verdict"], ["Reason"], ["Requests", true]],
    list.map((a) => [a.pool, a.tenant, a.verdict, a.reason.replaceAll("_", " "), number(a.count)]));
}
