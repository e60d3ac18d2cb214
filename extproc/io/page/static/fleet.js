// Fleet: every replica, what a request would wait for there, and what is believed of it.
import { barOf, el, inSlices, key, number, seconds, setBar, share, short, tiles } from "./dom.js";
import { detailOf, PARTS } from "./replica.js";

const COLUMNS = [
  ["Replica"], ["State"], ["Seconds ahead"], ["Headroom", true], ["Running / slots", true], ["Waiting", true], ["KV used", true],
  ["In flight", true], ["Prompt speed", true], ["Output speed", true], ["Hits came", true], ["Sample's age", true],
];
// Rows on the page at most, however large the fleet: the filter and the order find the others.
const MOST = 500;
const ORDERS = [["place", "as configured"], ["ahead", "most seconds ahead"], ["kv", "most KV used"], ["flight", "most in flight"], ["excluded", "not chosen first"]];
const VALUES = { ahead: (r) => sum(r.ahead), kv: (r) => r.kv ?? -1, flight: (r) => r.requests, excluded: (r) => (r.excluded ? 1 : 0) };

let summary, filter, box, sort, note;
const rows = new Map();
let open = null, latest = null, drawn = null;

export function mount(panel) {
  summary = el("div");
  filter = el("input", { type: "search", autocomplete: "off", on: { input: () => draw() } });
  sort = el("select", { on: { change: () => draw() } }, ...ORDERS.map(([value, text]) => el("option", { value }, text)));
  box = el("tbody", { role: "rowgroup" });
  note = el("p", { class: "muted", role: "status" });
  const head = el("tr", { role: "row" }, ...COLUMNS.map(([name, isNumber]) => el("th", { scope: "col", role: "columnheader", class: isNumber ? "n" : null }, name)));
  panel.append(
    summary,
    el("form", { class: "row", on: { submit: (event) => event.preventDefault() } }, el("label", {}, "Pool, replica or state", filter), el("label", {}, "Order", sort), note),
    key(PARTS),
    el("div", { class: "scroll stack tall", tabindex: "0", role: "region", "aria-label": "Replicas" },
      el("table", { role: "table", "aria-label": "Replicas" }, el("thead", { role: "rowgroup" }, head), box)),
  );
}

export function render(news) {
  if (!news?.replicas) return;
  latest = news;
  summary.replaceChildren(totals(news));
  if (drawn !== news.replicas) { drawn = news.replicas; draw(); } else drawDetail();
}

function draw() {
  if (!latest) return;
  const all = latest.replicas, text = filter.value.trim().toLowerCase();
  const fit = sorted(all.filter((r) => !text || `${r.pool} ${r.replica} ${r.state} ${r.excluded || ""}`.toLowerCase().includes(text)));
  const shown = fit.slice(0, MOST), most = Math.max(...all.map((r) => sum(r.ahead)), 0.1);
  said(all.length, fit.length, shown.length);
  drawDetail(shown);
  let place = box.firstChild;
  inSlices("fleet", shown, (r) => {
    const row = rowOf(r);
    fill(row, r, most);
    for (const node of open === row.name ? [row.line, row.detail] : [row.line]) {
      if (place !== node) box.insertBefore(node, place); else place = node.nextSibling;
    }
  }, () => {
    const names = new Set(shown.map(nameOf));
    for (const [name, row] of rows) {
      if (!names.has(name)) { row.line.remove(); row.detail.remove(); rows.delete(name); }
    }
  });
}

function said(all, fit, shown) {
  const removed = latest.removed.map((r) => r.replica);
  const texts = [!all ? "No replica is known." : !fit ? "No replica fits." : shown < fit ? `The first ${number(shown)} of ${number(fit)} in this order.` : fit < all ? `${number(fit)} of ${number(all)} fit.` : ""];
  if (removed.length) texts.push(`Removed by a drain's deadline: ${removed.slice(0, 10).join(", ")}${removed.length > 10 ? ` and ${removed.length - 10} more` : ""}.`);
  const text = texts.filter(Boolean).join(" ");
  if (note.textContent !== text) note.textContent = text;
}

function totals(news) {
  const all = news.replicas, chosen = all.filter((r) => !r.excluded).length;
  const known = all.filter((r) => r.kv !== null);
  const kv = known.length ? known.reduce((a, r) => a + r.kv, 0) / known.length : null;
  const predicted = all.reduce((a, r) => a + (r.predicted || 0), 0), actual = all.reduce((a, r) => a + (r.actual || 0), 0);
  return tiles([
    ["May be chosen", `${number(chosen)} / ${number(all.length)}`, "replicas"],
    ["In flight", number(all.reduce((a, r) => a + r.requests, 0)), "requests"],
    ["Longest ahead", all.length ? seconds(Math.max(...all.map((r) => r.ahead[0]))) : "none", "of prompt work"],
    ["KV used, mean", share(kv)],
    ["Prompts' time taken", taken(news.pools)],
    ["Predicted hits that came", predicted ? share(actual / predicted) : "unknown"],
  ]);
}

function taken(pools) {
  return pools.length > 3 ? `${share(Math.max(...pools.map((p) => p.rho)))} at most` : pools.map((p) => share(p.rho)).join(", ");
}

const sorted = (list) => (VALUES[sort.value] ? [...list].sort((a, b) => VALUES[sort.value](b) - VALUES[sort.value](a)) : list);
const sum = (parts) => parts.reduce((a, b) => a + b, 0);
const nameOf = (r) => `${r.pool} ${r.replica}`;

function rowOf(r) {
  const name = nameOf(r);
  if (!rows.has(name)) rows.set(name, makeRow(name, r));
  return rows.get(name);
}

function makeRow(name, replica) {
  const toggle = el("button", { type: "button", class: "link", "aria-expanded": "false", on: { click: () => flip(name) } }, replica.replica);
  const cells = COLUMNS.map(([label, isNumber]) => el("td", { role: "cell", class: isNumber ? "n" : null, "data-label": label }));
  const bar = barOf(PARTS.length), dot = el("i", { class: "dot", "aria-hidden": "true" }), state = el("span");
  const lamp = el("span", { class: "lamp" }, dot, state);
  cells[0].append(toggle);
  cells[1].append(lamp);
  cells[2].append(bar.node);
  const detail = el("tr", { role: "row" }, el("td", { class: "detail", role: "cell", colspan: COLUMNS.length }));
  const row = { name, line: el("tr", { role: "row", "data-replica": replica.replica }, ...cells), cells, toggle, detail, bar, dot, lamp, state, texts: [] };
  mark(row);
  return row;
}

function mark(row) {
  row.toggle.setAttribute("aria-expanded", String(open === row.name));
  row.line.className = open === row.name ? "open" : "";
}

function flip(name) {
  const before = open;
  open = open === name ? null : name;
  for (const each of [before, open]) {
    const row = rows.get(each);
    if (!row) continue;
    mark(row);
    if (open === each) row.line.after(row.detail); else row.detail.remove();
  }
  drawDetail();
}

function drawDetail(shown = latest.replicas) {
  const row = open && rows.get(open), replica = row && shown.find((r) => nameOf(r) === open);
  if (replica) detailOf(row.detail.firstChild, replica, latest);
}

function fill(row, r, most) {
  const state = r.excluded && r.excluded !== r.state ? `${r.state}, ${r.excluded.replaceAll("_", " ")}` : r.slow < 0.995 ? `${r.state}, slow` : r.state;
  if (row.texts[1] !== state) {
    row.texts[1] = state;
    row.state.textContent = state;
    row.lamp.className = `lamp ${r.excluded ? "warn" : ""}`;
    row.dot.className = `dot ${r.excluded ? "off" : "on"}`;
  }
  setBar(row.bar, r.ahead, most, seconds(sum(r.ahead)));
  const texts = [
    number(r.headroom, 2), r.running === null ? "unknown" : `${number(r.running)} / ${number(r.slots)}`, number(r.waiting), share(r.kv),
    number(r.requests), short(r.prefill, "tok/s"), short(r.decode, "tok/s"), share(r.precision), r.age === null ? "none yet" : seconds(r.age),
  ];
  texts.forEach((text, i) => {
    if (row.texts[i + 3] === text) return;
    row.texts[i + 3] = text;
    row.cells[i + 3].textContent = text;
  });
}
