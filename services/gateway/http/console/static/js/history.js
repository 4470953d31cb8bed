// What changes over time: one row a second, and no more rows than fit.

const MOST_ROWS = 900;
const RATE_MS = 5000;
const HIT_RATE_MS = 60_000;

const COLUMNS = [
  "time", "running", "waiting", "swapped", "sequences", "prefill", "decode",
  "blocks", "used", "cached", "generated", "prompt", "hits", "preemptions",
];

export class History {
  constructor() {
    /** Tokens per second, where no counter tells it. */
    this.measuredRate = NaN;
    this.clear();
  }

  clear() {
    /** @type {Record<string, number[]>} */
    this.columns = Object.fromEntries([...COLUMNS, "generatedRate", "promptRate", "hitRate", "usage"].map((name) => [name, []]));
  }

  get length() {
    return this.columns.time.length;
  }

  /** Row with the last time. */
  get last() {
    return this.length - 1;
  }

  /**
   * Rows that are newer than what is known.
   * @param {Record<string, number[]>} samples
   */
  add(samples) {
    for (let i = 0; i < samples.time.length; i++) {
      if (this.length && samples.time[i] <= this.columns.time[this.last]) continue;
      for (const name of COLUMNS) this.columns[name].push(samples[name][i]);
      this.derive();
    }
    const excess = this.length - MOST_ROWS;
    if (excess > 0) for (const column of Object.values(this.columns)) column.splice(0, excess);
  }

  derive() {
    const { generatedRate, promptRate, hitRate, usage, used, blocks } = this.columns;
    const counted = this.columns.prompt[this.last] > 0;
    generatedRate.push(counted ? this.perSecond("generated", RATE_MS) : this.measuredRate);
    promptRate.push(counted ? this.perSecond("prompt", RATE_MS) - this.perSecond("hits", RATE_MS) : NaN);
    const prompt = this.growth("prompt", HIT_RATE_MS);
    hitRate.push(prompt > 0 ? this.growth("hits", HIT_RATE_MS) / prompt : NaN);
    usage.push(blocks[this.last] ? used[this.last] / blocks[this.last] : NaN);
  }

  /** First row of the last so many ms; where counters went back, a KV manager began anew, and it is the first after. */
  since(ms, counter) {
    const { time } = this.columns;
    let row = this.last;
    while (row > 0 && time[row - 1] >= time[this.last] - ms && counter[row - 1] <= counter[row]) row--;
    return row;
  }

  growth(name, ms) {
    const column = this.columns[name];
    return column[this.last] - column[this.since(ms, column)];
  }

  perSecond(name, ms) {
    const { time } = this.columns;
    const first = this.since(ms, this.columns[name]);
    const elapsed = time[this.last] - time[first];
    return elapsed > 0 ? (this.growth(name, ms) / elapsed) * 1000 : 0;
  }
}
