// How fast a tenant's requests generate: its view has no counters, which would tell about others.

const WINDOW_MS = 5000;

export class OwnRate {
  constructor() {
    /** @type {Map<string, number>} output of each request, when it was last seen */
    this.outputs = new Map();
    /** @type {{time: number, tokens: number}[]} what came, and when */
    this.growth = [];
  }

  /**
   * @param {{id: string, output: number, arrived: number}[]} requests live ones, and some that have ended
   * @param {number} time ms
   * @returns {number} tokens per second over the last seconds
   */
  take(requests, time) {
    const first = this.growth.length === 0;
    let tokens = 0;
    const outputs = new Map();
    for (const { id, output } of requests) {
      tokens += Math.max(0, output - (this.outputs.get(id) ?? (first ? output : 0)));
      outputs.set(id, output);
    }
    this.outputs = outputs;
    this.growth.push({ time, tokens });
    while (this.growth.length > 2 && this.growth[1].time < time - WINDOW_MS) this.growth.shift();
    const elapsed = time - this.growth[0].time;
    const total = this.growth.slice(1).reduce((sum, each) => sum + each.tokens, 0);
    return elapsed > 0 ? (1000 * total) / elapsed : NaN;
  }
}
