// Memory that holds tokens and memory that does not: Octavo's, beside what contiguous reservations would take.

import { byId, el, setText } from "./dom.js";
import { bytes, count, percent, plural } from "./format.js";
import { compare } from "./waste.js";

const WAYS = {
  octavo: ["Octavo", "blocks as they are now"],
  oracle: ["Orca (Oracle)", "knows each answer's length"],
  pow2: ["Orca (Pow2)", "answer rounded up to a power of two"],
  max: ["Orca (Max)", "model's longest sequence for each"],
};
const PARTS = ["tokens", "reserved", "unused"];

const NOTES = {
  now: "Nobody knows yet how long running answers become. Here they count as if they ended now: the best case for Orca.",
  max: "Nobody knows yet how long running answers become. Here they count as if each went on to its max_tokens.",
};

export class WastePanel {
  /** @param {import("./block-store.js").BlockStore} store */
  constructor(store) {
    this.store = store;
    this.requests = [];
    this.status = null;
    this.ending = "now";
    this.rows = Object.fromEntries(Object.keys(WAYS).map((way) => [way, makeRow(way)]));
    byId("waste-rows").append(...Object.values(this.rows).map(({ element }) => element));
    for (const button of document.querySelectorAll("[data-ending]")) {
      button.addEventListener("click", () => this.setEnding(button.dataset.ending));
    }
    this.setEnding("now");
  }

  setEnding(ending) {
    this.ending = ending;
    for (const button of document.querySelectorAll("[data-ending]")) {
      button.setAttribute("aria-pressed", String(button.dataset.ending === ending));
    }
    setText(byId("waste-note"), NOTES[ending]);
    this.update();
  }

  update() {
    const model = this.status?.model;
    if (!model?.blockSize) return;
    const device = this.store.count(false);
    const { rows, capacity, requests, sequences } = compare(this.requests, device, model, this.ending);
    const scale = Math.max(capacity, ...rows.map((row) => row.total), 1);
    const slotBytes = Number(this.status.bytesPerBlock) / model.blockSize;
    for (const row of rows) showRow(this.rows[row.way], row, { scale, capacity, slotBytes, blockSize: model.blockSize });
    setText(byId("waste-requests"), `${plural(requests, "running request")}, ${plural(sequences, "sequence")}`);
    setText(byId("waste-capacity"), `all device blocks, ${bytes(capacity * slotBytes)}`);
    this.showSharing(slotBytes * model.blockSize);
    const octavo = rows[0];
    return octavo.total ? (octavo.reserved + octavo.unused) / octavo.total : NaN;
  }

  showSharing(blockBytes) {
    let saved = 0;
    for (const blocks of this.store.executors.values()) {
      for (let i = 0; i < blocks.device; i++) if (blocks.refs[i] > 1) saved += blocks.refs[i] - 1;
    }
    setText(
      byId("waste-sharing"),
      saved ? `Sharing saves ${plural(saved, "block")} (${bytes(saved * blockBytes)}) at the moment.` : "No block is shared at the moment.",
    );
  }
}

function makeRow(way) {
  const [name, meaning] = WAYS[way];
  const parts = Object.fromEntries(PARTS.map((part) => [part, el(`span.part.${part}`)]));
  const limit = el("span.limit");
  const share = el("span.number.waste-share");
  const numbers = el("p.waste-numbers");
  const bar = el("div.waste-bar", { role: "img" }, ...Object.values(parts), limit);
  const head = el("p.waste-head", {}, el("strong", { text: name }), el("span.quiet", { text: meaning }), share);
  return { element: el(`li.waste-row.${way}`, {}, head, bar, numbers), parts, limit, share, numbers, bar, name };
}

function showRow(row, use, { scale, capacity, slotBytes, blockSize }) {
  for (const part of PARTS) row.parts[part].style.width = `${(100 * use[part]) / scale}%`;
  row.limit.style.left = `${(100 * capacity) / scale}%`;
  const holds = use.total ? use.tokens / use.total : NaN;
  setText(row.share, use.total ? `${percent(1 - holds)} waste` : "–");
  setText(
    row.numbers,
    use.total
      ? `${plural(Math.ceil(use.total / blockSize), "block")} · ${bytes(use.total * slotBytes)} · ${count(use.fits)} such requests would fit`
      : "nothing runs",
  );
  row.bar.setAttribute(
    "aria-label",
    `${row.name}: ${count(use.tokens)} slots hold tokens, ${count(use.reserved)} are reserved, ${count(use.unused)} are unused`,
  );
}
