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
  copied: "a copy of a hot prompt pays there",
  no_candidate: "there was no replica that may be chosen",
  affinity: "it holds the longest prefix",
  session: "the conversation was there before",
};

const TROUBLES = {
  all_stale: "all metrics were too old, so age was overlooked",
  policy_failed: "the policy failed, and least_tokens stood in",
  last_resort: "nobody else was left, so the last resort served",
};

export const inWords = (table, word) => table[word] || word.replaceAll("_", " ");
export const excluded = (word) => inWords(EXCLUDED, word);
export const reason = (word) => inWords(REASONS, word);
export const trouble = (word) => inWords(TROUBLES, word);
