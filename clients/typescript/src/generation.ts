/** One request and its tries: what to send next, what of the responses to hand on, and when to give up. */

import { randomBytes, randomUUID } from "node:crypto";
import * as grpc from "@grpc/grpc-js";
import { Continuation } from "./continuation.js";
import type { OctavoError } from "./errors.js";
import type { GenerateRequest } from "./generated/octavo/v1/GenerateRequest.js";
import type { ResumeRequest } from "./generated/octavo/v1/ResumeRequest.js";
import type { SamplingParams } from "./generated/octavo/v1/SamplingParams.js";
import { asDuration } from "./messages.js";
import { isTransient, type Retries } from "./retries.js";
import type { GenerateResponse } from "./types.js";

const DEADLINE_MARGIN_SECONDS = 1;

// What Resume answers where the request is not known any more, its log is shorter than what has arrived, or there is no
// such method.
const CANNOT_RESUME = new Set([grpc.status.NOT_FOUND, grpc.status.OUT_OF_RANGE, grpc.status.UNIMPLEMENTED]);

// An earlier try runs although its answer was lost; or the server of one wrote late into the log what it had to write, and
// so took the request from where it goes on. On the first try it is another caller who has it.
const HELD_BY_AN_EARLIER_TRY = new Set([grpc.status.ALREADY_EXISTS, grpc.status.ABORTED]);

// What it answers while the state store, which has the log, is away; and for how long that is waited for.
const LOG_AWAY = "STATE_UNAVAILABLE";
const LOG_PATIENCE_SECONDS = 5;

/** What to send, by which method, and the seconds of the call's deadline. */
export type NextCall =
  | { method: "Generate"; message: GenerateRequest; deadline: number | undefined }
  | { method: "Resume"; message: ResumeRequest; deadline: number | undefined };

/**
 * Tells a client what to do, from one try to the next.
 *
 * A stream that breaks goes on with Resume. Where nothing is known of the request any more, Generate gives the same answer
 * again, and what has arrived already is left out.
 */
export class Generation {
  /** Whether the request's last response has come. */
  complete = false;
  readonly #continuation: Continuation;
  #numTries = 0;
  #resumes = false;
  #tryResponded = false;

  /**
   * @param request is made repeatable.
   * @param retries of this request.
   */
  constructor(
    private readonly request: GenerateRequest & { sampling: SamplingParams },
    private readonly retries: Retries,
  ) {
    makeRepeatable(request);
    this.#continuation = new Continuation(request.sampling.n ?? 1);
  }

  /** @throws {OctavoError} DEADLINE_EXCEEDED: there is no time left for another try. */
  nextCall(): NextCall {
    if (this.#numTries) {
      this.retries.checkTimeout();
    }
    this.#numTries += 1;
    this.#tryResponded = false;
    const remaining = this.retries.remaining();
    if (this.#resumes) {
      this.#continuation.resume();
      const message = { request_id: this.request.request_id ?? "", from_token: this.#continuation.nextPositions() };
      return { method: "Resume", message, deadline: remaining };
    }
    this.#continuation.restart();
    if (this.#numTries > 1 && remaining !== undefined) {
      this.request.timeout = asDuration(remaining);
    }
    return { method: "Generate", message: this.request, deadline: callDeadline(remaining) };
  }

  /**
   * What of a response the caller does not have yet.
   *
   * @throws {OctavoError} DATA_LOSS: the server left tokens out.
   */
  newPart(response: GenerateResponse): GenerateResponse | undefined {
    this.#tryResponded = true;
    this.retries.responded();
    this.complete ||= response.usage !== null;
    return this.#continuation.newPart(response);
  }

  /**
   * Seconds to wait before the next try.
   *
   * @throws {OctavoError} there is none.
   */
  delayAfter(error: OctavoError): number {
    if (this.#resumes && this.#cannotResume(error)) {
      this.#resumes = false;
      return 0;
    }
    if (this.#numTries > 1 && HELD_BY_AN_EARLIER_TRY.has(error.status)) {
      this.#resumes = true;
      return this.retries.delayAfter(error);
    }
    const isFull = error.status === grpc.status.RESOURCE_EXHAUSTED;
    if (!isTransient(error) || (this.#tryResponded && isFull)) {
      throw error;
    }
    // Without a word from the server, nobody knows whether the request has begun.
    this.#resumes ||= this.#tryResponded || !error.fromServer;
    return this.retries.delayAfter(error);
  }

  /** Whether only the whole answer once more helps. Better is to go on with what was noted. */
  #cannotResume(error: OctavoError): boolean {
    const isAway = error.reason === LOG_AWAY && this.retries.outageSeconds() >= LOG_PATIENCE_SECONDS;
    return isAway || CANNOT_RESUME.has(error.status);
  }
}

/**
 * Seconds of the deadline of a call whose server knows the timeout too: a little later than that, so that the server's own
 * word arrives first.
 */
function callDeadline(timeout: number | undefined): number | undefined {
  return timeout === undefined ? undefined : Math.max(timeout, 0) + DEADLINE_MARGIN_SECONDS;
}

/** Gives a request a name, and a seed where it would get a random one: sent again, it gets the same answer. */
function makeRepeatable(request: GenerateRequest & { sampling: SamplingParams }): void {
  request.request_id ||= randomUUID().replaceAll("-", "");
  const { sampling } = request;
  if (sampling.temperature !== 0 && sampling.seed === undefined && sampling.beam_width === undefined) {
    sampling.seed = (randomBytes(8).readBigUInt64LE() >> 1n).toString();
  }
}
