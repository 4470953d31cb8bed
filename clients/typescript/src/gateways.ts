/** The servers that a client may ask: one after the other. */

import type { Stub } from "./protos.js";

/** Several servers of one service. All calls go to one of them until it fails, then to the next. */
export class Gateways {
  #current = 0;

  /** @param stubs in order of preference. */
  constructor(private readonly stubs: readonly [Stub, ...Stub[]]) {}

  get count(): number {
    return this.stubs.length;
  }

  get current(): Stub {
    return this.stubs[this.#current] ?? this.stubs[0];
  }

  /** Goes on with the next one, unless another call, which failed as well, has done so already. */
  leave(stub: Stub): void {
    if (stub === this.current) {
      this.#current = (this.#current + 1) % this.stubs.length;
    }
  }

  close(): void {
    for (const stub of this.stubs) {
      stub.close();
    }
  }
}
