// Elements and numbers. Text goes in by textContent alone, so nothing that a name holds is ever markup.

export function el(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (name === "on") for (const [event, handler] of Object.entries(value)) made.addEventListener(event, handler);
    else made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

export function svg(tag, attributes = {}, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

export const UNKNOWN = "unknown";

// Kept, as making one takes longer than a thousand uses.
const formats = new Map();
function format(digits) {
  if (!formats.has(digits)) formats.set(digits, new Intl.NumberFormat("en-GB", { minimumFractionDigits: digits, maximumFractionDigits: digits }));
  return formats.get(digits);
}

export function number(value, digits = 0, unit = "") {
  if (value === null || value === undefined || !Number.isFinite(value)) return UNKNOWN;
  const text = format(digits).format(value);
  return unit ? `${text} ${unit}` : text;
}

export function share(value, digits = 0) {
  return value === null || value === undefined ? UNKNOWN : `${number(value * 100, digits)} %`;
}

export function seconds(value) {
  if (value === null || value === undefined || !Number.isFinite(value)) return UNKNOWN;
  const size = Math.abs(value);
  if (size >= 7200) return number(value / 3600, 1, "h");
  if (size >= 120) return number(value / 60, 1, "min");
  if (size >= 9.95) return number(value, 0, "s");
  if (size >= 0.9995) return number(value, 2, "s");
  if (size >= 0.01 || size === 0) return number(value * 1000, 0, "ms");
  return number(value * 1000, 2, "ms");
}

export function short(value, unit = "") {
  if (value === null || value === undefined) return UNKNOWN;
  for (const [size, letter] of [[1e9, "G"], [1e6, "M"], [1e3, "k"]]) {
    if (Math.abs(value) >= size) return `${number(value / size, 1)}${letter}${unit ? ` ${unit}` : ""}`;
  }
  return number(value, 0, unit);
}

const TIME = new Intl.DateTimeFormat("en-GB", { timeStyle: "medium" });
const DATE_TIME = new Intl.DateTimeFormat("en-GB", { dateStyle: "medium", timeStyle: "medium" });
export const clockTime = (at) => TIME.format(at * 1000);
export const dateTime = (at) => (at ? DATE_TIME.format(at * 1000) : UNKNOWN);

export function tile(name, value, unit = "") {
  return el("div", {}, el("dt", {}, name), el("dd", {}, value, unit ? el("small", {}, unit) : null));
}

export function tiles(rows) {
  return el("dl", { class: "tiles" }, ...rows.map((row) => tile(...row)));
}

export function facts(rows) {
  return el("dl", { class: "facts" }, ...rows.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value))));
}

// A bar of parts, which `setBar` makes as wide as their shares of `most`, with a text beside it.
export function barOf(count) {
  const pieces = Array.from({ length: count }, (_, i) => el("i", { class: `a${i}` }));
  const text = el("b");
  return { node: el("span", { class: "bar" }, el("span", { class: "track", "aria-hidden": "true" }, ...pieces), text), pieces, text, seen: [] };
}

export function setBar(made, parts, most, text) {
  parts.forEach((value, i) => {
    const width = `${most > 0 ? Math.min(100, Math.round((200 * (value || 0)) / most) / 2) : 0}%`;
    if (made.seen[i] !== width) made.pieces[i].style.width = made.seen[i] = width;
  });
  if (made.seen.text !== text) made.text.textContent = made.seen.text = text;
}

export function bar(parts, most, text) {
  const made = barOf(parts.length);
  setBar(made, parts, most, text);
  return made.node;
}

// Work through a list without holding up the browser: some at a time, the rest after it had its turn. Work of the
// same name that is begun anew takes the place of what is not done. `done` is called at the end.
const SLICE_MS = 8;
const running = new Map();
export async function inSlices(name, list, work, done) {
  const mine = {};
  running.set(name, mine);
  let until = performance.now() + SLICE_MS;
  for (const each of list) {
    if (performance.now() > until) {
      await turn();
      if (running.get(name) !== mine) return;
      until = performance.now() + SLICE_MS;
    }
    work(each);
  }
  done?.();
}

// A frame, or a little later where none are drawn.
const turn = () => new Promise((go) => { requestAnimationFrame(() => setTimeout(go)); setTimeout(go, 200); });

export function key(names) {
  return el("p", { class: "key" }, ...names.map((name, i) => el("span", {}, el("i", { class: `k${i}`, "aria-hidden": "true" }), name)));
}

// A table in a box that scrolls by itself, also by keyboard. Columns: [heading, is a number].
export function table(label, columns, rows, stacked = true) {
  const head = el("tr", { role: "row" }, ...columns.map(([name, isNumber]) => el("th", { scope: "col", role: "columnheader", class: isNumber ? "n" : null }, name)));
  const body = el("tbody", { role: "rowgroup" }, ...rows.map((cells) => line(columns, cells)));
  const whole = el("table", { role: "table", "aria-label": label }, el("thead", { role: "rowgroup" }, head), body);
  return el("div", { class: stacked ? "scroll stack" : "scroll", tabindex: "0", role: "region", "aria-label": label }, whole);
}

export function line(columns, cells) {
  return el("tr", { role: "row" }, ...cells.map((cell, i) => {
    const [name, isNumber, wraps] = columns[i];
    return el("td", { role: "cell", class: [isNumber ? "n" : "", wraps ? "wrap" : ""].join(" ").trim() || null, "data-label": name }, cell);
  }));
}

// Put other children into a box, unless what they tell is the same; who was in one of them by keyboard stays there.
export function swap(box, told, make) {
  const text = JSON.stringify(told);
  if (box.dataset.told === text) return;
  box.dataset.told = text;
  const focused = document.activeElement, held = box.contains(focused) ? nameOf(focused) : null, caret = held && focused.selectionStart;
  const aside = new Map([...box.querySelectorAll(".scroll")].map((each) => [nameOf(each), each.scrollLeft]));
  box.replaceChildren(...make());
  for (const each of box.querySelectorAll(".scroll")) each.scrollLeft = aside.get(nameOf(each)) || 0;
  const next = held && [...box.querySelectorAll("button, input, select, [tabindex]")].find((each) => nameOf(each) === held);
  next?.focus({ preventScroll: true });
  if (next && Number.isInteger(caret)) next.setSelectionRange(caret, caret);
}

const nameOf = (node) => `${node.form?.getAttribute("aria-label") || ""} ${node.getAttribute("aria-label") || node.name || node.textContent}`;

export async function get(path) {
  const answer = await fetch(path, { headers: { accept: "application/json" } });
  const said = await answer.json();
  if (!answer.ok) throw new Error(said.error || `status ${answer.status}`);
  return said;
}

let gone = 0;
export function toast(text) {
  const box = document.getElementById("toast");
  box.textContent = text;
  box.hidden = false;
  clearTimeout(gone);
  gone = setTimeout(() => { box.hidden = true; }, 8000);
}
