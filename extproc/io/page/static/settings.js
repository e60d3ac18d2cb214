// Settings: what each pool chooses by, its versions, and how to go back.
import { dateTime, el, facts, get, number, seconds, share, swap, table } from "./dom.js";
import { lock, order, unlock, unlocked } from "./orders.js";

// Milliseconds between two looks at versions, which come from Redis; after an order the next look is at once.
const PAUSE = 4000;
let gate, policies, shadows, weights, busy = false, asked = 0, orders = null;

export function mount(panel, changed) {
  [gate, policies, shadows, weights] = Array.from({ length: 4 }, () => el("div"));
  panel.append(gate, policies, shadows, weights);
  drawGate(changed);
}

function drawGate(changed) {
  const input = el("input", { type: "password", autocomplete: "off", name: "token" });
  const fault = el("p", { class: "bad", role: "alert" });
  const form = el("form", { class: "row", on: { submit: async (event) => {
    event.preventDefault();
    fault.textContent = await unlock(input.value);
    input.value = "";
    drawOrders();
    asked = 0;
    changed();
  } } }, el("label", {}, "Operator's token", input), el("button", { class: "main" }, "Unlock"));
  const out = el("button", { type: "button", on: { click: () => { lock(); asked = 0; drawOrders(); changed(); } } }, "Lock again");
  const note = el("p", { class: "muted" });
  gate.append(el("h2", { class: "head" }, "Orders"), note, form, fault, out);
  drawOrders = () => {
    form.hidden = !orders || unlocked();
    out.hidden = !unlocked();
    note.textContent = orders === null ? "Read-only until the gateway was heard." : !orders ? "Read-only: set admin.token_file in this gateway's configuration to drain replicas and change policies here."
      : unlocked() ? "Unlocked in this tab until it is closed." : "Read-only until the token of admin.token_file is given. It stays in this tab.";
  };
  drawOrders();
}
let drawOrders = () => {};

export async function render(news) {
  if (news.orders !== orders) { orders = news.orders; drawOrders(); }
  drawShadows(news.pools);
  if (busy || Date.now() - asked < PAUSE) return;
  busy = true;
  asked = Date.now();
  try {
    const [chosen, models] = await Promise.all([get("policies"), get("versions")]);
    const found = await Promise.all(chosen.policies.map((policy) => history(policy)));
    swap(policies, [found, unlocked()], () => found.flatMap(section));
    swap(weights, models.models, () => modelsOf(models.models));
  } catch (error) {
    swap(policies, error.message, () => [el("p", { class: "bad" }, `No answer: ${error.message}`)]);
  }
  busy = false;
}

async function history(policy) {
  try { return { policy, ...(await get(`policies/${encodeURIComponent(policy.pool)}/versions`)) }; } catch (error) { return { policy, versions: [], known: {}, why: error.message }; }
}

const ordered = async (path, done) => { const said = await order(path, done); asked = 0; return said; };

const inWords = (choice) => (choice && choice.name ? `${choice.name}${Object.entries(choice.settings).map(([k, v]) => ` ${k}=${v}`).join("")}` : "none");

function section({ policy, versions, why, known }) {
  const list = facts([
    ["Chooses by", inWords(policy.policy)], ["Version", `${policy.version} (${policy.source === "file" ? "of the configuration" : "of Redis"})`],
    ["Shadow", inWords(policy.shadow)], ["Changed by", policy.who || "nobody"], ["When", policy.when ? dateTime(policy.when) : "never"], ["Why", policy.why || "as configured"],
    ...(policy.refused ? [["Refused", `version ${policy.refused.version}: ${policy.refused.reason}`]] : []),
  ]);
  const parts = [el("h2", { class: "head" }, `Policy of pool ${policy.pool}`), el("div", { class: "card" }, list)];
  if (why) parts.push(el("p", { class: "muted" }, why));
  else parts.push(change(policy, known), versionTable(policy, versions));
  return parts;
}

function drawShadows(pools) {
  const seen = pools.filter((pool) => pool.shadow);
  swap(shadows, seen.map((pool) => [pool.pool, pool.policy, pool.shadow]), () => seen.flatMap((pool) => [
    el("h2", { class: "head" }, `What the shadow of pool ${pool.pool} would have done`), el("div", { class: "card" }, opinion(pool))]));
}

function opinion(pool) {
  const s = pool.shadow, told = s.yes + s.no;
  return facts([
    ["Policy, shadow", `${pool.policy}, ${s.name}`], ["Decisions it looked at", number(told + s.failed)],
    ["Chose the same replica", told ? share(s.yes / told, 1) : "unknown"], ["Failed", number(s.failed)],
    ["Cost of its choices", s.chosen_seconds ? versus(s.shadow_seconds / s.chosen_seconds) : "unknown"],
    ["Charged for ours, for its", told ? `${seconds(s.chosen_seconds)}, ${seconds(s.shadow_seconds)}` : "unknown"],
  ]);
}

const versus = (ratio) => (ratio < 0.995 ? `${share(1 - ratio)} less than ours` : ratio < 1.005 ? "the same as ours" : `${share(ratio - 1)} more than ours`);

// What was typed into a pool's form and not sent yet: it outlives a table that is drawn anew.
const drafts = new Map();

function change({ pool, policy }, known) {
  const name = el("select", { name: "policy" }, ...Object.keys(known).map((value) => el("option", { value, selected: value === policy.name }, value)));
  const settings = el("input", { name: "settings", placeholder: "gain=2 most=10", autocomplete: "off" });
  const why = el("input", { name: "why", required: true, autocomplete: "off", maxlength: "200" });
  const beside = el("select", { name: "as" }, el("option", { value: "policy" }, "the policy"), el("option", { value: "shadow" }, "the shadow"));
  const hint = el("p", { class: "muted" });
  const tell = () => { hint.textContent = Object.entries(known[name.value] || {}).map(([k, v]) => `${k}=${v}`).join(" ") || "no settings"; };
  name.addEventListener("change", tell);
  const fields = [name, settings, why, beside];
  (drafts.get(pool) || []).forEach((value, i) => { fields[i].value = value; });
  tell();
  const form = el("form", { class: "row", "aria-label": `Change pool ${pool}`, on: { input: () => drafts.set(pool, fields.map((field) => field.value)), submit: async (event) => {
    event.preventDefault();
    const query = new URLSearchParams({ as: beside.value, name: name.value, settings: settings.value, why: why.value });
    if (await ordered(`policies/${encodeURIComponent(pool)}/set?${query}`, `Pool ${pool} has another version`)) drafts.delete(pool);
  } } }, el("label", {}, "Change", beside), el("label", {}, "To", name), el("label", {}, "Settings", settings), el("label", {}, "Why", why),
  el("button", { class: "main", disabled: !unlocked() }, "Change"));
  return el("div", {}, el("h3", { class: "head" }, "Change"), form, el("p", { class: "row" }, el("span", { class: "muted" }, "Defaults: "), hint));
}

function versionTable(policy, versions) {
  if (!versions.length) return el("p", { class: "muted" }, "No change was made yet: there is nothing to go back to.");
  const columns = [["Version", true], ["Policy"], ["Shadow"], ["By"], ["When"], ["Why", false, true], ["Go back"]];
  const rows = versions.slice(0, 20).map((version) => [
    String(version.version), inWords(version.policy), inWords(version.shadow), version.who, dateTime(version.when),
    version.restores ? `${version.why} (version ${version.restores} again)` : version.why,
    version.version === policy.version ? "in use" : el("button", { type: "button", disabled: !unlocked(), "aria-label": `Put back version ${version.version}`, on: { click: () => ordered(`policies/${encodeURIComponent(policy.pool)}/rollback?${new URLSearchParams({ to: version.version, why: `back to version ${version.version}, on the page` })}`, `Version ${version.version} is back`) } }, "Put back"),
  ]);
  return table(`Versions of pool ${policy.pool}`, columns, rows);
}

function modelsOf(models) {
  if (!models.length) return [];
  return [el("h2", { class: "head" }, "Versions of models"), table("Versions of models",
    [["Model"], ["Version"], ["Weight", true], ["Share", true], ["Requests lately", true], ["Errors", true], ["TTFT P99", true]],
    models.flatMap((model) => model.versions.map((v) => [model.model, v.version, number(v.weight, 1, "%"), share(v.share, 1), number(v.requests), number(v.errors), seconds(v.ttft_p99)])))];
}
