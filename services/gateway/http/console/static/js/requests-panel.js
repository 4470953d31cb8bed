// Requests that wait and run, and the last ones that have ended.

import { byId, el, reconcile, setText } from "./dom.js";
import { count, duration, plural } from "./format.js";
import { requestAddress, requestInAddress, requestLink } from "./location.js";

const MOST_ROWS = 200;
export const STATE_MARKS = { waiting: "○", running: "●", swapped: "⇅", ended: "■", unknown: "?" };

const ORDER = {
  arrived: (request) => -request.arrived,
  time: (request, now) => -((request.ended ?? now) - request.arrived),
  prompt: (request) => -request.prompt,
  output: (request) => -request.output,
  preemptions: (request) => -request.preemptions,
};

export class RequestsPanel {
  /**
   * @param {import("./colours.js").Owners} owners
   * @param {() => number} now the gateway's time
   */
  constructor(owners, now) {
    this.owners = owners;
    this.now = now;
    this.requests = [];
    this.body = byId("requests-body");
    this.filter = byId("requests-filter");
    this.state = "all";
    this.order = "arrived";
    this.filter.addEventListener("input", () => this.update());
    for (const button of document.querySelectorAll("[data-state-filter]")) {
      button.addEventListener("click", () => this.showState(button.dataset.stateFilter));
    }
    for (const button of document.querySelectorAll("[data-order]")) {
      button.addEventListener("click", () => this.orderBy(button.dataset.order));
    }
    this.body.addEventListener("click", (event) => this.choose(event));
    this.orderBy("arrived");
  }

  showState(state) {
    this.state = state;
    for (const button of document.querySelectorAll("[data-state-filter]")) {
      button.setAttribute("aria-pressed", String(button.dataset.stateFilter === state));
    }
    this.update();
  }

  orderBy(order) {
    this.order = order;
    for (const button of document.querySelectorAll("[data-order]")) {
      button.closest("th").setAttribute("aria-sort", button.dataset.order === order ? "descending" : "none");
    }
    this.update();
  }

  choose(event) {
    const row = event.target.closest("tr");
    if (row && !event.target.closest("a") && !String(getSelection())) location.hash = requestAddress(row.dataset.request);
  }

  update() {
    const words = this.filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    const now = this.now();
    const found = this.requests.filter((request) => this.wanted(request, words));
    found.sort((a, b) => ORDER[this.order](a, now) - ORDER[this.order](b, now) || b.arrived - a.arrived);
    const rows = found.slice(0, MOST_ROWS).map((request) => ({ key: `${request.tenant}\n${request.id}`, request }));
    reconcile(this.body, rows, ({ request }) => this.make(request), (row, item) => this.fill(row, item.request, now));
    const left = found.length - rows.length;
    setText(byId("requests-found"), `${plural(found.length, "request")}${left > 0 ? `, the first ${MOST_ROWS} shown` : ""}`);
    byId("requests-empty").hidden = rows.length > 0;
    byId("requests-table").hidden = rows.length === 0;
  }

  wanted(request, words) {
    if (this.state === "live" ? request.state === "ended" : this.state !== "all" && request.state !== this.state) return false;
    const text = `${request.id} ${request.tenant} ${request.state} ${request.reason} ${request.executor}`.toLowerCase();
    return words.every((word) => text.includes(word));
  }

  make(request) {
    const tenant = el("td", {}, el("span.chip", { data: { category: this.owners.index(request.tenant) }, "aria-hidden": "true" }),
      el("span.name", { text: request.tenant }));
    const meters = () => el("td.number", {}, el("span"), el("span.meter", { "aria-hidden": "true" }, el("span.bar-value")));
    return el("tr", { data: { request: request.id } },
      el("td", {}, el("span.state", {}, el("span.mark", { "aria-hidden": "true" }), el("span.state-name"))),
      el("th", { scope: "row" }, requestLink(request.id)), tenant, el("td.number"), meters(), meters(), el("td.number"),
      el("td.number"), el("td.reason"));
  }

  fill(row, request, now) {
    const [state, , , time, prompt, output, sequences, preemptions, reason] = row.children;
    row.firstChild.firstChild.dataset.state = request.state;
    setText(state.querySelector(".mark"), STATE_MARKS[request.state]);
    setText(state.querySelector(".state-name"), request.state);
    setText(time, duration((request.ended ?? now) - request.arrived));
    fillMeter(prompt, count(request.prompt), request.prompt ? request.cached / request.prompt : 0, `${count(request.cached)} of them cached`);
    const most = request.maxTokens * Math.max(1, request.lengths.length);
    fillMeter(output, count(request.output), most && request.state !== "ended" ? request.output / most : 0, `at most ${count(request.maxTokens)} each`);
    setText(sequences, request.lengths.length ? count(request.lengths.length) : "–");
    setText(preemptions, request.preemptions ? count(request.preemptions) : "–");
    setText(reason, request.reason);
    reason.title = request.reason;
    const chosen = request.id === requestInAddress();
    if (chosen) row.setAttribute("aria-current", "true");
    else row.removeAttribute("aria-current");
  }
}

function fillMeter(cell, text, share, title) {
  setText(cell.firstChild, text);
  cell.title = title;
  cell.lastChild.firstChild.style.width = `${Math.min(100, 100 * share)}%`;
}
