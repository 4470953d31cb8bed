/** When a call is tried again, and how long after. */

import * as grpc from "@grpc/grpc-js";
import { OctavoError } from "./errors.js";

/**
 * How long a client goes on trying where servers are away, restart, or have no room.
 *
 * The time of an outage begins with the first failure after the last response. Waits between tries grow from
 * `initialDelay` by `multiplier` to `maximumDelay`, each shortened by up to half at random. With several addresses each is
 * tried once before any wait. A server's own word on when to return is followed. All times are seconds.
 */
export interface RetryPolicy {
  /** Most seconds of an outage before a call has had any response. 0: each address once. */
  startPatience: number;
  /** Most seconds of an outage in the middle of a stream. */
  patience: number;
  initialDelay: number;
  maximumDelay: number;
  multiplier: number;
}

export const DEFAULT_RETRIES: Readonly<RetryPolicy> = {
  startPatience: 10,
  patience: 60,
  initialDelay: 0.1,
  maximumDelay: 2,
  multiplier: 2,
};

/** With less left of its time than this, a call is not tried any more. */
const LEAST_SECONDS = 0.001;

/** Whether another server may do better at once. */
export function isAboutOneServer(error: OctavoError): boolean {
  return error.status === grpc.status.UNAVAILABLE || !error.fromServer;
}

/** Whether the same call may well succeed a little later, or with another server. */
export function isTransient(error: OctavoError): boolean {
  const isFull = error.status === grpc.status.RESOURCE_EXHAUSTED && error.retryAfter !== undefined;
  return isFull || isAboutOneServer(error);
}

/** The tries of one call. */
export class Retries {
  readonly #end: number | undefined;
  #begun = false;
  #failures = 0;
  #failingSince = 0;
  #lastError: OctavoError | undefined;

  /**
   * @param policy null: there is one try.
   * @param timeout seconds that all tries may take together; undefined: no limit.
   * @param numAddresses servers that can be asked.
   * @param clock seconds, monotonic.
   * @param random from 0 to 1.
   */
  constructor(
    private readonly policy: Readonly<RetryPolicy> | null,
    private readonly timeout: number | undefined,
    private readonly numAddresses: number,
    private readonly clock: () => number = () => performance.now() / 1000,
    private readonly random: () => number = Math.random,
  ) {
    this.#end = timeout === undefined ? undefined : clock() + timeout;
  }

  /** Seconds that are left of the timeout; may be negative. */
  remaining(): number | undefined {
    return this.#end === undefined ? undefined : this.#end - this.clock();
  }

  /** Seconds since the first failure after the last response. */
  outageSeconds(): number {
    return this.#failures ? this.clock() - this.#failingSince : 0;
  }

  /** A response has come: an outage, if there was one, is over. */
  responded(): void {
    this.#begun = true;
    this.#failures = 0;
  }

  /**
   * Seconds to wait before the next try, after a transient error.
   *
   * @throws {OctavoError} there is no next try: the error, or DEADLINE_EXCEEDED where the timeout is over.
   */
  delayAfter(error: OctavoError): number {
    if (this.policy === null) {
      throw error;
    }
    this.#lastError = error;
    const now = this.clock();
    if (!this.#failures) {
      this.#failingSince = now;
    }
    this.#failures += 1;
    const delay = this.#delay(this.policy, error);
    if (now + delay - this.#failingSince > (this.#begun ? this.policy.patience : this.policy.startPatience)) {
      throw error;
    }
    const remaining = this.remaining();
    if (remaining === undefined) {
      return delay;
    }
    this.checkTimeout();
    if (delay > remaining && !isAboutOneServer(error)) {
      throw error;
    }
    return Math.min(delay, remaining);
  }

  /**
   * Before a further try.
   *
   * @throws {OctavoError} DEADLINE_EXCEEDED: the timeout is over.
   */
  checkTimeout(): void {
    const remaining = this.remaining();
    if (remaining === undefined || remaining >= LEAST_SECONDS) {
      return;
    }
    const last = this.#lastError ? `; the last try ended with ${this.#lastError.message}` : "";
    const message = `not done within ${this.timeout} s${last}`;
    throw new OctavoError(grpc.status.DEADLINE_EXCEEDED, message, { field: "timeout" });
  }

  #delay(policy: Readonly<RetryPolicy>, error: OctavoError): number {
    if (this.#failures % this.numAddresses && isAboutOneServer(error)) {
      return 0;
    }
    if (error.retryAfter !== undefined) {
      return Math.max(error.retryAfter, policy.initialDelay) + policy.initialDelay * this.random();
    }
    const rounds = Math.min(Math.floor(this.#failures / this.numAddresses), 64);
    const longest = Math.min(policy.initialDelay * policy.multiplier ** Math.max(rounds - 1, 0), policy.maximumDelay);
    return longest * (0.5 + 0.5 * this.random());
  }
}
