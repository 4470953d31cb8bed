// Elements, made without markup: text is only ever text.

/**
 * @param {string} name of the element, with classes: "span.chip.small"
 * @param {Record<string, unknown>} [attributes] `on…` are listeners, `text` is its text, `data` its data attributes;
 *   false and null leave an attribute out
 * @param {...(Node | string | null | undefined)} children
 * @returns {any}
 */
export function el(name, attributes = {}, ...children) {
  const [tag, ...classes] = name.split(".");
  const element = document.createElement(tag);
  if (classes.length) element.classList.add(...classes);
  setAttributes(element, attributes);
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

const SVG = "http://www.w3.org/2000/svg";

/**
 * @param {string} tag
 * @param {Record<string, unknown>} [attributes]
 * @returns {SVGElement}
 */
export function svg(tag, attributes = {}) {
  const element = document.createElementNS(SVG, tag);
  setAttributes(element, attributes);
  return /** @type {SVGElement} */ (element);
}

function setAttributes(element, attributes) {
  for (const [key, value] of Object.entries(attributes)) {
    if (value === false || value === null || value === undefined) continue;
    if (key === "text") element.textContent = String(value);
    else if (key === "data") Object.assign(element.dataset, value);
    else if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else element.setAttribute(key, value === true ? "" : String(value));
  }
}

/** Sets text only where it changes, so that nothing is read aloud or drawn again for nothing. */
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** The element with this id. */
export function byId(id) {
  const element = document.getElementById(id);
  if (!element) throw new Error(`there is no #${id}`);
  return /** @type {any} */ (element);
}

/**
 * Makes a parent's children those of a list, in its order, and keeps the elements that it has already.
 * @param {Element} parent
 * @param {{key: string}[]} items
 * @param {(item: any) => Element} make
 * @param {(element: Element, item: any) => void} update
 */
export function reconcile(parent, items, make, update) {
  const known = new Map();
  for (const child of parent.children) known.set(child.dataset.key, child);
  let at = parent.firstElementChild;
  for (const item of items) {
    let element = known.get(item.key);
    if (element) known.delete(item.key);
    else {
      element = make(item);
      element.dataset.key = item.key;
    }
    update(element, item);
    if (element === at) at = at.nextElementSibling;
    else parent.insertBefore(element, at);
  }
  for (const child of known.values()) child.remove();
}
