// Where blocks are on a map: rows of squares, each one block, or several where there are too many.

const SMALLEST = 6;
const LARGEST = 30;
const GROUPED = 11;
const STEPS = [6, 8, 11, 15, 20, 30];

/** @typedef {{columns: number, rows: number, pitch: number, size: number, perCell: number, cells: number}} Layout */

/**
 * The largest squares with which all blocks fit; below a size that can be read, a square stands for several blocks.
 * @param {number} count of blocks
 * @param {number} width px
 * @param {number} height px
 * @returns {Layout}
 */
export function fit(count, width, height) {
  for (let pitch = LARGEST; pitch >= SMALLEST; pitch--) {
    const layout = withPitch(count, width, pitch);
    if (layout.rows * pitch <= height) return layout;
  }
  for (let perCell = 2; ; perCell *= 2) {
    const layout = withPitch(count, width, GROUPED, perCell);
    if (layout.rows * GROUPED <= height || layout.cells === 1) return layout;
  }
}

/**
 * @param {number} count
 * @param {number} width
 * @param {number} pitch px from one square to the next
 * @returns {Layout}
 */
export function withPitch(count, width, pitch, perCell = 1) {
  const columns = Math.max(1, Math.floor(width / pitch));
  const cells = Math.ceil(count / perCell);
  const gap = pitch >= 14 ? 2 : 1;
  return { columns, rows: Math.max(1, Math.ceil(cells / columns)), pitch, size: pitch - gap, perCell, cells };
}

/**
 * The next size up or down from a layout; null: there is none.
 * @param {Layout} layout
 * @param {1 | -1} direction
 */
export function nextPitch(layout, direction) {
  const now = layout.perCell > 1 ? 0 : layout.pitch;
  return direction > 0 ? (STEPS.find((step) => step > now) ?? null) : (STEPS.findLast((step) => step < now) ?? null);
}
