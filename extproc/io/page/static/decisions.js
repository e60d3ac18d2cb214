// Decisions: a table with filters, and one decision opened.
import { bar, clockTime, el, facts, get, key, number, seconds, share, table, toast } from "./dom.js";
import { excluded, reason, trouble } from "./words.js";

const COLUMNS = [
  ["Time"], ["Request"], ["Pool"], ["Replica"], ["Reason"], ["Prompt", true], ["Expected in cache", true], ["Found", true],
  ["First token", true], ["Held", true], ["Decided in", true],
];
const MOST = 200;
const PARTS = ["prompt work ahead of it", "its own uncached prompt", "charged for others, context, slots, KV"];

let body, form, count, live;
let kept = new Map();
let busy = false;

export function mount(panel) {
  form = el("form", { class: "row", on: { submit: (event) => { event.preventDefault(); refresh(); }, input: () => refresh() } },
    ...[["pool", "Pool"], ["replica", "Replica"], ["reason", "Reason or trouble"], ["text", "Request id contains"]]
      .map(([name, label]) => el("label", {}, label, el("input", { name, type: "search", autocomplete: "off", list: name === "text" ? null : `some-${name}` }))),
    el("button", { type: "button", on: { click: () => { form.reset(); refresh(); } } }, "Clear"));
  live = el("button", { type: "button", "aria-pressed": "true", on: { click: () => { const on = live.getAttribute("aria-pressed") !== "true"; live.setAttribute("aria-pressed", String(on)); live.textContent = on ? "Pause" : "Go on"; } } }, "Pause");
  form.append(live);
  for (const name of ["pool", "replica", "reason"]) form.append(el("datalist", { id: `some-${name}` }));
  count = el("p", { class: "muted", role: "status" });
  const box = table("Decisions", COLUMNS, []);
  body = box.querySelector("tbody");
  panel.append(form, count, box);
}

const filters = () => Object.fromEntries([...new FormData(form)].filter(([, value]) => value));
const isLive = () => live.getAttribute("aria-pressed") === "true";

export async function refresh() {
  if (busy) { busy = "again"; return; }
  busy = true;
  try {
    const said = await get(`/page/decisions?${new URLSearchParams(filters())}`);
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
  if (!isLive()) return;
  if (Object.keys(filters()).length) { refresh(); return; }
  if (!kept.size) { refresh(); return; }
  for (const row of news.decisions) kept.set(row.number, row);
  kept = new Map([...kept].sort(([a], [b]) => b - a).slice(0, MOST));
  draw(news.count);
}

function draw(total) {
  const rows = [...kept.values()];
  const asked = Object.keys(filters()).length;
  count.textContent = rows.length
    ? `${rows.length} shown of ${number(total)} since the start${asked ? ", those that fit" : ", a sample of the newest"}`
    : asked ? "No decision that is kept fits these filters." : "No decision yet.";
  const focused = document.activeElement?.dataset?.number;
  body.replaceChildren(...rows.map(line));
  if (focused) body.querySelector(`[data-number="${focused}"]`)?.focus();
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

function line(row) {
  const cells = [
    el("button", { type: "button", class: "link", "data-number": row.number, "aria-label": `Open the decision of ${clockTime(row.at)}, request ${row.id || "without an id"}`, on: { click: () => open(row.number) } }, clockTime(row.at)),
    row.id ? row.id.slice(0, 18) : "no id", row.pool,
    row.replica || el("span", { class: "bad" }, "nowhere"),
    row.trouble ? el("span", { class: "warn" }, `${row.reason} (${row.trouble})`) : row.reason,
    number(row.tokens, 0, "tok"), number(row.cached, 0, "tok"),
    row.hit === null ? (row.over ? "unknown" : "running") : number(row.hit, 0, "tok"),
    row.first === null ? (row.over ? "unknown" : "running") : seconds(row.first + row.held),
    row.held ? seconds(row.held) : "no", seconds(row.took),
  ];
  return el("tr", { role: "row" }, ...cells.map((cell, i) => el("td", { role: "cell", class: COLUMNS[i][1] ? "n" : null, "data-label": COLUMNS[i][0] }, cell)));
}

export async function open(number_) {
  let said;
  try { said = await get(`/page/decisions/${number_}`); } catch (error) { toast(error.message); return; }
  const dialog = document.getElementById("opened");
  dialog.replaceChildren(...content(said, dialog));
  if (!dialog.open) dialog.showModal();
}

function content(said, dialog) {
  const close = el("button", { type: "button", on: { click: () => dialog.close() } }, "Close");
  const title = el("h2", { id: "opened-title" }, `Request ${said.request_id || "without an id"}`);
  const chosen = said.choice ? `${said.choice}: ${reason(said.reason)}` : `nowhere: ${reason(said.reason)}`;
  return [
    el("div", { class: "head" }, title, close),
    el("p", {}, chosen, said.trouble ? el("span", { class: "warn" }, `, although ${trouble(said.trouble)}`) : null),
    el("h3", {}, "The request"), asked(said),
    el("h3", {}, "Candidates"), ...candidates(said),
    ...left(said),
    el("h3", {}, "What came of it, beside what was expected"), outcome(said),
    ...shadow(said.shadow),
  ];
}

function asked(said) {
  const r = said.request;
  return facts([
    ["Pool, policy", `${said.pool}, ${said.policy} (version ${said.policy_version})`],
    ["Model", `${r.model || "unnamed"}${r.adapter ? `, adapter ${r.adapter}` : ""}`],
    ["Read as", r.dialect ? `${r.dialect}, ${r.kind}${r.stream ? ", streamed" : ""}` : "no body that can be read"],
    ["Body", number(r.bytes, 0, "bytes")],
    ["Output limit", r.max_output === undefined ? "unknown" : r.max_output === null ? "none named" : number(r.max_output, 0, "tokens")],
    ["Prompts' time taken (rho)", share(said.rho)],
    ["Decided in", seconds(said.decision_seconds)],
    ["Held", said.held_seconds ? seconds(said.held_seconds) : "no"],
    ["Admission", said.admission ? `${said.admission.verdict}: ${said.admission.reason} (${said.admission.tenant})` : "not asked"],
    ["Fallbacks", said.fallbacks.join(", ") || "none"],
  ]);
}

const total = (bar_) => (bar_.ahead ?? 0) + bar_.uncached + (bar_.rest ?? 0);

function candidates(said) {
  const rows = said.candidates.filter((row) => !row.excluded);
  if (!rows.length) return [el("p", { class: "bad" }, "None.")];
  rows.sort((a, b) => (b.replica === said.choice) - (a.replica === said.choice) || total(a.bar) - total(b.bar));
  const most = Math.max(...rows.map((row) => total(row.bar)), 1e-9);
  const columns = [["Replica"], ["Seconds"], ["In cache", true], ["In flight", true], ["Running", true], ["Waiting", true], ["KV used", true], ["Sample", true], ["Score", true]];
  const lines = rows.map((row) => [
    row.replica === said.choice ? el("strong", {}, `${row.replica} (chosen)`) : row.replica,
    bar([row.bar.ahead ?? 0, row.bar.uncached, row.bar.rest ?? 0], most, seconds(total(row.bar))),
    number(row.cached_tokens, 0, "tok"), number(row.in_flight), number(row.running), number(row.waiting), share(row.kv_used),
    row.sample_age === null ? "none" : seconds(row.sample_age),
    row.score === undefined ? "none" : said.in_seconds ? seconds(row.score) : number(row.score, 3),
  ]);
  const note = said.in_seconds ? "At the speeds that are believed now." : `${said.policy} does not count in seconds: the bars show only what each would compute of the prompt.`;
  return [key(PARTS), table("Candidates", columns, lines), el("p", { class: "muted" }, note)];
}

function left(said) {
  const rows = said.candidates.filter((row) => row.excluded);
  if (!rows.length) return [el("p", { class: "muted" }, "Every other replica was a candidate; none was left out.")];
  return [el("h3", {}, "Left out"), el("ul", { class: "plain" }, ...rows.map((row) => el("li", {}, `${row.replica}: ${excluded(row.excluded)}`)))];
}

function outcome(said) {
  const end = said.ending, mine = said.candidates.find((row) => row.replica === said.choice && !row.excluded);
  const first = mine?.bar && mine.bar.ahead !== null ? mine.bar.ahead + mine.bar.uncached : null;
  const unknown = said.ended ? "unknown" : "still running";
  const got = (value, write) => (value === null || value === undefined ? unknown : write(value));
  return table("Outcome", [["What"], ["Expected", true], ["Came", true]], [
    ["Prompt", number(said.request.prompt_tokens, 0, "tokens"), got(end?.prompt_tokens, (v) => number(v, 0, "tokens"))],
    ["Found in the cache", number(said.request.cached_tokens_expected, 0, "tokens"), got(end?.cached_tokens, (v) => number(v, 0, "tokens"))],
    ["Answer", number(said.request.output_tokens_expected, 0, "tokens"), got(end?.output_tokens, (v) => number(v, 0, "tokens"))],
    ["First token", seconds(first), got(end?.first_token_seconds, seconds)],
    ["Replica", said.choice || "none", got(end?.served, (v) => v)],
    ["Ended", "complete, 200", end?.by ? `${end.by === "complete" ? "complete" : `by ${end.by}`}, status ${end.status ?? "unknown"}${end.attempts > 1 ? `, attempt ${end.attempts}` : ""}` : unknown],
  ]);
}

function shadow(opinion) {
  if (!opinion) return [];
  const cost = opinion.predicted_seconds === null || opinion.chosen_predicted_seconds === null ? ""
    : ` By charged cost that is ${seconds(opinion.predicted_seconds)} against ${seconds(opinion.chosen_predicted_seconds)}.`;
  const said = opinion.failed ? "it failed" : opinion.agrees ? "the same replica" : opinion.choice;
  return [el("h3", {}, "Shadow policy"), el("p", {}, `${opinion.policy}: ${said}.${cost}`)];
}
