// Which of the categorical colours stands for whom. Who has one keeps it; with more than there are colours, they repeat.

import { CATEGORIES } from "./theme.js";

export class Owners {
  constructor() {
    /** @type {Map<string, number>} */
    this.indices = new Map();
  }

  /** @param {string} owner @returns {number} index of its colour */
  index(owner) {
    let index = this.indices.get(owner);
    if (index === undefined) {
      index = this.indices.size % CATEGORIES;
      this.indices.set(owner, index);
    }
    return index;
  }
}
