// The most important numbers, now.

import { byId, setText } from "./dom.js";
import { count, percent, rate, short } from "./format.js";

/**
 * @param {any} status the newest
 * @param {import("./history.js").History} history
 */
export function showTiles(status, history) {
  const { columns, last } = history;
  show({
    running: [count(status.runningRequests), `${count(status.batchSequences)} sequences`],
    waiting: [count(status.waitingRequests), `${count(status.swappedRequests)} swapped out`],
    batch: [
      count(columns.prefill[last] + columns.decode[last]),
      `${short(columns.decode[last])} decode, ${short(columns.prefill[last])} prefill`,
    ],
    usage: [percent(columns.usage[last]), `${count(columns.used[last])} of ${count(columns.blocks[last])}`],
    ...counted(status.counters, columns, last),
  });
}

/** What counters tell. A tenant's view has none. */
function counted(counters, columns, last) {
  const speed = Number.isFinite(columns.generatedRate[last]) ? rate(columns.generatedRate[last]) : "–";
  const prompt = Number(counters.promptTokens);
  if (!prompt) return { speed: [speed, "generated"] };
  return {
    speed: [speed, `${count(Number(counters.generatedTokens))} since start`],
    hits: [percent(columns.hitRate[last]), `${percent(Number(counters.cachedPromptTokens) / prompt)} since start`],
    preemptions: [count(Number(counters.preemptions)), `${count(Number(counters.preemptionsBySwap))} by swapping`],
  };
}

/**
 * What a tenant's requests and prefixes tell instead.
 * @param {any[]} requests
 * @param {any[]} scopes
 */
export function showOwnTiles(requests, scopes) {
  const sum = (items, name) => items.reduce((total, item) => total + Number(item[name]), 0);
  show({
    hits: [percent(sum(scopes, "hit_tokens") / sum(scopes, "queried_tokens")), "since start"],
    preemptions: [count(sum(requests, "preemptions")), "of the requests listed"],
  });
}

function show(tiles) {
  for (const [name, [value, note]] of Object.entries(tiles)) {
    setText(byId(`tile-${name}`), value);
    setText(byId(`tile-${name}-note`), note);
  }
}
