// Numbers as people read them.

const whole = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });
const tenth = new Intl.NumberFormat("en-US", { minimumFractionDigits: 1, maximumFractionDigits: 1 });

/** 12,345 */
export const count = (value) => whole.format(value);

/** 12,345 or 3.4: what is small keeps a digit. */
export const rate = (value) => (value && value < 10 ? tenth.format(value) : whole.format(value));

/** 1.2k: where there is little room. */
export function short(value) {
  if (value < 1000) return whole.format(value);
  if (value < 10_000) return `${tenth.format(value / 1000)}k`;
  if (value < 1_000_000) return `${whole.format(value / 1000)}k`;
  return `${tenth.format(value / 1_000_000)}M`;
}

/** 81 %; 3.2 % where it is small. */
export function percent(share) {
  if (!Number.isFinite(share)) return "–";
  const value = share * 100;
  return `${value > 0 && value < 10 ? tenth.format(value) : whole.format(value)} %`;
}

/** Bytes: 18.4 MiB */
export function bytes(value) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (value >= 1024 && unit < units.length - 1) {
    value /= 1024;
    unit++;
  }
  return `${value >= 100 || unit === 0 ? whole.format(value) : tenth.format(value)} ${units[unit]}`;
}

/** A length of time in ms: 0.4 ms, 12 ms, 3.4 s, 2 min 5 s, 1 h 12 min */
export function duration(ms) {
  if (!Number.isFinite(ms)) return "–";
  if (ms < 0) ms = 0;
  if (ms < 10) return `${tenth.format(ms)} ms`;
  if (ms < 1000) return `${whole.format(ms)} ms`;
  if (ms < 60_000) return `${tenth.format(ms / 1000)} s`;
  const seconds = Math.round(ms / 1000);
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ${seconds % 60} s`;
  return `${Math.floor(seconds / 3600)} h ${Math.floor((seconds % 3600) / 60)} min`;
}

/** 14:03:22, where the viewer is. */
export const clockTime = (ms) => new Date(ms).toLocaleTimeString("en-GB");

/** "1 block", "2 blocks" */
export const plural = (value, noun) => `${count(value)} ${noun}${value === 1 ? "" : "s"}`;
