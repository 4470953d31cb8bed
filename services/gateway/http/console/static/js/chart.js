// Lines or stacked areas over time on a canvas, with a crosshair that says the values.

import { el, setText } from "./dom.js";
import { clockTime } from "./format.js";

const LEFT = 40;
const RIGHT = 8;
const TOP = 8;
const BOTTOM = 20;
const HEIGHT = 148;

/**
 * @typedef {object} Series
 * @property {string} column
 * @property {string} name
 * @property {number} category its colour
 * @property {number[]} [dash]
 * @typedef {object} Options
 * @property {string} title
 * @property {string} unit said beside the title
 * @property {Series[]} series
 * @property {boolean} [stacked]
 * @property {number} [most] fixed upper end of the scale
 * @property {(value: number) => string} format
 * @property {(value: number) => string} axis
 */

export class Chart {
  /**
   * @param {Options} options
   * @param {import("./history.js").History} history
   * @param {(time: number | null) => void} onpoint a time is pointed at
   */
  constructor(options, history, onpoint) {
    this.options = options;
    this.history = history;
    this.onpoint = onpoint;
    this.window = 300_000;
    this.pointed = null;
    this.canvas = el("canvas.chart-canvas", { tabindex: 0, role: "img" });
    this.time = el("span.chart-time");
    this.values = options.series.map(() => el("span.number"));
    const legend = options.series.map((series, k) =>
      el("li", {}, el(`span.line-swatch${series.dash ? ".dashed" : ""}`, { data: { category: series.category }, "aria-hidden": "true" }),
        el("span", { text: series.name }), this.values[k]),
    );
    this.element = el("figure.chart", {},
      el("figcaption", {}, el("strong", { text: options.title }), el("span.quiet", { text: options.unit }), this.time),
      el("ul.chart-legend.plain", {}, ...legend), this.canvas);
    this.canvas.addEventListener("pointermove", (event) => onpoint(this.timeAt(event.offsetX)));
    this.canvas.addEventListener("pointerleave", () => onpoint(null));
    this.canvas.addEventListener("blur", () => onpoint(null));
    this.canvas.addEventListener("keydown", (event) => this.press(event));
    new ResizeObserver(() => this.resize()).observe(this.canvas.parentElement);
  }

  press(event) {
    const step = { ArrowLeft: -1, ArrowRight: 1, PageUp: -30, PageDown: 30, Home: -1e9, End: 1e9 }[event.key];
    const { time } = this.history.columns;
    if (event.key === "Escape") this.onpoint(null);
    else if (step && time.length) {
      const row = this.pointed === null ? this.history.last : this.rowAt(this.pointed) + step;
      this.onpoint(time[Math.max(this.firstRow(), Math.min(this.history.last, row))]);
    } else return;
    event.preventDefault();
  }

  resize() {
    const width = this.canvas.parentElement.clientWidth;
    if (!width || width === this.width) return;
    this.width = width;
    const scale = window.devicePixelRatio || 1;
    this.canvas.width = Math.round(width * scale);
    this.canvas.height = Math.round(HEIGHT * scale);
    this.canvas.style.width = `${width}px`;
    this.canvas.style.height = `${HEIGHT}px`;
    if (this.theme) this.draw(this.theme, this.pointed);
  }

  get end() {
    return this.history.columns.time[this.history.last] ?? Date.now();
  }

  x(time) {
    return LEFT + ((time - this.end + this.window) / this.window) * (this.width - LEFT - RIGHT);
  }

  timeAt(x) {
    const time = this.end - this.window + ((x - LEFT) / (this.width - LEFT - RIGHT)) * this.window;
    const { time: times } = this.history.columns;
    return times.length ? times[this.rowAt(time)] : null;
  }

  rowAt(time) {
    const { time: times } = this.history.columns;
    let low = 0;
    let high = times.length - 1;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (times[middle] < time) low = middle + 1;
      else high = middle;
    }
    return low > 0 && time - times[low - 1] < times[low] - time ? low - 1 : low;
  }

  firstRow() {
    const { time } = this.history.columns;
    const start = this.end - this.window;
    const row = time.findIndex((each) => each >= start);
    return Math.max(0, row);
  }

  draw(theme, pointed) {
    this.theme = theme;
    this.pointed = pointed;
    this.resize();
    if (!this.width) return;
    const context = this.canvas.getContext("2d");
    const scale = window.devicePixelRatio || 1;
    context.setTransform(scale, 0, 0, scale, 0, 0);
    context.clearRect(0, 0, this.width, HEIGHT);
    const first = this.firstRow();
    const tops = this.tops(first);
    const most = this.options.most ?? niceCeiling(Math.max(1, ...tops.map((column) => column.reduce((a, b) => (b > a ? b : a), 0))));
    const y = (value) => TOP + (1 - value / most) * (HEIGHT - TOP - BOTTOM);
    this.drawAxes(context, theme, most, y);
    for (let s = tops.length - 1; s >= 0; s--) this.drawSeries(context, theme, this.options.series[s], tops[s], first, y);
    const row = pointed === null ? this.history.last : this.rowAt(pointed);
    if (pointed !== null) this.drawCrosshair(context, theme, tops, first, row, y);
    this.readOut(row, pointed);
  }

  /** Upper edge of each series, from the first row that is seen. */
  tops(first) {
    const columns = this.options.series.map((series) => this.history.columns[series.column].slice(first));
    if (!this.options.stacked) return columns;
    for (let s = 1; s < columns.length; s++) columns[s] = columns[s].map((value, k) => value + columns[s - 1][k]);
    return columns;
  }

  drawAxes(context, theme, most, y) {
    context.font = "11px system-ui, sans-serif";
    context.fillStyle = theme.ink2;
    context.strokeStyle = theme.line;
    context.lineWidth = 1;
    context.textAlign = "right";
    context.textBaseline = "middle";
    for (const value of [0, most / 2, most]) {
      const line = Math.round(y(value)) + 0.5;
      context.beginPath();
      context.moveTo(LEFT, line);
      context.lineTo(this.width - RIGHT, line);
      context.stroke();
      context.fillText(this.options.axis(value), LEFT - 6, line);
    }
    context.textBaseline = "top";
    const minutes = this.window / 60_000;
    const marks = this.width > 340 ? [1, 0.5, 0] : [1, 0];
    for (const share of marks) {
      context.textAlign = share === 1 ? "left" : share === 0 ? "right" : "center";
      const text = share === 0 ? "now" : `−${+(minutes * share).toFixed(1)} min`;
      context.fillText(text, LEFT + (1 - share) * (this.width - LEFT - RIGHT), HEIGHT - BOTTOM + 6);
    }
  }

  drawSeries(context, theme, series, values, first, y) {
    const { time } = this.history.columns;
    const colour = theme.categories[series.category];
    context.save();
    context.beginPath();
    context.rect(LEFT, 0, this.width - LEFT - RIGHT + 2, HEIGHT);
    context.clip();
    context.beginPath();
    let open = false;
    values.forEach((value, k) => {
      if (!Number.isFinite(value)) open = false;
      else {
        context[open ? "lineTo" : "moveTo"](this.x(time[first + k]), y(value));
        open = true;
      }
    });
    context.strokeStyle = colour;
    context.lineWidth = 1.75;
    context.lineJoin = "round";
    context.setLineDash(series.dash ?? []);
    context.stroke();
    if (this.options.stacked && values.length) {
      context.lineTo(this.x(time[first + values.length - 1]), y(0));
      context.lineTo(this.x(time[first]), y(0));
      context.fillStyle = theme.surface;
      context.fill();
      context.globalAlpha = 0.35;
      context.fillStyle = colour;
      context.fill();
    }
    context.restore();
  }

  drawCrosshair(context, theme, tops, first, row, y) {
    const x = Math.round(this.x(this.history.columns.time[row])) + 0.5;
    context.strokeStyle = theme.ink3;
    context.beginPath();
    context.moveTo(x, TOP);
    context.lineTo(x, HEIGHT - BOTTOM);
    context.stroke();
    tops.forEach((column, s) => {
      const value = column[row - first];
      if (!Number.isFinite(value)) return;
      context.beginPath();
      context.arc(x, y(value), 3.5, 0, 2 * Math.PI);
      context.fillStyle = theme.categories[this.options.series[s].category];
      context.fill();
      context.strokeStyle = theme.surface;
      context.stroke();
    });
  }

  readOut(row, pointed) {
    const said = this.options.series.map((series, s) => {
      const value = this.history.columns[series.column][row];
      const text = Number.isFinite(value) ? this.options.format(value) : "–";
      setText(this.values[s], text);
      return `${series.name} ${text}`;
    });
    setText(this.time, pointed === null ? "" : clockTime(this.history.columns.time[row]));
    const when = pointed === null ? "now" : `at ${clockTime(this.history.columns.time[row])}`;
    this.canvas.setAttribute("aria-label", `${this.options.title} over time; ${when}: ${said.join(", ")}`);
  }
}

/** A round number not below a value. */
function niceCeiling(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  const step = [1, 2, 3, 4, 6, 8, 10].find((each) => each * power >= value) ?? 10;
  return step * power;
}
