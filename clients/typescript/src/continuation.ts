/** One answer out of several streams: what has arrived of it, and what of a response is new. */

import * as grpc from "@grpc/grpc-js";
import { OctavoError } from "./errors.js";
import type { GenerateResponse } from "./types.js";

/** What has arrived of one sequence. */
class Sequence {
  tokenIds: number[] = [];
  textLength = 0;
  /** Whether its finish reason has come. */
  ended = false;
  /** Where in its text the present stream is: before `textLength` where the stream began with the first token again. */
  streamTextLength = 0;
}

/**
 * Puts the streams of one request together to one, without a gap or a repeat.
 *
 * All streams give each sequence the same tokens and the same text, but how these are cut into responses may differ:
 * tokens are told apart by position, text by how much of it there was. In a stream that began again sequences may end in
 * another order: the response that ends the last one is held until the usage is here, so that both come together.
 */
export class Continuation {
  readonly #sequences = new Map<number, Sequence>();
  #computedPromptTokens = 0;
  #beganAgain = false;
  #last: GenerateResponse | undefined;

  /** @param numSequences of the request. */
  constructor(private readonly numSequences: number) {}

  /** For each sequence by its index, the position of the first token that has not arrived. */
  nextPositions(): number[] {
    const count = Math.max(-1, ...this.#sequences.keys()) + 1;
    return Array.from({ length: count }, (_, index) => this.#sequences.get(index)?.tokenIds.length ?? 0);
  }

  /** The next response is of a stream that begins with each sequence's first token. */
  restart(): void {
    for (const sequence of this.#sequences.values()) {
      this.#beganAgain = true;
      sequence.streamTextLength = 0;
    }
  }

  /** The next response is of a stream that begins at `nextPositions`. */
  resume(): void {
    for (const sequence of this.#sequences.values()) {
      sequence.streamTextLength = sequence.textLength;
    }
  }

  /**
   * What of a response has not arrived before: the response itself, a shorter one, or undefined.
   *
   * @throws {OctavoError} DATA_LOSS: tokens are missing before it, or came out otherwise before.
   */
  newPart(response: GenerateResponse): GenerateResponse | undefined {
    if (response.progress) {
      return this.#isNewProgress(response.progress.computed_tokens) ? response : undefined;
    }
    let sequence = this.#sequences.get(response.sequence_index);
    if (sequence === undefined) {
      sequence = new Sequence();
      this.#sequences.set(response.sequence_index, sequence);
    }
    const knownTokens = countKnown(sequence, response);
    const knownText = sequence.textLength - sequence.streamTextLength;
    const hadEnded = sequence.ended;
    sequence.streamTextLength += response.text.length;
    sequence.textLength = Math.max(sequence.textLength, sequence.streamTextLength);
    sequence.tokenIds.push(...response.token_ids.slice(knownTokens));
    const ends = response.finish_reason !== "FINISH_REASON_UNSPECIFIED";
    sequence.ended ||= ends;
    const isKnown = knownTokens > 0 || knownText > 0 || hadEnded;
    const part = isKnown ? withoutKnown(response, knownTokens, knownText, ends && !hadEnded) : response;
    return part && this.#beganAgain && ends ? this.#withUsage(part) : part;
  }

  /** A sequence's end, or undefined while it is the request's last response and has no usage yet. */
  #withUsage(part: GenerateResponse): GenerateResponse | undefined {
    if (part.usage) {
      return this.#last ? { ...this.#last, usage: part.usage } : part;
    }
    const ended = [...this.#sequences.values()].filter((sequence) => sequence.ended).length;
    if (ended < this.numSequences) {
      return part;
    }
    this.#last = part;
    return undefined;
  }

  #isNewProgress(computedTokens: number): boolean {
    if (this.#sequences.size || computedTokens <= this.#computedPromptTokens) {
      return false;
    }
    this.#computedPromptTokens = computedTokens;
    return true;
  }
}

/** How many tokens from the response's position on have arrived before; it may have fewer. */
function countKnown(sequence: Sequence, response: GenerateResponse): number {
  const arrived = sequence.tokenIds;
  const known = arrived.length - response.position;
  if (known < 0) {
    throw lost(response, `token ${arrived.length} was awaited, and the server went on with ${response.position}`);
  }
  const repeated = response.token_ids.slice(0, known);
  if (repeated.some((token, index) => token !== arrived[response.position + index])) {
    throw lost(response, "the second try gave other tokens than the first, which are with the caller");
  }
  return known;
}

function lost(response: GenerateResponse, why: string): OctavoError {
  return new OctavoError(grpc.status.DATA_LOSS, `sequence ${response.sequence_index}: ${why}`);
}

/** A response without its first tokens and characters; undefined where that leaves nothing. */
function withoutKnown(
  response: GenerateResponse,
  knownTokens: number,
  knownText: number,
  isNewEnd: boolean,
): GenerateResponse | undefined {
  const hasMore = response.token_ids.length > knownTokens || response.text.length > knownText;
  if (!hasMore && !isNewEnd && !response.usage) {
    return undefined;
  }
  return {
    ...response,
    position: response.position + knownTokens,
    token_ids: response.token_ids.slice(knownTokens),
    logprobs: response.logprobs.slice(knownTokens),
    text: response.text.slice(knownText),
  };
}
