// One request's life as a waterfall: each decision, its reason, and the time between.

import { byId, el, reconcile, setText } from "./dom.js";
import { clockTime, count, duration, plural } from "./format.js";
import { phasesOf, rowsOf } from "./life.js";
import { requestInAddress } from "./location.js";

const PHASES = ["waiting", "prefill", "decode", "preempted"];

export class LifePanel {
  /**
   * @param {() => number} now the gateway's time
   * @param {(tenant: string, id: string) => void} onmap its blocks are to be shown
   */
  constructor(now, onmap) {
    this.now = now;
    this.timeline = null;
    this.body = byId("life-rows");
    this.facts = byId("life-facts");
    byId("life-close").addEventListener("click", () => this.close());
    byId("life-map").addEventListener("click", () => onmap(this.timeline?.request.tenant ?? "", requestInAddress()));
    const bar = byId("life-phases");
    const legend = byId("life-legend");
    this.parts = Object.fromEntries(PHASES.map((phase) => [phase, { bar: el("span", { data: { phase } }), value: el("span.number") }]));
    for (const phase of PHASES) {
      bar.append(this.parts[phase].bar);
      legend.append(el("li", {}, el("span.phase-swatch", { data: { phase }, "aria-hidden": "true" }), el("span", { text: phase }), this.parts[phase].value));
    }
    addEventListener("hashchange", () => this.changed());
    this.changed();
  }

  /** What to ask for, or null. */
  get path() {
    const id = requestInAddress();
    const over = this.timeline?.request.id === id && this.timeline.request.state === "ended";
    return id && !over ? `requests/${encodeURIComponent(id)}` : null;
  }

  close() {
    history.replaceState(null, "", location.pathname + location.search);
    dispatchEvent(new HashChangeEvent("hashchange"));
    byId("requests-filter").focus();
  }

  changed() {
    const id = requestInAddress();
    this.timeline = null;
    byId("life-panel").hidden = !id;
    if (!id) return;
    setText(byId("life-id"), id);
    setText(byId("life-problem"), "");
    byId("life-content").hidden = true;
  }

  take(timeline) {
    this.timeline = timeline;
    setText(byId("life-problem"), "");
    byId("life-content").hidden = false;
    this.update();
  }

  failed(error) {
    if (this.timeline === null && error.status === 404) {
      setText(byId("life-problem"), "There is no such request, or it ended too long ago, or it is another tenant's.");
    }
  }

  update() {
    if (!this.timeline) return;
    const { request, decisions, leftOut } = this.timeline;
    const end = (request.ended ?? this.now()) - request.arrived;
    const rows = rowsOf(decisions, end);
    const last = Math.max(end, ...rows.map((row) => row.to), 1);
    reconcile(this.body, rows, makeRow, (element, row) => fillRow(element, row, last));
    this.showPhases(phasesOf(rows, end), end);
    this.showFacts(request, end);
    byId("life-left-out").hidden = !leftOut;
    setText(byId("life-left-out"), leftOut ? `${plural(leftOut, "decision")} in the middle are left out.` : "");
    setText(byId("life-axis-end"), duration(last));
    setText(byId("life-axis-middle"), duration(last / 2));
  }

  showPhases(phases, end) {
    for (const phase of PHASES) {
      this.parts[phase].bar.style.width = `${end > 0 ? (100 * phases[phase]) / end : 0}%`;
      setText(this.parts[phase].value, duration(phases[phase]));
    }
  }

  showFacts(request, end) {
    const shown = [
      ["State", request.reason ? `${request.state}: ${request.reason}` : request.state],
      ["Tenant", request.tenant || "–"],
      ["Executor", request.executor || "–"],
      ["Arrived", clockTime(request.arrived)],
      ["Time", duration(end)],
      ["Prompt", `${plural(request.prompt, "token")}, ${count(request.cached)} cached`],
      ["Output", `${plural(request.output, "token")}, most ${count(request.maxTokens)} each`],
      ["Priority", String(request.priority)],
      ["Preempted", request.preemptions ? plural(request.preemptions, "time") : "never"],
    ];
    reconcile(this.facts, shown.map(([name, value]) => ({ key: name, value })),
      ({ key }) => el("div", {}, el("dt", { text: key }), el("dd")),
      (element, { value }) => setText(element.lastElementChild, value));
  }
}

function makeRow() {
  return el("li.life-row", {}, el("span.number.life-at"), el("span.life-text", {}, el("strong"), el("span")),
    el("span.life-track", { "aria-hidden": "true" }, el("span.life-bar")), el("span.number.life-length"));
}

function fillRow(element, row, last) {
  const [at, text, track, length] = element.children;
  element.dataset.phase = row.phase;
  element.dataset.kind = row.kind;
  setText(at, duration(row.from));
  setText(text.firstChild, row.text);
  setText(text.lastChild, row.detail);
  text.title = row.detail;
  const bar = track.firstChild;
  bar.style.left = `${(100 * row.from) / last}%`;
  bar.style.width = row.phase === "mark" ? "" : `${(100 * (row.to - row.from)) / last}%`;
  setText(length, row.phase === "mark" ? "" : duration(row.to - row.from));
}
