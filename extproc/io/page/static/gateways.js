// Gateways: who shares with whom, how far behind, and who holds which lease.
import { el, facts, get, number, seconds, swap, table } from "./dom.js";

// Milliseconds between two looks.
const PAUSE = 2500;
let root, busy = false, asked = 0;

export function mount(panel) { root = panel; }

export async function render() {
  if (busy || Date.now() - asked < PAUSE) return;
  busy = true;
  asked = Date.now();
  try {
    const state = await get("state");
    swap(root, state, () => partsOf(state));
  } catch (error) { swap(root, error.message, () => [el("p", { class: "bad" }, `No answer: ${error.message}`)]); }
  busy = false;
}

function partsOf(state) {
  const journal = state.journal;
  const shared = { off: "off: this gateway decides by what it alone sees", ok: "ok", degraded: `degraded: ${state.shared_why || "the reason is not known"}` }[state.shared] || state.shared;
  const parts = [
    el("h2", { class: "head" }, "This gateway"),
    el("div", { class: "card" }, facts([
      ["Gateway", state.gateway], ["Version", state.version], ["Exchanges open", number(state.streams)],
      ["Shared state", el("span", { class: state.shared === "degraded" ? "bad" : "" }, shared)], ["Redis", state.redis || "none configured"],
      ...(journal ? [
        ["Journal's delay", seconds(journal.delay)], ["News not yet sent", number(journal.queue)],
        ["Gaps in what was heard", number(journal.gaps)], ["Requests of others", number(journal.requests_of_others)],
        ["News lost", counts(journal.dropped)], ["News refused", counts(journal.refused)],
        ["Index snapshot", `${journal.snapshot.whole ? "whole" : "not whole yet"}; ${journal.snapshot.loaded ? "one was" : "none was"} loaded at the start`],
      ] : []),
    ])),
    el("h2", { class: "head" }, "Other gateways"),
  ];
  const peers = journal ? journal.peers.filter((peer) => peer.gateway !== state.gateway) : [];
  parts.push(peers.length
    ? table("Other gateways", [["Gateway"], ["Heard", true], ["Requests in flight", true]],
      peers.map((peer) => [peer.gateway, `${seconds(peer.silent)} ago`, number(peer.requests)]))
    : el("p", { class: "muted" }, journal ? "None is heard." : "Nothing is shared, so none is heard."));
  parts.push(el("h2", { class: "head" }, "Leases"));
  parts.push(state.leases.length
    ? table("Leases", [["Lease"], ["Holder"], ["Held here"], ["Ends in", true], ["Fencing token", true]], state.leases.map((lease) =>
      [lease.lease, lease.holder || "nobody", lease.held ? "yes" : "no", lease.remaining === null ? "unknown" : seconds(lease.remaining), lease.token === null ? "none" : String(lease.token)]))
    : el("p", { class: "muted" }, "None is asked for."));
  return parts;
}

function counts(found) {
  const some = Object.entries(found).filter(([, n]) => n);
  return some.length ? some.map(([name, n]) => `${name}: ${n}`).join(", ") : "none";
}
