// One replica opened: all that is believed of it, and the button that drains it.
import { el, facts, number, seconds, setText, share } from "./dom.js";
import { excluded } from "./words.js";
import { order, unlocked } from "./orders.js";

export const PARTS = ["prompt work ahead", "context that slows each step", "waiting for a slot or KV"];

// The button stays the same element while the facts change beneath the pointer.
export function detailOf(cell, r, news) {
  if (!cell.firstChild) cell.append(el("div"), el("p", { class: "row" }, el("button", { type: "button", class: "drain" }), el("span", { class: "muted" })));
  const list = factsOf(r, news), text = JSON.stringify(list), [told, line] = cell.children;
  if (cell.dataset.text !== text) told.replaceChildren(facts(list));
  cell.dataset.text = text;
  const hint = unlocked() ? "Running answers go on to their end." : news.orders ? "Unlock first: give the token under Settings." : "Read-only: this gateway has no admin.token_file.";
  setText(line.lastChild, hint);
  setButton(line.firstChild, r);
}

function factsOf(r, news) {
  const [kv, running, waiting, penalty] = r.parts;
  return [
    ["Pool", r.pool],
    ["State", `${r.state} for ${seconds(r.since)}${r.cause ? `, by ${r.cause}` : ""}`],
    ["Chosen", r.excluded ? `no: ${excluded(r.excluded)}` : r.share < 1 ? `for ${share(r.share)} of its requests` : "yes"],
    ["Breaker", r.breaker],
    ["Slow factor", r.slow < 1 ? `${number(r.slow, 2)}: it gets that part of its share` : "1.00: as fast as the others"],
    ["In seconds", PARTS.map((name, i) => `${name} ${seconds(r.ahead[i])}`).join("; ")],
    ["Headroom's parts", `free KV ${number(kv, 2)}, free slots ${number(running, 2)}, empty queue ${number(waiting, 2)}, times ${number(penalty, 2)} for the queue`],
    ["In flight by gateway", flights(r, news.gateway)],
    ["Tokens in flight", number(r.tokens, 0, "tokens")],
    ["KV cache", number(r.kv_tokens, 0, "tokens")],
    ["Learned speeds", `${number(r.prefill, 0, "prompt tokens/s")}, ${number(r.decode, 0, "output tokens/s")}`],
    ["Predicted and actual hits", r.predicted === null ? "nothing is learned" : `${number(r.predicted)} predicted, ${number(r.actual)} came (tokens)${r.scale < 1 ? `; distrusted, counts ${share(r.scale)}` : ""}`],
    ["Prefix index", number(r.entries, 0, "hashes")],
    ["Last scrape", r.unheard ? `failed: ${r.unheard}` : r.age === null ? "none yet" : "worked"],
  ];
}

function flights(r, gateway) {
  const others = Object.entries(r.others), own = r.requests - others.reduce((a, [, n]) => a + n, 0);
  return [[`${gateway} (this one)`, own], ...others].map(([name, n]) => `${name}: ${n}`).join(", ");
}

function setButton(button, r) {
  const isDrained = r.state === "quiescing";
  const done = isDrained ? `${r.replica} takes requests again` : `${r.replica} is drained: nothing new goes there`;
  setText(button, isDrained ? "Undrain" : "Drain");
  button.disabled = !unlocked();
  button.onclick = () => order(`replicas/${encodeURIComponent(r.replica)}/${isDrained ? "undrain" : "drain"}`, done);
}
