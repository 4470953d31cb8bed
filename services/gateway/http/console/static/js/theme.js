// Light and dark: as the system has it, or as the viewer wants it.

import { byId, setText } from "./dom.js";

const STORED = "octavo-theme";

export class Theme {
  constructor() {
    this.button = byId("theme-button");
    this.system = matchMedia("(prefers-color-scheme: dark)");
    this.chosen = localStorage.getItem(STORED);
    /** @type {Set<() => void>} */
    this.listeners = new Set();
    this.button.addEventListener("click", () => this.toggle());
    this.system.addEventListener("change", () => this.apply());
    this.apply();
  }

  get dark() {
    return this.chosen ? this.chosen === "dark" : this.system.matches;
  }

  toggle() {
    this.chosen = this.dark ? "light" : "dark";
    localStorage.setItem(STORED, this.chosen);
    this.apply();
  }

  apply() {
    document.documentElement.dataset.theme = this.dark ? "dark" : "light";
    setText(this.button, this.dark ? "☀ Light" : "☾ Dark");
    for (const listener of this.listeners) listener();
  }

  /** @param {() => void} listener is called when colours have changed */
  onchange(listener) {
    this.listeners.add(listener);
  }
}

/** Colours of the theme that canvases draw with. */
export function themeColours() {
  const style = getComputedStyle(document.documentElement);
  const of = (name) => style.getPropertyValue(name).trim();
  return {
    surface: of("--surface"),
    ink: of("--ink"),
    ink2: of("--ink-2"),
    ink3: of("--ink-3"),
    line: of("--line"),
    faint: of("--faint"),
    accent: of("--accent"),
    categories: Array.from({ length: CATEGORIES }, (_, i) => of(`--category-${i}`)),
  };
}

export const CATEGORIES = 8;
