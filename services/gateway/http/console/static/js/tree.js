// The prefix tree: groups by owner and scope, below them the prefixes of each executor.

/**
 * @typedef {object} Item
 * @property {string} key
 * @property {number} level from 1
 * @property {Item[]} children
 * @property {any} node a prefix, or null for a group
 * @property {{owner: string, scope: string}} group
 * @property {number} blocks of itself and all below
 */

/**
 * @param {{nodes: any[], scopes: any[]}} tree
 * @returns {Item[]} groups
 */
export function build(tree) {
  const groups = new Map();
  const group = (owner, scope) => {
    const key = `${owner}\n${scope}`;
    if (!groups.has(key)) groups.set(key, { key, level: 1, children: [], node: null, group: { owner, scope }, blocks: 0 });
    return groups.get(key);
  };
  for (const use of tree.scopes) group(use.owner, use.scope);
  const known = new Map();
  for (const node of tree.nodes) {
    const parent = known.get(nodeKey(node.executor, node.parent_identity_prefix)) ?? group(node.owner, node.scope);
    const item = {
      key: nodeKey(node.executor, node.identity_prefix), level: parent.level + 1, children: [], node, group: parent.group, blocks: 0, parent,
    };
    parent.children.push(item);
    known.set(item.key, item);
    for (let above = item; above; above = above.parent) above.blocks += node.num_blocks;
  }
  return [...groups.values()].sort((a, b) => (a.key < b.key ? -1 : 1));
}

const nodeKey = (executor, identity) => `${executor}\n${identity}`;

/**
 * Items that are seen, from above to below.
 * @param {Item[]} items
 * @param {Set<string>} open keys
 * @returns {{item: Item, position: number, of: number}[]}
 */
export function visible(items, open) {
  return items.flatMap((item, k) => [
    { item, position: k + 1, of: items.length },
    ...(open.has(item.key) ? visible(item.children, open) : []),
  ]);
}
