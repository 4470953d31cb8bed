// What the live requests take, and what they would take with contiguous reservations, as Orca does it (PagedAttention
// paper, section 6.1). All amounts in token slots.

/**
 * @typedef {{tokens: number, reserved: number, unused: number}} Use
 *   tokens: slots that hold one; reserved: kept for tokens that will come; unused: never used, or not by this request
 * @typedef {{id: string, prompt: number, computed: number, maxTokens: number, lengths: number[], state: string}} Live
 */

/**
 * @param {Live[]} requests
 * @param {{used: number, tokens: number, total: number}} device counts of blocks, and tokens in those in use
 * @param {{blockSize: number, maxModelLen: number}} model
 * @param {"now" | "max"} ending how long answers are taken to become: as long as they are now, or as they may become
 */
export function compare(requests, device, model, ending) {
  const running = requests.filter((request) => request.state === "running");
  const ways = {
    octavo: paged(running, device, model.blockSize),
    oracle: contiguous(running, model, ending, (sequence) => sequence.last),
    pow2: contiguous(running, model, ending, powerOfTwo),
    max: contiguous(running, model, ending, (_, most) => most),
  };
  const capacity = device.total * model.blockSize;
  const rows = Object.entries(ways).map(([way, use]) => {
    const total = use.tokens + use.reserved + use.unused;
    return { way, ...use, total, fits: total ? Math.floor((capacity * running.length) / total) : 0 };
  });
  return { rows, capacity, requests: running.length, sequences: running.reduce((sum, each) => sum + each.lengths.length, 0) };
}

/** Blocks as they are: each is counted once, however many share it. */
function paged(running, device, blockSize) {
  const empty = device.used * blockSize - device.tokens;
  const toCome = running.reduce((sum, request) => sum + Math.max(0, request.prompt - request.computed), 0);
  const reserved = Math.min(empty, toCome);
  return { tokens: device.tokens, reserved, unused: empty - reserved };
}

function contiguous(running, model, ending, reservation) {
  const use = { tokens: 0, reserved: 0, unused: 0 };
  for (const request of running) {
    for (const length of request.lengths) {
      const output = Math.max(0, length - request.prompt);
      const most = Math.min(model.maxModelLen, request.prompt + request.maxTokens);
      const last = ending === "max" ? Math.max(length, most) : length;
      const stored = Math.min(request.prompt, request.computed) + output;
      use.tokens += stored;
      use.reserved += last - stored;
      use.unused += Math.max(last, reservation({ prompt: request.prompt, last }, model.maxModelLen)) - last;
    }
  }
  return use;
}

/** The answer's length rounded up to a power of two. */
function powerOfTwo({ prompt, last }, most) {
  const output = Math.max(1, last - prompt);
  return Math.min(most, prompt + 2 ** Math.ceil(Math.log2(output)));
}
