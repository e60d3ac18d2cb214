// The gateway's words, said in full.

const EXCLUDED = {
  stale: "its metrics are too old to go by",
  kv_ceiling: "its KV cache is full to the ceiling",
  slow: "it is slower than the rest of the fleet",
  breaker: "its breaker is open after failures",
  pushback: "it asked to be left alone for a while (429 or 503 with Retry-After)",
  asleep: "it sleeps",
  backoff: "it backs off after failures",
  warming: "it warms up, and takes a growing share only",
  quiescing: "it is drained: nothing new goes there",
  "re-registering": "it restarted and was not heard since",
  gone: "it is gone",
  subset: "the request may not go there",
};

const REASONS = {
  least_cost: "it costs the fewest seconds, everything charged",
  least_time: "it would be done soonest",
  copied: "a copy of a hot prompt pays there",
  no_candidate: "there was no replica that may be chosen",
  affinity: "it holds the longest prefix",
  longest_match: "it holds the longest prefix",
  imbalance: "loads were too uneven to go by prefixes, and it had the fewest requests",
  fewest_requests: "it had the fewest requests",
  fewest_tokens: "it had the fewest tokens in flight",
  lesser_of_two: "of two that were drawn it had fewer requests",
  only: "there was no other",
  drawn: "it was drawn",
  drawn_by_headroom: "it was drawn, by headroom",
  none_with_room: "it was drawn, as none had room",
  turn: "it was its turn",
  session: "the conversation was there before",
  new_session: "the conversation is new, and its hash leads there",
  moved_session: "the conversation moved there, as its replica may not be chosen",
  no_prompt: "no prompt could be read, so load decided",
  hashed: "the prompt's beginning leads there by its hash",
  shared_by_hash: "what the whole model shares leads there by its hash",
  new_prefix: "its beginning is new, and it was drawn by headroom",
  owner: "it owns the prompt's beginning and has room",
  owner_of_hot: "it is one of the owners of a hot beginning",
  owner_busy: "it owns the prompt's beginning, although it is busy",
  relieved: "the owner of its beginning is busy, so another was drawn",
  dwelling: "the owner of its beginning has no room, and it moved too lately to move again",
  rebound: "the owner of its beginning had no room, so another owns it now",
};

// Why admission refuses.
export const REFUSED = {
  pool_full: "the fleet is fully loaded",
  tenant_share: "the tenant's share is in use",
  tenant_in_flight: "the tenant's tokens in flight",
  tenant_rate: "the tenant's tokens a minute",
  tenant_too_large: "larger than the tenant's quota",
  queue_full: "too many wait",
  tenant_queue_full: "too many of the tenant's wait",
  deadline: "would wait longer than it may",
  waited_too_long: "waited as long as it may",
};

// How requests that were sent nowhere were dealt with.
const OUTCOMES = {
  not_admitted: "not admitted",
  no_candidate: "no replica that may be chosen",
  bad_request: "unreadable body",
  too_large: "body too large",
  unknown_model: "unknown model",
};

const TROUBLES = {
  all_stale: "all metrics were too old, so age was overlooked",
  policy_failed: "the policy failed, and least_tokens stood in",
  last_resort: "nobody else was left, so the last resort served",
};

export const inWords = (table, word) => table[word] || word.replaceAll("_", " ");
export const excluded = (word) => inWords(EXCLUDED, word);
export const reason = (word) => REASONS[word] || (REFUSED[word] ? `admission refused it: ${REFUSED[word]}` : inWords({}, word));
export const trouble = (word) => inWords(TROUBLES, word);
export const refusal = (text) => {
  const [outcome, why] = text.split(": ");
  return why ? `${inWords(OUTCOMES, outcome)}: ${inWords(REFUSED, why)}` : inWords(OUTCOMES, outcome);
};
