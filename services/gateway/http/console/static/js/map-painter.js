// Draws squares of a block map. What a block is shows in its form, not by colour alone:
//   free      empty
//   cached    an outline with a diagonal
//   in use    filled from below as far as it holds tokens, in a light frame
//   shared    with its reference count, or a notch where there is no room for a number
//   swapped   in use in the host tier: with stripes

import { CACHED, FREE } from "./block-store.js";

const ROOM_FOR_NUMBER = 13;

/**
 * @typedef {object} Look
 * @property {number} state FREE, CACHED or USED
 * @property {string} colour
 * @property {string} onColour text on that colour
 * @property {number} fill 0 to 1
 * @property {number} refs
 * @property {boolean} host
 */

/**
 * One block.
 * @param {CanvasRenderingContext2D} context
 * @param {number} x @param {number} y @param {number} size
 * @param {Look} look
 * @param {ReturnType<typeof import("./theme.js").themeColours>} theme
 */
export function drawBlock(context, x, y, size, look, theme) {
  if (look.state === FREE) {
    context.fillStyle = theme.faint;
    context.fillRect(x, y, size, size);
    return;
  }
  if (look.state === CACHED) return drawCached(context, x, y, size, look.colour);
  drawFilled(context, x, y, size, look.fill, look.colour);
  if (look.host) drawStripes(context, x, y, size, theme.surface);
  if (look.refs > 1) drawShared(context, x, y, size, look, theme);
}

/**
 * Several blocks in one square: from below those in use, then those that are cached.
 * @param {CanvasRenderingContext2D} context
 * @param {{used: number, cached: number, colour: string, cachedColour: string, host: boolean, shared: boolean}} group shares
 */
export function drawGroup(context, x, y, size, group, theme) {
  context.fillStyle = theme.faint;
  context.fillRect(x, y, size, size);
  const used = Math.round(size * group.used);
  const cached = Math.min(size - used, Math.round(size * group.cached));
  if (cached) {
    const alpha = context.globalAlpha;
    context.globalAlpha = alpha * 0.38;
    context.fillStyle = group.cachedColour;
    context.fillRect(x, y + size - used - cached, size, cached);
    context.globalAlpha = alpha;
  }
  if (used) {
    context.fillStyle = group.colour;
    context.fillRect(x, y + size - used, size, used);
    if (group.host) drawStripes(context, x, y + size - used, size, theme.surface, used);
  }
  if (group.shared) notch(context, x, y, size, theme);
}

function drawCached(context, x, y, size, colour) {
  const alpha = context.globalAlpha;
  context.strokeStyle = colour;
  context.lineWidth = 1;
  context.globalAlpha = alpha * 0.75;
  context.strokeRect(x + 0.5, y + 0.5, size - 1, size - 1);
  context.globalAlpha = alpha * 0.6;
  context.beginPath();
  context.moveTo(x + 1, y + size - 1);
  context.lineTo(x + size - 1, y + 1);
  context.stroke();
  context.globalAlpha = alpha;
}

function drawFilled(context, x, y, size, fill, colour) {
  context.fillStyle = colour;
  if (fill >= 1) {
    context.fillRect(x, y, size, size);
    return;
  }
  const alpha = context.globalAlpha;
  context.globalAlpha = alpha * 0.3;
  context.fillRect(x, y, size, size);
  context.globalAlpha = alpha;
  const height = fill > 0 ? Math.max(1, Math.round(size * fill)) : 0;
  context.fillRect(x, y + size - height, size, height);
}

function drawStripes(context, x, y, size, colour, height = size) {
  context.fillStyle = colour;
  const step = size >= 10 ? 4 : 3;
  for (let line = 1; line < height; line += step) context.fillRect(x, y + line, size, 1);
}

function drawShared(context, x, y, size, look, theme) {
  if (size < ROOM_FOR_NUMBER) return notch(context, x, y, size, theme);
  const text = look.refs > 99 ? "99+" : String(look.refs);
  context.fillStyle = look.colour; // the number stands on the block's colour, however full the block is
  context.fillRect(x, y, size, size);
  context.fillStyle = look.onColour;
  context.font = `600 ${Math.min(12, Math.round(size * (text.length > 2 ? 0.44 : 0.64)))}px system-ui, sans-serif`;
  context.textAlign = "center";
  context.textBaseline = "middle";
  context.fillText(text, x + size / 2, y + size / 2 + 0.5);
}

/** The upper right corner is cut off, and set back as a small square. */
function notch(context, x, y, size, theme) {
  const side = Math.max(2, Math.round(size * 0.45));
  context.fillStyle = theme.surface;
  context.fillRect(x + size - side, y, side, side);
  context.fillStyle = theme.ink;
  context.fillRect(x + size - side + 1, y, side - 1, side - 1);
}

/** Black or white, whichever is read better on a colour "#rrggbb". */
export function textOn(colour) {
  const part = (at) => {
    const value = parseInt(colour.slice(at, at + 2), 16) / 255;
    return value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
  };
  const luminance = 0.2126 * part(1) + 0.7152 * part(3) + 0.0722 * part(5);
  return luminance > 0.179 ? "#000000" : "#ffffff";
}

