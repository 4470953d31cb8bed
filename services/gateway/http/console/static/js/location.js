// The page's address names the request that is looked at: #request=ID

import { el } from "./dom.js";

const PREFIX = "#request=";

/** @returns {string} id of the request that the address names, or "" */
export function requestInAddress() {
  if (!location.hash.startsWith(PREFIX)) return "";
  try {
    return decodeURIComponent(location.hash.slice(PREFIX.length));
  } catch {
    return "";
  }
}

export const requestAddress = (id) => PREFIX + encodeURIComponent(id);

export const requestLink = (id) => el("a.mono.request-link", { href: requestAddress(id), text: id });
