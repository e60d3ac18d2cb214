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

export function number(value, digits = 0, unit = "") {
  if (value === null || value === undefined || !Number.isFinite(value)) return UNKNOWN;
  const text = value.toLocaleString("en-GB", { minimumFractionDigits: digits, maximumFractionDigits: digits });
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

export function clockTime(at) {
  return new Date(at * 1000).toLocaleTimeString("en-GB");
}

export function dateTime(at) {
  return at ? new Date(at * 1000).toLocaleString("en-GB") : UNKNOWN;
}

export function tile(name, value, unit = "") {
  return el("div", {}, el("dt", {}, name), el("dd", {}, value, unit ? el("small", {}, unit) : null));
}

export function tiles(rows) {
  return el("dl", { class: "tiles" }, ...rows.map((row) => tile(...row)));
}

export function facts(rows) {
  return el("dl", { class: "facts" }, ...rows.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value))));
}

// A bar of parts in seconds, as wide as its share of `most`, with the sum beside it.
export function bar(parts, most, text) {
  const track = el("span", { class: "track", "aria-hidden": "true" });
  parts.forEach((value, i) => {
    const piece = el("i", { class: `a${i}` });
    piece.style.width = `${most > 0 ? Math.min(100, (100 * (value || 0)) / most) : 0}%`;
    track.append(piece);
  });
  return el("span", { class: "bar" }, track, el("b", {}, text));
}

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
