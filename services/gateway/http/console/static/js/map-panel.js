// The physical blocks of all executors, what the marks mean, and what is known of the block looked at.

import { BlockMap } from "./block-map.js";
import { CACHED, FREE, USED } from "./block-store.js";
import { byId, el, reconcile, setText } from "./dom.js";
import { count, percent, plural, rate } from "./format.js";
import { nextPitch } from "./map-layout.js";
import { drawBlock, textOn } from "./map-painter.js";
import { themeColours, CATEGORIES } from "./theme.js";
import { requestLink } from "./location.js";

const DEVICE_HEIGHT = 520;
const HOST_HEIGHT = 120;

const STATES = [
  { key: "free", name: "Free", look: { state: FREE, fill: 0, refs: 0, host: false } },
  { key: "cached", name: "Cached, reusable", look: { state: CACHED, fill: 1, refs: 0, host: false } },
  { key: "used", name: "In use", look: { state: USED, fill: 1, refs: 1, host: false } },
  { key: "partial", name: "Partly filled", look: { state: USED, fill: 0.5, refs: 1, host: false } },
  { key: "shared", name: "Shared (references)", look: { state: USED, fill: 1, refs: 3, host: false } },
  { key: "swapped", name: "Swapped to host", look: { state: USED, fill: 1, refs: 1, host: true } },
];

export class MapPanel {
  /**
   * @param {import("./block-store.js").BlockStore} store
   * @param {import("./colours.js").Owners} owners
   * @param {import("./theme.js").Theme} theme
   */
  constructor(store, owners, theme) {
    this.store = store;
    this.owners = owners;
    this.executors = byId("map-executors");
    this.states = byId("map-states");
    this.tenants = byId("map-tenants");
    this.detail = byId("map-detail");
    this.by = "tenant";
    /** Only blocks of this owner or request are shown in full; null: all. */
    this.highlight = null;
    /** @type {Map<string, {blocks: any, element: any, maps: BlockMap[]}>} */
    this.shown = new Map();
    /** @type {{map: BlockMap, cell: number} | null} */
    this.looked = null;
    this.status = null;
    this.painting = {
      blockSize: 16,
      zoom: null,
      theme: themeColours(),
      colour: (blocks, i) => this.colour(blocks, i),
      onColour: (colour) => this.textColours.get(colour) ?? "#000000",
      dimmed: (blocks, i) => this.dimmed(blocks, i),
    };
    this.readTheme();
    theme.onchange(() => {
      this.readTheme();
      this.redraw();
    });
    new ResizeObserver(() => this.arrange()).observe(this.executors);
    for (const button of document.querySelectorAll("[data-map-by]")) {
      button.addEventListener("click", () => this.colourBy(button.dataset.mapBy));
    }
    byId("map-zoom-in").addEventListener("click", () => this.zoom(1));
    byId("map-zoom-out").addEventListener("click", () => this.zoom(-1));
    byId("map-zoom-fit").addEventListener("click", () => this.zoom(0));
    this.executors.addEventListener("keydown", (event) => this.press(event));
    this.update = this.update.bind(this);
    this.drawLegend();
    this.showDetail();
  }

  readTheme() {
    this.painting.theme = themeColours();
    this.textColours = new Map([...this.painting.theme.categories, this.painting.theme.ink3].map((c) => [c, textOn(c)]));
  }

  colour(blocks, i) {
    const { categories, ink3 } = this.painting.theme;
    if (this.by === "tenant") return categories[this.owners.index(this.store.ownerNames[blocks.owners[i]])];
    const key = blocks.holders[i];
    return key < 0 ? ink3 : categories[key % CATEGORIES];
  }

  dimmed(blocks, i) {
    if (this.highlight === null) return false;
    if (this.highlight.owner !== undefined) return this.store.ownerNames[blocks.owners[i]] !== this.highlight.owner;
    return !this.highlight.blocks.get(blocks.name)?.has(i);
  }

  colourBy(by) {
    this.by = by;
    for (const button of document.querySelectorAll("[data-map-by]")) {
      button.setAttribute("aria-pressed", String(button.dataset.mapBy === by));
    }
    this.redraw();
    this.showDetail();
  }

  zoom(direction) {
    if (direction === 0) this.painting.zoom = null;
    else {
      const layouts = [...this.shown.values()].flatMap(({ maps }) => maps.map((map) => map.layout)).filter(Boolean);
      if (!layouts.length) return;
      const pitch = nextPitch(layouts[0], direction);
      if (pitch === null) return;
      this.painting.zoom = pitch;
    }
    this.arrange();
    if (this.looked && this.looked.cell >= 0) this.looked.map.show(this.looked.map.at);
  }

  press(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "+" || event.key === "=") this.zoom(1);
    else if (event.key === "-") this.zoom(-1);
    else if (event.key === "0") this.zoom(0);
    else if (event.key === "Escape") this.setHighlight(null);
    else return;
    event.preventDefault();
  }

  /** Draws what has changed. */
  update() {
    if (!this.status) return; // it gives owners their colours
    let changed = false;
    for (const [name, { element, blocks }] of this.shown) {
      if (this.store.executors.get(name) === blocks) continue;
      element.remove();
      this.shown.delete(name);
      if (this.looked && this.looked.map.blocks === blocks) this.looked = null;
      changed = true;
    }
    for (const [name, blocks] of this.store.executors) {
      if (!this.shown.has(name)) {
        this.shown.set(name, this.make(name, blocks));
        changed = true;
      }
    }
    byId("map-empty").hidden = this.store.executors.size > 0;
    if (changed) this.arrange();
    else this.redraw();
    this.showCounts();
    this.showDetail();
  }

  make(name, blocks) {
    const maps = [new BlockMap(blocks, false, this.painting, (...look) => this.look(...look))];
    if (blocks.host) maps.push(new BlockMap(blocks, true, this.painting, (...look) => this.look(...look)));
    const titles = maps.map((map) => el("p.map-title"));
    const head = el("h3.map-executor", {}, el("span.mono", { text: name }), el("span.map-notes"));
    const parts = maps.map((map, k) => el("div.map-tier", {}, titles[k], map.element));
    const element = el("article.map-card", { "aria-label": `Executor ${name}` }, head, ...parts);
    this.executors.append(element);
    return { blocks, element, maps, titles, notes: head.lastChild };
  }

  arrange() {
    const rowsOf = new Map();
    for (const each of this.shown.values()) {
      const top = each.element.offsetTop;
      rowsOf.set(top, true);
    }
    const rows = Math.max(1, rowsOf.size);
    for (const { maps } of this.shown.values()) {
      maps.forEach((map) => map.arrange((map.host ? HOST_HEIGHT : DEVICE_HEIGHT) / Math.min(rows, 3)));
    }
    byId("map-zoom-fit").setAttribute("aria-pressed", String(this.painting.zoom === null));
    this.describeScale();
  }

  describeScale() {
    const layouts = [...this.shown.values()].map(({ maps }) => maps[0].layout).filter(Boolean);
    const most = Math.max(1, ...layouts.map((layout) => layout.perCell));
    setText(byId("map-scale"), most > 1 ? `1 square = ${count(most)} blocks` : "1 square = 1 block");
  }

  redraw() {
    this.drawLegend();
    for (const { maps } of this.shown.values()) maps.forEach((map) => map.draw());
  }

  /** @param {any} status the newest */
  takeStatus(status) {
    const first = !this.status;
    this.status = status;
    this.showTenants();
    if (first) this.update();
    const blockSize = status.model?.blockSize || 16;
    if (blockSize !== this.painting.blockSize) {
      this.painting.blockSize = blockSize;
      this.redraw();
    }
    for (const executor of status.executors) {
      const shown = this.shown.get(executor.executor);
      if (shown) setText(shown.notes, executorNotes(executor));
    }
  }

  // Legend

  drawLegend() {
    const { theme } = this.painting;
    if (!this.states.children.length) {
      for (const { key, name } of STATES) {
        const swatch = el("canvas.swatch", { width: 32, height: 32, "aria-hidden": "true" });
        this.states.append(el("li", {}, swatch, el("span", { text: name }), el("span.number", { data: { count: key } })));
      }
    }
    STATES.forEach(({ look }, k) => {
      const context = this.states.children[k].firstChild.getContext("2d");
      const colour = theme.categories[0];
      context.setTransform(2, 0, 0, 2, 0, 0);
      context.clearRect(0, 0, 16, 16);
      drawBlock(context, 0, 0, 16, { ...look, colour, onColour: textOn(colour) }, theme);
    });
  }

  showCounts() {
    let partial = 0;
    const device = this.store.count(false);
    const host = this.store.count(true);
    for (const { blocks, maps, titles } of this.shown.values()) {
      maps.forEach((map, k) => {
        const counts = blocks.count(map.host);
        const use = counts.total ? percent(counts.used / counts.total) : "–";
        const shared = counts.shared ? `, ${count(counts.shared)} shared` : "";
        setText(
          titles[k],
          `${map.host ? "Host" : "Device"} · ${plural(counts.total, "block")}: ${count(counts.used)} in use (${use})${shared}, ` +
            `${count(counts.cached)} cached, ${count(counts.free)} free`,
        );
      });
      for (let i = 0; i < blocks.device; i++) if (blocks.refs[i] && blocks.fills[i] < this.painting.blockSize) partial++;
    }
    const values = {
      free: device.free, cached: device.cached, used: device.used, partial, shared: device.shared, swapped: host.used,
    };
    for (const cell of this.states.querySelectorAll("[data-count]")) setText(cell, count(values[cell.dataset.count]));
    const total = byId("map-total");
    total.dataset.free = String(device.free);
    total.dataset.cached = String(device.cached);
    total.dataset.used = String(device.used);
    setText(total, `${plural(device.total, "device block")}${host.total ? `, ${plural(host.total, "host block")}` : ""}`);
  }

  showTenants() {
    const rows = (this.status?.tenants ?? []).map((tenant) => ({ key: tenant.memory.owner, ...tenant }));
    for (const { key } of rows) this.owners.index(key);
    byId("owners-empty").hidden = rows.length > 0;
    reconcile(this.tenants, rows, (row) => this.makeTenant(row), (element, row) => this.fillTenant(element, row));
  }

  makeTenant({ key }) {
    const button = el(
      "button.owner",
      { type: "button", "aria-pressed": "false", title: "Show only this one's blocks", onclick: () => this.toggleOwner(key) },
      el("span.chip", { data: { category: this.owners.index(key) }, "aria-hidden": "true" }),
      el("span.name", { text: key }),
    );
    return el("tr", {}, el("th", { scope: "row" }, button), ...Array.from({ length: 6 }, () => el("td.number")));
  }

  fillTenant(row, { key, memory, runningRequests, waitingRequests }) {
    const limit = memory.maxBlocks ? count(memory.maxBlocks) : "–";
    const values = [
      count(memory.chargedBlocks), count(memory.cachedBlocks), count(memory.pinnedBlocks), limit,
      count(runningRequests), count(waitingRequests),
    ];
    values.forEach((value, k) => setText(row.children[k + 1], value));
    row.querySelector("button").setAttribute("aria-pressed", String(this.highlight?.owner === key));
  }

  toggleOwner(owner) {
    this.setHighlight(this.highlight?.owner === owner ? null : { owner });
  }

  /** Shows a request's blocks, and dims others; null: shows all. */
  highlightRequest(tenant, id) {
    const blocks = new Map();
    for (const holder of this.store.holders.values()) {
      if (holder.id !== id || (tenant && holder.tenant !== tenant)) continue;
      const on = this.store.executors.get(holder.executor);
      if (!on) continue;
      const first = holder.host ? on.device : 0;
      blocks.set(holder.executor, new Set(holder.tables.flatMap((table) => [...table]).map((block) => first + block)));
    }
    this.setHighlight(blocks.size ? { request: id, blocks } : null);
  }

  setHighlight(highlight) {
    this.highlight = highlight;
    const note = byId("map-highlight");
    note.hidden = highlight === null;
    if (highlight) {
      const whose = highlight.owner !== undefined ? `blocks of ${highlight.owner || "nobody"}` : `blocks of request ${highlight.request}`;
      setText(byId("map-highlight-text"), `Only ${whose}`);
    }
    this.showTenants();
    this.redraw();
  }

  // The block looked at

  look(map, cell, how) {
    if (how === "point" && cell < 0 && this.looked?.kept) {
      map.at = this.looked.map === map ? this.looked.cell : -1;
      map.draw();
      return;
    }
    for (const { maps } of this.shown.values()) {
      for (const other of maps) {
        if (other !== map && other.at >= 0) {
          other.at = -1;
          other.draw();
        }
      }
    }
    this.looked = cell < 0 ? null : { map, cell, kept: how !== "point" };
    if (how === "choose" && cell >= 0 && map.layout.perCell > 1) {
      this.zoom(1);
      this.looked = { map, cell: map.at, kept: true };
    }
    this.showDetail();
  }

  showDetail() {
    const { looked } = this;
    if (!looked || !looked.map.layout || looked.cell >= looked.map.layout.cells) {
      this.detail.replaceChildren(
        el("p.hint", { text: "Point at a block, or walk with the arrow keys, to see what it holds and who holds it." }),
      );
      return;
    }
    const { map, cell } = looked;
    this.detail.replaceChildren(...(map.layout.perCell > 1 ? this.groupDetail(map, cell) : this.blockDetail(map, map.first + cell)));
  }

  groupDetail(map, cell) {
    const [from, to] = map.range(cell);
    const summary = map.summary(cell);
    const free = summary.total - summary.used - summary.cached;
    return [
      el("h4", { text: `Blocks ${count(from - map.first)} – ${count(to - map.first - 1)}` }),
      facts([
        ["Tier", `${map.host ? "host" : "device"} · ${map.blocks.name}`],
        ["In use", `${count(summary.used)} of ${count(summary.total)}${summary.shared ? `, ${count(summary.shared)} shared` : ""}`],
        ["Cached", count(summary.cached)],
        ["Free", count(free)],
      ]),
      el("p.hint", { text: "Enter or a click shows single blocks." }),
    ];
  }

  blockDetail(map, i) {
    const { blocks } = map;
    const state = blocks.state(i);
    const owner = this.store.ownerNames[blocks.owners[i]];
    const blockSize = this.painting.blockSize;
    const holders = state === USED ? this.store.holdersOf(blocks, i) : [];
    const shown = [
      ["Tier", `${map.host ? "host" : "device"} · ${blocks.name}`],
      ["State", stateName(state, map.host, blocks.refs[i])],
    ];
    if (state !== FREE) {
      shown.push(
        ["Owner", owner ? el("span", {}, el("span.chip", { data: { category: this.owners.index(owner) } }), ` ${owner}`) : "–"],
        ["References", count(blocks.refs[i])],
        ["Fill", el("span", {}, `${blocks.fills[i]} of ${blockSize} tokens`, fillBar(blocks.fills[i] / blockSize))],
        ["Identity", el("span.mono", { text: blocks.identity(i) || "none yet: not full" })],
      );
    }
    if (state === USED) shown.push(["Held by", holders.length ? holderList(holders) : "no block table: pinned, or about to be free"]);
    return [el("h4", { text: `Block ${count(i - map.first)}` }), facts(shown)];
  }
}

const MOST_HOLDERS = 6;

function holderList(holders) {
  const items = holders.slice(0, MOST_HOLDERS).map(({ holder, sequences }) =>
    el("li", {}, requestLink(holder.id), el("span.quiet", { text: ` ${places(sequences)}` })),
  );
  if (holders.length > MOST_HOLDERS) items.push(el("li.quiet", { text: `and ${holders.length - MOST_HOLDERS} more` }));
  return el("ul.plain", {}, ...items);
}

/** "as its block 3", "in 4 sequences, as block 3" */
function places(sequences) {
  const block = sequences[0].position;
  return sequences.length === 1 ? `as its block ${block}` : `in ${sequences.length} sequences, as block ${block}`;
}

function stateName(state, host, refs) {
  if (state === FREE) return "free";
  if (state === CACHED) return "cached: nobody uses it, it can be given out again";
  const name = host ? "swapped out" : "in use";
  return refs > 1 ? `${name}, shared` : name;
}

function fillBar(share) {
  const bar = el("span.bar-value");
  bar.style.width = `${Math.min(100, share * 100)}%`;
  return el("span.fill-bar", { "aria-hidden": "true" }, bar);
}

function facts(pairs) {
  return el("dl.facts", {}, ...pairs.flatMap(([name, value]) => [el("dt", { text: name }), el("dd", {}, value)]));
}

function executorNotes(executor) {
  const notes = [`${executor.runningRequests} running`];
  if (executor.waitingRequests) notes.push(`${executor.waitingRequests} waiting`);
  if (executor.swappedRequests) notes.push(`${executor.swappedRequests} swapped`);
  const speed = executor.speeds?.prefillTokensPerS;
  if (speed) notes.push(`prefill ${rate(speed)} tokens/s`);
  if (executor.draining) notes.push("draining");
  return notes.join(" · ");
}
