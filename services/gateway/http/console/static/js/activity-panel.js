// Queue, batch, memory and speed over time, all charts with one crosshair.

import { Chart } from "./chart.js";
import { byId } from "./dom.js";
import { count, percent, rate, short } from "./format.js";
import { themeColours } from "./theme.js";

const CHARTS = [
  {
    title: "Requests",
    unit: "at a time",
    format: count,
    axis: short,
    series: [
      { column: "running", name: "running", category: 0 },
      { column: "waiting", name: "waiting", category: 1 },
      { column: "swapped", name: "swapped", category: 3, dash: [4, 3] },
    ],
  },
  {
    title: "Batch",
    unit: "tokens per step",
    format: count,
    axis: short,
    stacked: true,
    series: [
      { column: "decode", name: "decode", category: 0 },
      { column: "prefill", name: "prefill", category: 1 },
    ],
  },
  {
    title: "Memory",
    unit: "blocks; prompt tokens found",
    format: percent,
    axis: (value) => `${Math.round(value * 100)} %`,
    most: 1,
    series: [
      { column: "usage", name: "KV in use", category: 0 },
      { column: "hitRate", name: "prefix hits", category: 2, dash: [4, 3] },
    ],
  },
  {
    title: "Speed",
    unit: "tokens per second",
    format: rate,
    axis: short,
    series: [
      { column: "generatedRate", name: "generated", category: 0 },
      { column: "promptRate", name: "prefill", category: 1, dash: [4, 3] },
    ],
  },
];

export class ActivityPanel {
  /**
   * @param {import("./history.js").History} history
   * @param {import("./theme.js").Theme} theme
   */
  constructor(history, theme) {
    this.pointed = null;
    this.charts = CHARTS.map((options) => new Chart(options, history, (time) => this.point(time)));
    byId("activity-charts").append(...this.charts.map((chart) => chart.element));
    this.theme = themeColours();
    theme.onchange(() => {
      this.theme = themeColours();
      this.update();
    });
    for (const button of document.querySelectorAll("[data-window]")) {
      button.addEventListener("click", () => this.setWindow(Number(button.dataset.window)));
    }
    this.setWindow(5);
  }

  setWindow(minutes) {
    for (const button of document.querySelectorAll("[data-window]")) {
      button.setAttribute("aria-pressed", String(Number(button.dataset.window) === minutes));
    }
    for (const chart of this.charts) chart.window = minutes * 60_000;
    this.update();
  }

  point(time) {
    if (time === this.pointed) return;
    this.pointed = time;
    this.update();
  }

  update() {
    for (const chart of this.charts) chart.draw(this.theme, this.pointed);
  }
}
