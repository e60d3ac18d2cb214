// Decisions: a table with filters, and one decision opened.
import { clockTime, el, get, inSlices, number, seconds, table, toast } from "./dom.js";
import { content } from "./decision.js";

const COLUMNS = [
  ["Time"], ["Request"], ["Pool"], ["Replica"], ["Reason"], ["Prompt", true], ["Expected in cache", true], ["Found", true],
  ["First token", true], ["Held", true], ["Decided in", true],
];
const MOST = 200;
// Milliseconds between two looks: at what became of the rows shown, or at what fits a filter.
const PAUSE = 2500;

let body, form, count, live;
let kept = new Map();
let busy = false, asked = 0;
const drawn = new Map();

export function mount(panel) {
  form = el("form", { class: "row", on: { submit: (event) => { event.preventDefault(); refresh(); }, input: () => refresh() } },
    ...[["pool", "Pool"], ["replica", "Replica"], ["reason", "Reason or trouble"], ["text", "Request id contains"]]
      .map(([name, label]) => el("label", {}, label, el("input", { name, type: "search", autocomplete: "off", list: name === "text" ? null : `some-${name}` }))),
    el("button", { type: "button", on: { click: () => { form.reset(); refresh(); } } }, "Clear"));
  live = el("button", { type: "button", "aria-pressed": "false", on: { click: () => live.setAttribute("aria-pressed", String(!isPaused())) } }, "Pause");
  form.append(live);
  for (const name of ["pool", "replica", "reason"]) form.append(el("datalist", { id: `some-${name}` }));
  count = el("p", { class: "muted" });
  const box = table("Decisions", COLUMNS, []);
  body = box.querySelector("tbody");
  panel.append(form, count, box);
}

const isPaused = () => live.getAttribute("aria-pressed") === "true";
const filters = () => Object.fromEntries([...new FormData(form)].filter(([, value]) => value));
const isFiltered = () => Object.keys(filters()).length > 0;

export async function refresh() {
  if (busy) { busy = "again"; return; }
  busy = true;
  asked = Date.now();
  try {
    const said = await get(`page/decisions?${new URLSearchParams(filters())}`);
    kept = new Map(said.decisions.map((row) => [row.number, row]));
    draw(said.count);
  } catch (error) {
    count.textContent = `No answer: ${error.message}`;
  }
  const again = busy === "again";
  busy = false;
  if (again) refresh();
}

export function render(news) {
  if (isPaused()) return;
  if (Date.now() - asked >= PAUSE) { refresh(); return; }
  if (isFiltered() || busy) return;
  for (const row of news.decisions) kept.set(row.number, row);
  kept = new Map([...kept].sort(([a], [b]) => b - a).slice(0, MOST));
  draw(news.count);
}

function draw(total) {
  const rows = [...kept.values()];
  count.textContent = rows.length
    ? `${rows.length} shown of ${number(total)} since the start${isFiltered() ? ", those that fit" : ", the newest, a sample where they are many"}`
    : isFiltered() ? "No decision that is kept fits these filters." : "No decision yet.";
  let place = body.firstChild;
  inSlices("decisions", rows, (row) => {
    const line = lineOf(row);
    if (place !== line) body.insertBefore(line, place); else place = line.nextSibling;
  }, () => {
    const numbers = new Set(rows.map((row) => row.number));
    for (const [number_, made] of drawn) if (!numbers.has(number_)) { made.line.remove(); drawn.delete(number_); }
  });
  for (const name of ["pool", "replica", "reason"]) offer(name, rows);
}

function offer(name, rows) {
  const list = document.getElementById(`some-${name}`);
  const values = [...new Set(rows.map((row) => row[name]).filter(Boolean))].sort().slice(0, 100);
  if (list.dataset.values !== values.join(" ")) {
    list.dataset.values = values.join(" ");
    list.replaceChildren(...values.map((value) => el("option", { value })));
  }
}

// The row's element, made once and filled anew when what is known of the decision changed.
function lineOf(row) {
  const text = JSON.stringify(row);
  let made = drawn.get(row.number);
  if (!made) {
    const when = clockTime(row.at);
    const opener = el("button", { type: "button", class: "link", "aria-label": `Open the decision of ${when}, request ${row.id || "without an id"}`, on: { click: () => open(row.number) } }, when);
    const cells = COLUMNS.map(([label, isNumber]) => el("td", { role: "cell", class: isNumber ? "n" : null, "data-label": label }));
    cells[0].append(opener);
    made = { line: el("tr", { role: "row" }, ...cells), cells };
    drawn.set(row.number, made);
  }
  if (made.text !== text) cellsOf(row).forEach((cell, i) => made.cells[i + 1].replaceChildren(cell));
  made.text = text;
  return made.line;
}

function cellsOf(row) {
  return [
    row.id ? el("span", { title: row.id }, row.id.slice(0, 18)) : "no id", row.pool,
    row.replica || el("span", { class: "bad" }, "nowhere"),
    row.trouble ? el("span", { class: "warn" }, `${row.reason} (${row.trouble})`) : row.reason,
    number(row.tokens, 0, "tok"), number(row.cached, 0, "tok"),
    row.hit === null ? (row.over ? "unknown" : "running") : number(row.hit, 0, "tok"),
    row.first === null ? (row.over ? "unknown" : "running") : seconds(row.first + row.held),
    row.held ? seconds(row.held) : "no", seconds(row.took),
  ];
}

export async function open(number_) {
  let said;
  try { said = await get(`page/decisions/${number_}`); } catch (error) { toast(error.message); return; }
  const dialog = document.getElementById("opened");
  dialog.replaceChildren(...content(said, dialog));
  if (!dialog.open) dialog.showModal();
}
