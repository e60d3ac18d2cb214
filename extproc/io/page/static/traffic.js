// Traffic: the last five minutes, a point a second, and who was refused.
import { el, number, seconds, share, svg, swap, table } from "./dom.js";
import { inWords, REFUSED, refusal } from "./words.js";

const POINTS = 300;
// Seconds without word after which a line is broken.
const GAP = 5;
const points = [];
let charts, refused, tenants;

const CHARTS = [
  { title: "Decisions", read: (p) => p.decisions, write: (v) => number(v, v < 10 ? 1 : 0, "/s") },
  { title: "Time to first token", read: (p) => p.ttft, second: (p) => p.ttft_p95, write: seconds, note: "mean; dashed: P95" },
  { title: "Prompt tokens found in caches", read: (p) => p.hit, write: (v) => share(v), top: 1 },
  { title: "Open", read: (p) => p.open, write: (v) => number(v, 0, v === 1 ? "request" : "requests") },
  { title: "Waiting", read: (p) => p.held, second: (p) => p.queued, write: (v) => number(v), both: true, note: "held; dashed: queued by admission" },
  { title: "Refused", read: (p) => Object.values(p.refused).reduce((a, b) => a + b, 0), write: (v) => number(v, 1, "/s") },
];
// What admission said, in the order of its columns.
const VERDICTS = [["allow", "Let in"], ["queue", "Queued first"], ["degrade", "Degraded"], ["reject", "Refused"]];

export function mount(panel) {
  charts = el("div", { class: "cards" });
  refused = el("div");
  tenants = el("div");
  panel.append(charts, refused, tenants);
}

export function take(news) {
  if (news.history) points.splice(0, points.length, ...news.history);
  else if (news.point && (!points.length || points.at(-1).at < news.point.at)) points.push(news.point);
  while (points.length && points[0].at < points.at(-1).at - POINTS) points.shift();
}

export function render(news) {
  if (!news) return;
  charts.replaceChildren(...CHARTS.map(chart));
  const counts = reasons();
  swap(refused, [...counts], () => [el("h2", { class: "head" }, "Refused in these five minutes, by reason"), reasonTable(counts)]);
  swap(tenants, [news.answers], () => [el("h2", { class: "head" }, "Admission since the start, by tenant"), answers(news.answers)]);
}

function lastKnown(read) {
  for (let i = points.length - 1; i >= 0 && i > points.length - 30; i--) {
    const value = read(points[i]);
    if (value !== null && value !== undefined) return value;
  }
  return null;
}

function chart({ title, read, second, write, note, top, both }) {
  const now = lastKnown(read), values = points.map(read), beside = second ? points.map(second) : [];
  const highest = Math.max(...[...values, ...beside].filter((v) => v !== null && v !== undefined), 0);
  const most = top || highest || 1, text = both ? `${write(now)} + ${write(lastKnown(second))}` : write(now);
  const drawn = svg("svg", { viewBox: "0 0 300 92", preserveAspectRatio: "none", role: "img", "aria-label": `${title}: ${text} now, at most ${write(highest)} in the last five minutes` });
  drawn.append(svg("path", { class: "base", d: "M0 91H300M0 1H300" }), svg("path", { class: "area", d: path(values, most, true) }));
  if (second) drawn.append(svg("path", { class: "line second", d: path(beside, most) }));
  drawn.append(svg("path", { class: "line", d: path(values, most) }));
  return el("figure", { class: "card chart" },
    el("figcaption", {}, el("span", {}, title, note ? el("span", { class: "muted" }, ` (${note})`) : null), el("span", { class: "now" }, text)),
    drawn,
    el("p", { class: "axis" }, el("span", {}, "5 min ago"), el("span", {}, `top: ${write(top ?? highest)}`), el("span", {}, "now")));
}

// Points at which nothing is known, and seconds of which nothing was told, are gaps, not zeros; a lone point is a
// short dash. With `filled` the way back along the bottom is drawn too.
function path(values, most, filled = false) {
  const last = points.length ? points.at(-1).at : 0;
  let d = "", from = null, before = null;
  const end = () => { if (filled && from !== null) d += `L${before} 91L${from} 91Z`; from = null; };
  values.forEach((value, i) => {
    const x = (POINTS - (last - points[i].at)).toFixed(1);
    if (value === null || value === undefined) { end(); return; }
    if (from !== null && x - before > GAP) end();
    const y = (91 - (90 * Math.min(value, most)) / most).toFixed(1);
    d += from === null ? `M${x} ${y}h.6` : `L${x} ${y}`;
    from ??= x;
    before = x;
  });
  end();
  return d;
}

function reasons() {
  const counts = new Map();
  for (const point of points) for (const [why, rate] of Object.entries(point.refused)) counts.set(why, (counts.get(why) || 0) + rate);
  return counts;
}

function reasonTable(counts) {
  if (!counts.size) return el("p", { class: "muted" }, "None.");
  return table("Refused by reason", [["Reason"], ["About", true]], [...counts].map(([why, n]) => [refusal(why), number(n, 0, "requests")]));
}

function answers(list) {
  if (list === null) return el("p", { class: "muted" }, "Admission is off in this gateway.");
  if (!list.length) return el("p", { class: "muted" }, "Nothing was asked yet.");
  const columns = [["Tenant"], ["Pool"], ...VERDICTS.map(([, name]) => [`${name}, requests`, true]), ["Refused for", false, true]];
  return table("Admission by tenant", columns, [...byTenant(list)].map(([, row]) => [row.tenant, row.pool, ...VERDICTS.map(([verdict]) => number(row[verdict] || 0)), row.why.join(", ") || "nothing"]));
}

function byTenant(list) {
  const found = new Map();
  for (const a of list) {
    const name = `${a.tenant} ${a.pool}`, row = found.get(name) || { tenant: a.tenant, pool: a.pool, why: [] };
    found.set(name, row);
    row[a.verdict] = (row[a.verdict] || 0) + a.count;
    if (a.verdict === "reject") row.why.push(`${inWords(REFUSED, a.reason)} ${number(a.count)}`);
  }
  return found;
}
