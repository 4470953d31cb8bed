// The map of one tier of one executor: a canvas that is drawn as far as it is seen, pointed at, and walked with keys.

import { CACHED, FREE, USED } from "./block-store.js";
import { el } from "./dom.js";
import { fit, withPitch } from "./map-layout.js";
import { drawBlock, drawGroup } from "./map-painter.js";

/**
 * What the panel gives to all of its maps.
 * @typedef {object} Painting
 * @property {(blocks: import("./block-store.js").ExecutorBlocks, i: number) => string} colour
 * @property {(colour: string) => string} onColour
 * @property {(blocks: import("./block-store.js").ExecutorBlocks, i: number) => boolean} dimmed
 * @property {number} blockSize
 * @property {number | null} zoom px a block; null: all fit
 * @property {any} theme
 */

export class BlockMap {
  /**
   * @param {import("./block-store.js").ExecutorBlocks} blocks
   * @param {boolean} host
   * @param {Painting} painting
   * @param {(map: BlockMap, cell: number, how: "point" | "walk" | "choose") => void} onlook
   */
  constructor(blocks, host, painting, onlook) {
    this.blocks = blocks;
    this.host = host;
    this.painting = painting;
    this.onlook = onlook;
    this.height = 240;
    this.at = -1;
    this.canvas = el("canvas.map-canvas", {
      tabindex: 0,
      role: "application",
      "aria-roledescription": "block map",
      "aria-label": `Blocks in the ${host ? "host" : "device"} tier of ${blocks.name}`,
      "aria-describedby": "map-keys",
    });
    this.spacer = el("div.map-spacer", {}, this.canvas);
    this.element = el("div.map-viewport", {}, this.spacer);
    this.element.addEventListener("scroll", () => this.draw());
    this.canvas.addEventListener("pointermove", (event) => this.point(event, "point"));
    this.canvas.addEventListener("pointerdown", (event) => this.point(event, "choose"));
    this.canvas.addEventListener("pointerleave", () => this.look(-1, "point"));
    this.canvas.addEventListener("keydown", (event) => this.press(event));
    this.canvas.addEventListener("focus", () => this.canvas.matches(":focus-visible") && this.look(Math.max(0, this.at), "walk"));
  }

  get count() {
    return this.host ? this.blocks.host : this.blocks.device;
  }

  /** Index of the first block of this tier. */
  get first() {
    return this.host ? this.blocks.device : 0;
  }

  /** Blocks of a cell: from, to (without). */
  range(cell) {
    const from = this.first + cell * this.layout.perCell;
    return [from, Math.min(from + this.layout.perCell, this.first + this.count)];
  }

  /** @param {number} height px that it may have */
  arrange(height) {
    const width = this.element.clientWidth;
    if (!width) return;
    const { zoom } = this.painting;
    const perCell = this.layout?.perCell;
    this.layout = zoom === null ? fit(this.count, width, height) : withPitch(this.count, width, zoom);
    if (perCell && perCell !== this.layout.perCell) this.at = Math.floor((this.at * perCell) / this.layout.perCell);
    this.full = this.layout.rows * this.layout.pitch;
    this.height = Math.min(this.full, Math.max(height, 60));
    this.element.style.height = `${this.height}px`;
    this.spacer.style.height = `${this.full}px`;
    const scale = window.devicePixelRatio || 1;
    this.canvas.width = Math.round(width * scale);
    this.canvas.height = Math.round(this.height * scale);
    this.canvas.style.width = `${width}px`;
    this.canvas.style.height = `${this.height}px`;
    this.draw();
  }

  draw() {
    if (!this.layout) return;
    const context = this.canvas.getContext("2d");
    const scale = window.devicePixelRatio || 1;
    const { columns, pitch, size, cells } = this.layout;
    const top = this.element.scrollTop;
    context.setTransform(scale, 0, 0, scale, 0, 0);
    context.clearRect(0, 0, this.canvas.width, this.canvas.height);
    context.translate(0, -top);
    const end = Math.min(cells, Math.ceil((top + this.height) / pitch) * columns);
    for (let cell = Math.floor(top / pitch) * columns; cell < end; cell++) {
      const x = (cell % columns) * pitch;
      const y = Math.floor(cell / columns) * pitch;
      if (this.layout.perCell === 1) this.drawOne(context, x, y, size, this.first + cell);
      else this.drawSeveral(context, x, y, size, cell);
    }
    context.globalAlpha = 1;
    if (this.at >= 0 && this.at < cells) this.drawRing(context, this.at);
  }

  drawOne(context, x, y, size, i) {
    const { painting, blocks } = this;
    const state = blocks.state(i);
    const colour = state === FREE ? "" : painting.colour(blocks, i);
    context.globalAlpha = state !== FREE && painting.dimmed(blocks, i) ? 0.16 : 1;
    const look = {
      state,
      colour,
      onColour: painting.onColour(colour),
      fill: blocks.fills[i] / painting.blockSize,
      refs: blocks.refs[i],
      host: this.host,
    };
    drawBlock(context, x, y, size, look, painting.theme);
  }

  drawSeveral(context, x, y, size, cell) {
    const { painting, blocks } = this;
    const summary = this.summary(cell);
    context.globalAlpha = 1;
    const group = {
      used: summary.used / summary.total,
      cached: summary.cached / summary.total,
      colour: summary.mostUsed >= 0 ? painting.colour(blocks, summary.mostUsed) : painting.theme.ink3,
      cachedColour: summary.mostCached >= 0 ? painting.colour(blocks, summary.mostCached) : painting.theme.ink3,
      host: this.host,
      shared: summary.shared > 0,
    };
    const shown = summary.mostUsed >= 0 ? summary.mostUsed : summary.mostCached;
    if (shown >= 0 && painting.dimmed(blocks, shown)) context.globalAlpha = 0.16;
    drawGroup(context, x, y, size, group, painting.theme);
  }

  /** What is in a cell of several blocks; `mostUsed` and `mostCached` are blocks of the colour that most of them have. */
  summary(cell) {
    const [from, to] = this.range(cell);
    const { blocks, painting } = this;
    const summary = { total: to - from, used: 0, cached: 0, shared: 0, mostUsed: -1, mostCached: -1 };
    const used = new Map();
    const cached = new Map();
    for (let i = from; i < to; i++) {
      const state = blocks.state(i);
      if (state === FREE) continue;
      const colour = painting.colour(blocks, i);
      if (state === USED) {
        summary.used++;
        if (blocks.refs[i] > 1) summary.shared++;
        used.set(colour, [(used.get(colour)?.[0] ?? 0) + 1, i]);
      } else if (state === CACHED) {
        summary.cached++;
        cached.set(colour, [(cached.get(colour)?.[0] ?? 0) + 1, i]);
      }
    }
    summary.mostUsed = most(used);
    summary.mostCached = most(cached);
    return summary;
  }

  drawRing(context, cell) {
    const { columns, pitch, size } = this.layout;
    const x = (cell % columns) * pitch;
    const y = Math.floor(cell / columns) * pitch;
    context.lineWidth = 2;
    context.strokeStyle = this.painting.theme.surface;
    context.strokeRect(x - 2, y - 2, size + 4, size + 4);
    context.strokeStyle = this.painting.theme.ink;
    context.strokeRect(x - 0.5, y - 0.5, size + 1, size + 1);
  }

  point(event, how) {
    if (!this.layout) return;
    const { columns, pitch, cells } = this.layout;
    const column = Math.floor(event.offsetX / pitch);
    const row = Math.floor((event.offsetY + this.element.scrollTop) / pitch);
    const cell = row * columns + column;
    this.look(column >= 0 && column < columns && cell >= 0 && cell < cells ? cell : -1, how);
  }

  look(cell, how) {
    if (cell === this.at && how === "point") return;
    this.at = cell;
    this.draw();
    this.onlook(this, cell, how);
  }

  press(event) {
    if (!this.layout || event.ctrlKey || event.metaKey || event.altKey) return;
    const { columns, cells, pitch } = this.layout;
    const page = Math.max(1, Math.floor(this.height / pitch) - 1) * columns;
    const steps = {
      ArrowRight: 1, ArrowLeft: -1, ArrowDown: columns, ArrowUp: -columns, PageDown: page, PageUp: -page, Home: -cells, End: cells,
    };
    if (event.key === "Enter" || event.key === " ") this.look(this.at, "choose");
    else if (event.key in steps) this.look(Math.min(cells - 1, Math.max(0, this.at + steps[event.key])), "walk");
    else return;
    event.preventDefault();
    this.show(this.at);
  }

  /** Scrolls so that a cell is seen. */
  show(cell) {
    const { columns, pitch } = this.layout;
    const y = Math.floor(cell / columns) * pitch;
    if (y < this.element.scrollTop) this.element.scrollTop = y;
    else if (y + pitch > this.element.scrollTop + this.height) this.element.scrollTop = y + pitch - this.height;
  }
}

function most(counts) {
  let best = [0, -1];
  for (const entry of counts.values()) if (entry[0] > best[0]) best = entry;
  return best[1];
}
