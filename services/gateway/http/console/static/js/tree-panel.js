// What the prefix caches hold, by scope, and how often it was found.

import { byId, el, reconcile, setText } from "./dom.js";
import { count, percent, plural } from "./format.js";
import { build, visible } from "./tree.js";

export class TreePanel {
  /** @param {import("./colours.js").Owners} owners */
  constructor(owners) {
    this.owners = owners;
    this.groups = [];
    this.uses = new Map();
    this.open = new Set();
    this.closed = new Set();
    this.current = "";
    this.most = 1;
    this.element = byId("tree-items");
    this.element.addEventListener("keydown", (event) => this.press(event));
    this.element.addEventListener("click", (event) => this.click(event));
    this.element.addEventListener("focusin", (event) => this.setCurrent(event.target.closest("[role=treeitem]")?.dataset.key ?? ""));
  }

  take(tree) {
    this.groups = build(tree);
    this.uses = new Map(tree.scopes.map((use) => [`${use.owner}\n${use.scope}`, use]));
    for (const group of this.groups) if (!this.closed.has(group.key)) this.open.add(group.key);
    const keys = new Set();
    const note = (item) => {
      keys.add(item.key);
      item.children.forEach(note);
    };
    this.groups.forEach(note);
    for (const kept of [this.open, this.closed]) for (const key of kept) if (!keys.has(key)) kept.delete(key);
    this.most = Math.max(1, ...tree.nodes.map((node) => node.num_blocks));
    setText(byId("tree-left-out"), tree.leftOut ? `${count(tree.leftOut)} prefixes with fewer blocks are left out.` : "");
    byId("tree-left-out").hidden = !tree.leftOut;
    byId("tree-empty").hidden = this.groups.length > 0;
    this.update();
    this.showUses(tree.scopes);
  }

  update() {
    const items = visible(this.groups, this.open).map((each) => ({ key: each.item.key, ...each }));
    if (!items.some((each) => each.key === this.current)) this.current = items[0]?.key ?? "";
    reconcile(this.element, items, (each) => this.make(each.item), (element, each) => this.fill(element, each));
  }

  make(item) {
    return el("div.tree-item", { role: "treeitem" },
      el("span.tree-name", {}, el("span.twist", { "aria-hidden": "true" }), el("span.chip", { "aria-hidden": "true", data: { category: this.owners.index(item.group.owner) } }),
        el(item.node ? "span.tree-text.mono" : "span.tree-text")),
      el("span.tree-bar", { "aria-hidden": "true" }, el("span.used"), el("span.idle"), el("span.host")),
      el("span.number"), el("span.number"), el("span.number"), el("span.tree-where"));
  }

  fill(element, { item, position, of }) {
    const [name, bar, blocks, used, hits, where] = element.children;
    const { node } = item;
    element.setAttribute("aria-level", item.level);
    element.setAttribute("aria-posinset", position);
    element.setAttribute("aria-setsize", of);
    element.tabIndex = item.key === this.current ? 0 : -1;
    if (item.children.length) element.setAttribute("aria-expanded", String(this.open.has(item.key)));
    else element.removeAttribute("aria-expanded");
    name.style.paddingInlineStart = `${(item.level - 1) * 18}px`;
    setText(name.firstChild, item.children.length ? (this.open.has(item.key) ? "▾" : "▸") : "");
    if (node) {
      const text = node.text ? node.text.replace(/\s*\n\s*/g, " ↵ ") : `${node.identity_prefix} (text is not yours to read)`;
      setText(name.lastChild, text);
      name.title = node.text || node.identity_prefix;
      name.lastChild.classList.toggle("quiet", !node.text);
      setText(blocks, count(node.num_blocks));
      setText(used, node.referenced_blocks ? count(node.referenced_blocks) : "–");
      setText(hits, count(Number(node.hits)));
      setText(where, node.executor);
      const idle = Math.max(0, node.num_blocks - node.referenced_blocks - node.host_blocks);
      const shares = [node.referenced_blocks, idle, node.host_blocks].map((value) => (100 * value) / this.most);
      shares.forEach((share, k) => (bar.children[k].style.width = `${share}%`));
    } else {
      setText(name.lastChild, `${item.group.owner || "nobody"} · ${item.group.scope}`);
      setText(blocks, count(item.blocks));
      setText(used, "");
      const use = this.uses.get(item.key);
      setText(hits, use && use.queried_tokens ? percent(use.hit_tokens / use.queried_tokens) : "");
      setText(where, use ? "of prompt tokens found" : "");
    }
    element.classList.toggle("group", !node);
  }

  setCurrent(key) {
    if (!key || key === this.current) return;
    for (const element of this.element.children) element.tabIndex = element.dataset.key === key ? 0 : -1;
    this.current = key;
  }

  toggle(key, open) {
    if (open) {
      this.open.add(key);
      this.closed.delete(key);
    } else {
      this.open.delete(key);
      this.closed.add(key);
    }
    this.update();
  }

  click(event) {
    const element = event.target.closest("[role=treeitem]");
    if (!element) return;
    this.focus(element.dataset.key);
    if (element.hasAttribute("aria-expanded")) this.toggle(element.dataset.key, element.getAttribute("aria-expanded") !== "true");
  }

  focus(key) {
    this.setCurrent(key);
    for (const element of this.element.children) if (element.dataset.key === key) element.focus();
  }

  press(event) {
    const shown = visible(this.groups, this.open);
    const at = shown.findIndex(({ item }) => item.key === this.current);
    if (at < 0 || event.ctrlKey || event.metaKey || event.altKey) return;
    const { item } = shown[at];
    const goTo = (k) => this.focus(shown[Math.min(shown.length - 1, Math.max(0, k))].item.key);
    const open = this.open.has(item.key) && item.children.length > 0;
    switch (event.key) {
      case "ArrowDown": goTo(at + 1); break;
      case "ArrowUp": goTo(at - 1); break;
      case "Home": goTo(0); break;
      case "End": goTo(shown.length - 1); break;
      case "ArrowRight":
        if (open) goTo(at + 1);
        else if (item.children.length) this.toggle(item.key, true);
        break;
      case "ArrowLeft":
        if (open) this.toggle(item.key, false);
        else if (item.parent) this.focus(item.parent.key);
        break;
      case "Enter":
      case " ":
        if (item.children.length) this.toggle(item.key, !open);
        break;
      default: return;
    }
    event.preventDefault();
  }

  showUses(scopes) {
    const rows = scopes.map((use) => ({ key: `${use.owner}\n${use.scope}`, ...use }));
    reconcile(byId("scopes-body"), rows, (use) => this.makeUse(use), (row, use) => {
      const [, , queried, hit, share, cached] = row.children;
      const found = use.queried_tokens ? use.hit_tokens / use.queried_tokens : NaN;
      setText(queried, count(use.queried_tokens));
      setText(hit, count(use.hit_tokens));
      setText(share.firstChild, percent(found));
      share.lastChild.firstChild.style.width = `${Number.isFinite(found) ? 100 * found : 0}%`;
      setText(cached, count(use.cached_blocks));
    });
    byId("scopes-table").hidden = rows.length === 0;
  }

  makeUse(use) {
    return el("tr", {},
      el("th", { scope: "row" }, el("span.chip", { data: { category: this.owners.index(use.owner) }, "aria-hidden": "true" }), el("span.name", { text: use.owner })),
      el("td", { text: use.scope }), el("td.number"), el("td.number"),
      el("td.number", {}, el("span"), el("span.meter", { "aria-hidden": "true" }, el("span.bar-value"))), el("td.number"));
  }
}
