// The physical map of each executor, as columns of numbers: a block is an index, those of the host tier come last.

/** Decodes a base64 column. */
export function column(text, Type) {
  const data = atob(text);
  const bytes = new Uint8Array(data.length);
  for (let i = 0; i < data.length; i++) bytes[i] = data.charCodeAt(i);
  return new Type(bytes.buffer);
}

/** State of a block. */
export const FREE = 0;
export const CACHED = 1;
export const USED = 2;

export class ExecutorBlocks {
  /** @param {string} name @param {number} device @param {number} host */
  constructor(name, device, host) {
    this.name = name;
    this.device = device;
    this.host = host;
    const total = device + host;
    this.refs = new Uint16Array(total);
    this.fills = new Uint16Array(total);
    this.owners = new Uint16Array(total);
    this.cached = new Uint8Array(total);
    this.identities = new Uint8Array(8 * total);
    /** Number of the first request that holds it, or -1. */
    this.holders = new Int32Array(total).fill(-1);
  }

  /** FREE, CACHED or USED */
  state(i) {
    return this.refs[i] ? USED : this.cached[i] ? CACHED : FREE;
  }

  /** Its identity's first bytes, or "". */
  identity(i) {
    const bytes = this.identities.subarray(8 * i, 8 * i + 8);
    return bytes.some(Boolean) ? Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("") : "";
  }

  take(message) {
    const ids = column(message.ids, Int32Array);
    const refs = column(message.refs, Uint16Array);
    const fills = column(message.fills, Uint16Array);
    const owners = column(message.owners, Uint16Array);
    const cached = column(message.cached, Uint8Array);
    const identities = column(message.identities, Uint8Array);
    for (let k = 0; k < ids.length; k++) {
      const i = ids[k];
      this.refs[i] = refs[k];
      this.fills[i] = fills[k];
      this.owners[i] = owners[k];
      this.cached[i] = cached[k];
      this.identities.set(identities.subarray(8 * k, 8 * k + 8), 8 * i);
    }
  }

  /**
   * Counts blocks of one tier.
   * @param {boolean} host
   */
  count(host) {
    const counts = { total: host ? this.host : this.device, free: 0, cached: 0, used: 0, shared: 0, partial: 0, tokens: 0 };
    const [start, end] = host ? [this.device, this.device + this.host] : [0, this.device];
    for (let i = start; i < end; i++) {
      if (this.refs[i]) {
        counts.used++;
        counts.tokens += this.fills[i];
        if (this.refs[i] > 1) counts.shared++;
      } else if (this.cached[i]) counts.cached++;
      else counts.free++;
    }
    return counts;
  }
}

/** @typedef {{key: number, id: string, tenant: string, executor: string, host: boolean, tables: Int32Array[]}} Holder */

export class BlockStore {
  constructor() {
    this.clear();
  }

  clear() {
    /** @type {Map<string, ExecutorBlocks>} */
    this.executors = new Map();
    /** @type {string[]} */
    this.ownerNames = [""];
    /** @type {Map<number, Holder>} */
    this.holders = new Map();
  }

  /** A `blocks` event. */
  takeBlocks(message) {
    if (message.removed) {
      this.executors.delete(message.executor);
      return;
    }
    this.ownerNames.push(...message.newOwners);
    let blocks = this.executors.get(message.executor);
    if (message.snapshot || !blocks) {
      blocks = new ExecutorBlocks(message.executor, message.device, message.host);
      this.executors.set(message.executor, blocks);
      blocks.take(message);
      this.assignHolders();
    } else blocks.take(message);
  }

  /** A `tables` event. */
  takeTables(message) {
    for (const key of message.gone) this.holders.delete(key);
    for (const { tables, ...where } of message.requests) {
      const before = this.holders.get(where.key)?.tables ?? [];
      const now = tables.map(([kept, rest], s) => joined(before[s], kept, column(rest, Int32Array)));
      this.holders.set(where.key, { ...where, tables: now });
    }
    this.assignHolders();
  }

  assignHolders() {
    for (const blocks of this.executors.values()) blocks.holders.fill(-1);
    for (const { key, executor, host, tables } of this.holders.values()) {
      const blocks = this.executors.get(executor);
      if (!blocks) continue;
      const first = host ? blocks.device : 0;
      for (const table of tables) {
        for (const id of table) if (blocks.holders[first + id] === -1) blocks.holders[first + id] = key;
      }
    }
  }

  /**
   * Everybody who holds a block, and where in their block table it is.
   * @param {ExecutorBlocks} blocks
   * @param {number} i
   */
  holdersOf(blocks, i) {
    const host = i >= blocks.device;
    const id = host ? i - blocks.device : i;
    const found = [];
    for (const holder of this.holders.values()) {
      if (holder.executor !== blocks.name || holder.host !== host) continue;
      const sequences = [];
      holder.tables.forEach((table, s) => {
        const position = table.indexOf(id);
        if (position >= 0) sequences.push({ sequence: s, position });
      });
      if (sequences.length) found.push({ holder, sequences });
    }
    return found;
  }

  /** Counts over all executors. */
  count(host) {
    const total = { total: 0, free: 0, cached: 0, used: 0, shared: 0, tokens: 0 };
    for (const blocks of this.executors.values()) {
      const counts = blocks.count(host);
      for (const name of Object.keys(total)) total[name] += counts[name];
    }
    return total;
  }
}

function joined(before, kept, rest) {
  const table = new Int32Array(kept + rest.length);
  if (kept) table.set(before.subarray(0, kept));
  table.set(rest, kept);
  return table;
}
