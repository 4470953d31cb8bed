// A request's decisions, as rows of a waterfall and as the time that it spent in each phase. All times in ms.

import { count, plural } from "./format.js";

/**
 * @typedef {{kind: string, at: number, until: number | null, reason: string, executor: string, step: number, tokens: number}} Decision
 * @typedef {{key: string, kind: string, phase: string, from: number, to: number, text: string, detail: string}} Row
 *   phase: waiting, prefill, decode, preempted, or mark where it takes no time
 */

/**
 * @param {Decision[]} decisions in order of time
 * @param {number} end when it ended, or now
 * @returns {Row[]}
 */
export function rowsOf(decisions, end) {
  const rows = [];
  let started = false; // its first token is there
  let preempted = false;
  decisions.forEach((decision, k) => {
    const later = decisions.slice(k + 1);
    const until = (...kinds) => later.find((each) => kinds.includes(each.kind))?.at ?? end;
    const row = (phase, to, text, detail = "") =>
      rows.push({ key: `${k} ${phase}`, kind: decision.kind, phase, from: decision.at, to, text, detail });
    switch (decision.kind) {
      case "queued":
        row("waiting", until("admitted", "finished"), "Queued");
        break;
      case "waited":
        row("mark", decision.until ?? decision.at, "Waited", decision.reason);
        break;
      case "admitted": {
        const cached = decision.tokens ? `${plural(decision.tokens, "token")} from the cache` : "nothing cached";
        row("mark", decision.at, preempted ? "Resumed" : "Admitted", joined(cached, decision.reason, place(decision)));
        if (preempted && started && !recomputes(later)) decode(rows, decision.at, until("preempted", "finished"), k);
        break;
      }
      case "prefill":
        row("prefill", decision.until ?? end, "Prefill", joined(plural(decision.tokens, "token"), decision.reason, step(decision)));
        if (preempted && started && !recomputes(later)) decode(rows, decision.until ?? end, until("preempted", "finished"), k);
        break;
      case "first token":
        row("mark", decision.at, "First token", step(decision));
        started = true;
        decode(rows, decision.at, until("preempted", "finished"), k);
        break;
      case "preempted":
        row("preempted", until("admitted", "finished"), "Preempted", decision.reason);
        preempted = true;
        break;
      case "finished":
        row("mark", decision.at, "Finished", joined(decision.reason, plural(decision.tokens, "token")));
        break;
      default:
        row("mark", decision.at, decision.kind, decision.reason);
    }
  });
  return rows;
}

function decode(rows, from, to, k) {
  rows.push({ key: `${k} decode`, kind: "decode", phase: "decode", from, to, text: "Decode", detail: "" });
}

/** Chunks of the prompt come again before anything else does. */
function recomputes(later) {
  return later[0]?.kind === "prefill";
}

const joined = (...parts) => parts.filter(Boolean).join(" · ");
const step = (decision) => (decision.step ? `step ${count(decision.step)}` : "");
const place = (decision) => (decision.executor ? `on ${decision.executor}` : "");

/**
 * Time in each phase; they add up to the whole.
 * @param {Row[]} rows
 * @param {number} end
 */
export function phasesOf(rows, end) {
  const phases = { waiting: 0, prefill: 0, decode: 0, preempted: 0 };
  const spans = rows.filter((row) => row.phase === "waiting" || row.phase === "decode" || row.phase === "preempted");
  for (const row of spans) phases[row.phase] += row.to - row.from;
  phases.prefill = Math.max(0, end - phases.waiting - phases.decode - phases.preempted);
  return phases;
}
