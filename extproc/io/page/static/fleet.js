// Fleet: every replica, what a request would wait for there, and what is believed of it.
import { bar, el, facts, key, number, seconds, setText, share, short, tiles } from "./dom.js";
import { excluded } from "./words.js";
import { order, unlocked } from "./orders.js";

const COLUMNS = [
  ["Replica"], ["State"], ["Seconds ahead"], ["Headroom", true], ["Running / slots", true], ["Waiting", true], ["KV used", true],
  ["In flight", true], ["Prompt speed", true], ["Output speed", true], ["Hits came", true], ["Sample", true],
];
const PARTS = ["prompt work ahead", "context that slows each step", "waiting for a slot or KV"];

let root, summary, filter, box, sort, empty;
const rows = new Map();
let open = null;
let latest = null;

export function mount(panel) {
  root = panel;
  summary = el("div");
  filter = el("input", { type: "search", autocomplete: "off", on: { input: () => render(latest) } });
  sort = el("select", { on: { change: () => render(latest) } },
    ...[["place", "as configured"], ["ahead", "most seconds ahead"], ["kv", "most KV used"], ["excluded", "not chosen first"]]
      .map(([value, text]) => el("option", { value }, text)));
  box = el("tbody", { role: "rowgroup" });
  empty = el("p", { class: "muted" }, "No replica.");
  const head = el("tr", { role: "row" }, ...COLUMNS.map(([name, isNumber]) => el("th", { scope: "col", role: "columnheader", class: isNumber ? "n" : null }, name)));
  root.append(
    summary,
    el("form", { class: "row", on: { submit: (event) => event.preventDefault() } }, el("label", {}, "Pool, replica or state", filter), el("label", {}, "Order", sort)),
    key(PARTS),
    el("div", { class: "scroll stack", tabindex: "0", role: "region", "aria-label": "Replicas" },
      el("table", { role: "table", "aria-label": "Replicas" }, el("thead", { role: "rowgroup" }, head), box)),
    empty,
  );
}

export function render(news) {
  if (!news) return;
  latest = news;
  const all = news.replicas;
  summary.replaceChildren(totals(news));
  const text = filter.value.trim().toLowerCase();
  const shown = sorted(all.filter((r) => !text || `${r.pool} ${r.replica} ${r.state} ${r.excluded || ""}`.toLowerCase().includes(text)));
  const most = Math.max(...all.map((r) => sum(r.ahead)), 0.1);
  const keys = new Set();
  let place = box.firstChild;
  for (const replica of shown) {
    const name = `${replica.pool} ${replica.replica}`;
    keys.add(name);
    if (!rows.has(name)) rows.set(name, makeRow(name, replica));
    const row = rows.get(name);
    fill(row, replica, most);
    for (const node of open === name ? [row.line, row.detail] : [row.line]) {
      if (place !== node) box.insertBefore(node, place); else place = node.nextSibling;
    }
    if (open === name) fillDetail(row, replica, news);
  }
  for (const [name, row] of rows) {
    if (!keys.has(name)) { row.line.remove(); row.detail.remove(); rows.delete(name); }
    else if (open !== name) row.detail.remove();
  }
  for (const row of news.removed) keys.add(row.replica);
  empty.hidden = shown.length > 0;
  removedNote(news.removed);
}

let note = null;
function removedNote(removed) {
  note?.remove();
  if (!removed.length) return;
  note = el("p", { class: "warn" }, `Removed by a drain's deadline: ${removed.map((r) => r.replica).join(", ")}`);
  root.append(note);
}

function totals(news) {
  const all = news.replicas, chosen = all.filter((r) => !r.excluded).length;
  const known = all.filter((r) => r.kv !== null);
  const kv = known.length ? known.reduce((a, r) => a + r.kv, 0) / known.length : null;
  const predicted = all.reduce((a, r) => a + (r.predicted || 0), 0), actual = all.reduce((a, r) => a + (r.actual || 0), 0);
  return tiles([
    ["May be chosen", `${chosen} / ${all.length}`, "replicas"],
    ["In flight", number(all.reduce((a, r) => a + r.requests, 0)), "requests"],
    ["Longest ahead", all.length ? seconds(Math.max(...all.map((r) => r.ahead[0]))) : "none", "of prompt work"],
    ["KV used, mean", share(kv)],
    ["Prompts' time taken", news.pools.map((p) => share(p.rho)).join(", ")],
    ["Predicted hits that came", predicted ? share(actual / predicted) : "unknown"],
  ]);
}

function sorted(list) {
  const by = sort.value;
  if (by === "place") return list;
  const value = { ahead: (r) => sum(r.ahead), kv: (r) => r.kv ?? -1, excluded: (r) => (r.excluded ? 1 : 0) }[by];
  return [...list].sort((a, b) => value(b) - value(a));
}

const sum = (parts) => parts.reduce((a, b) => a + b, 0);

function makeRow(name, replica) {
  const toggle = el("button", { type: "button", class: "link", "aria-expanded": "false", on: { click: () => { open = open === name ? null : name; render(latest); } } }, replica.replica);
  const cells = COLUMNS.map(([label, isNumber]) => el("td", { role: "cell", class: isNumber ? "n" : null, "data-label": label }));
  cells[0].append(toggle);
  const detail = el("tr", { role: "row" }, el("td", { class: "detail", role: "cell", colspan: COLUMNS.length }));
  return { line: el("tr", { role: "row", "data-replica": replica.replica }, ...cells), cells, toggle, detail };
}

function fill(row, r, most) {
  const c = row.cells;
  const isOpen = open === `${r.pool} ${r.replica}`;
  row.toggle.setAttribute("aria-expanded", String(isOpen));
  row.line.className = isOpen ? "open" : "";
  const text = r.excluded && r.excluded !== r.state ? `${r.state}, ${r.excluded}` : r.slow < 0.995 ? `${r.state}, slow` : r.state;
  if (c[1].dataset.text !== text) {
    c[1].dataset.text = text;
    c[1].replaceChildren(el("span", { class: `lamp ${r.excluded ? "warn" : ""}` }, el("i", { class: `dot ${r.excluded ? "off" : "on"}`, "aria-hidden": "true" }), text));
  }
  c[2].replaceChildren(bar(r.ahead, most, seconds(sum(r.ahead))));
  setText(c[3], number(r.headroom, 2));
  setText(c[4], r.running === null ? "unknown" : `${number(r.running)} / ${number(r.slots)}`);
  setText(c[5], number(r.waiting));
  setText(c[6], share(r.kv));
  setText(c[7], number(r.requests));
  setText(c[8], short(r.prefill, "tok/s"));
  setText(c[9], short(r.decode, "tok/s"));
  setText(c[10], share(r.precision));
  setText(c[11], r.age === null ? "none yet" : seconds(r.age));
}

function fillDetail(row, r, news) {
  const others = Object.entries(r.others), own = r.requests - others.reduce((a, [, n]) => a + n, 0);
  const flights = [[`${news.gateway} (this one)`, own], ...others].map(([name, n]) => `${name}: ${n}`).join(", ");
  const [kv, running, waiting, penalty] = r.parts;
  const list = facts([
    ["Pool", r.pool],
    ["State", `${r.state} for ${seconds(r.since)}${r.cause ? `, by ${r.cause}` : ""}`],
    ["Chosen", r.excluded ? `no: ${excluded(r.excluded)}` : r.share < 1 ? `for ${share(r.share)} of its requests` : "yes"],
    ["Breaker", r.breaker],
    ["Slow factor", r.slow < 1 ? `${number(r.slow, 2)} of its share` : "1.00, as fast as the others"],
    ["In seconds", `${PARTS.map((name, i) => `${name} ${seconds(r.ahead[i])}`).join("; ")}`],
    ["Headroom's parts", `free KV ${number(kv, 2)}, free slots ${number(running, 2)}, empty queue ${number(waiting, 2)}, times ${number(penalty, 2)} for the queue`],
    ["In flight by gateway", flights],
    ["Tokens in flight", number(r.tokens, 0, "tokens")],
    ["KV cache", number(r.kv_tokens, 0, "tokens")],
    ["Learned speeds", `${number(r.prefill, 0, "prompt tokens/s")}, ${number(r.decode, 0, "output tokens/s")}`],
    ["Predicted and actual hits", r.predicted === null ? "nothing is learned" : `${number(r.predicted)} predicted, ${number(r.actual)} came (tokens)${r.scale < 1 ? `; distrusted, counts ${share(r.scale)}` : ""}`],
    ["Prefix index", number(r.entries, 0, "hashes")],
    ["Last scrape", r.unheard ? `failed: ${r.unheard}` : "worked"],
  ]);
  const isDrained = r.state === "quiescing";
  const action = el("button", { type: "button", disabled: !unlocked(), class: "drain", on: { click: () => order(`/replicas/${encodeURIComponent(r.replica)}/${isDrained ? "undrain" : "drain"}`, isDrained ? `${r.replica} takes requests again` : `${r.replica} is drained: nothing new goes there`) } },
    isDrained ? "Undrain" : "Drain");
  const hint = unlocked() ? "Running answers go on to their end." : news.orders ? "Unlock first: give the token under Settings." : "Read-only: this gateway has no admin.token_file.";
  const cell = row.detail.firstChild;
  const held = document.activeElement && cell.contains(document.activeElement);
  cell.replaceChildren(list, el("p", { class: "row", "data-hint": "" }, action, el("span", { class: "muted" }, hint)));
  if (held) action.focus();
}
