// One decision opened: what was asked, every candidate in seconds, who was left out, what came of it.
import { bar, el, facts, key, number, seconds, share, table } from "./dom.js";
import { excluded, reason, trouble } from "./words.js";

const PARTS = ["prompt work ahead of it", "its own uncached prompt", "charged for others, context, slots, KV"];
// Candidates shown until more are asked for, and replicas named of those left out for one reason.
const FEW = 20;

export function content(said, dialog) {
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
  const note = said.in_seconds ? "At the speeds that are believed now." : `${said.policy} does not count in seconds: the bars show only what each would compute of the prompt.`;
  const box = el("div"), draw = (count) => box.replaceChildren(...candidateTable(said, rows, count, () => draw(rows.length)));
  draw(FEW);
  return [key(PARTS), box, el("p", { class: "muted" }, note)];
}

function candidateTable(said, rows, count, all) {
  const most = Math.max(...rows.slice(0, count).map((row) => total(row.bar)), 1e-9);
  const columns = [["Replica"], ["Seconds"], ["In cache", true], ["In flight", true], ["Running", true], ["Waiting", true], ["KV used", true], ["Sample's age", true], ["Score", true]];
  const lines = rows.slice(0, count).map((row) => [
    row.replica === said.choice ? el("strong", {}, `${row.replica} (chosen)`) : row.replica,
    bar([row.bar.ahead ?? 0, row.bar.uncached, row.bar.rest ?? 0], most, seconds(total(row.bar))),
    number(row.cached_tokens, 0, "tok"), number(row.in_flight), number(row.running), number(row.waiting), share(row.kv_used),
    row.sample_age === null ? "none" : seconds(row.sample_age),
    row.score === undefined ? "none" : said.in_seconds ? seconds(row.score) : number(row.score, 3),
  ]);
  const more = rows.length > count ? [el("p", {}, el("button", { type: "button", on: { click: all } }, `Show all ${number(rows.length)}`), el("span", { class: "muted" }, ` ${number(rows.length - count)} dearer ones are not shown`))] : [];
  return [table("Candidates", columns, lines), ...more];
}

// Who was left out, by why, as one word may hold for hundreds.
function left(said) {
  const why = new Map();
  for (const row of said.candidates) if (row.excluded) why.set(row.excluded, [...(why.get(row.excluded) || []), row.replica]);
  if (!why.size) return [el("p", { class: "muted" }, `${number(said.candidates.length)} of the pool's replicas were looked at, and none of them was left out.`)];
  const named = (list) => `${list.slice(0, FEW).join(", ")}${list.length > FEW ? ` and ${number(list.length - FEW)} more` : ""}`;
  return [el("h3", {}, "Left out"), el("ul", { class: "plain" }, ...[...why].map(([word, list]) => el("li", {}, `${named(list)}: ${excluded(word)}`)))];
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
    ["First token (expected: prompt work alone)", seconds(first), got(end?.first_token_seconds, seconds)],
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
