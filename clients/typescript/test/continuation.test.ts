import assert from "node:assert/strict";
import { test } from "node:test";
import { Continuation } from "../src/continuation.js";
import { OctavoError } from "../src/errors.js";
import type { GenerateResponse } from "../src/index.js";

const NO_USAGE = { prompt_tokens: 0, completion_tokens: 0, cached_tokens: 0, prefix_match_end: "PREFIX_MATCH_END_UNSPECIFIED" };

function response(position: number, text: string, more: Partial<GenerateResponse> = {}): GenerateResponse {
  return {
    request_id: "r",
    sequence_index: 0,
    position,
    token_ids: [...text].map((letter) => letter.charCodeAt(0)),
    text,
    logprobs: [],
    finish_reason: "FINISH_REASON_UNSPECIFIED",
    usage: null,
    progress: null,
    ...more,
  };
}

const END: Partial<GenerateResponse> = { finish_reason: "FINISH_REASON_LENGTH" };
const USAGE = { usage: NO_USAGE } as Partial<GenerateResponse>;

/** What a caller gets of responses. */
function parts(continuation: Continuation, ...responses: GenerateResponse[]): (string | undefined)[] {
  return responses.map((each) => continuation.newPart(each)?.text);
}

test("a stream that is resumed goes on where the last one broke", () => {
  const continuation = new Continuation(1);
  assert.deepEqual(parts(continuation, response(0, "ab"), response(2, "c")), ["ab", "c"]);
  assert.deepEqual(continuation.nextPositions(), [3]);
  continuation.resume();
  assert.deepEqual(parts(continuation, response(3, "d", { ...END, ...USAGE })), ["d"]);
});

test("what has arrived is left out of a stream that begins again, however it is cut", () => {
  const continuation = new Continuation(1);
  parts(continuation, response(0, "ab"), response(2, "c"));
  continuation.restart();
  assert.deepEqual(parts(continuation, response(0, "a"), response(1, "bcd")), [undefined, "d"]);
  const [last] = [continuation.newPart(response(4, "e", { ...END, ...USAGE }))];
  assert.deepEqual([last?.position, last?.token_ids, last?.text], [4, [101], "e"]);
});

test("text that comes later than its tokens is not lost", () => {
  const continuation = new Continuation(1);
  continuation.newPart(response(0, "ab", { text: "a" }));
  continuation.restart();
  const part = continuation.newPart(response(0, "abc"));
  assert.deepEqual([part?.position, part?.token_ids, part?.text], [2, [99], "bc"]);
});

test("each of several sequences has its own place", () => {
  const continuation = new Continuation(2);
  parts(continuation, response(0, "ab", { sequence_index: 1 }));
  assert.deepEqual(continuation.nextPositions(), [0, 2]);
  continuation.resume();
  assert.deepEqual(
    parts(continuation, response(0, "x", { ...END }), response(2, "c", { sequence_index: 1, ...END, ...USAGE })),
    ["x", "c"],
  );
});

test("where sequences end in another order the second time, the last end comes with the usage", () => {
  const continuation = new Continuation(2);
  parts(continuation, response(0, "a"), response(0, "x", { sequence_index: 1, ...END }));
  continuation.restart();
  const got = [
    continuation.newPart(response(0, "ab", END)),
    continuation.newPart(response(0, "x", { sequence_index: 1, ...END, ...USAGE })),
  ];
  assert.equal(got[0], undefined);
  assert.deepEqual([got[1]?.sequence_index, got[1]?.text, got[1]?.usage], [0, "b", NO_USAGE]);
});

test("a gap, and tokens that came out otherwise, are errors", () => {
  const continuation = new Continuation(1);
  parts(continuation, response(0, "ab"));
  assert.throws(() => continuation.newPart(response(3, "d")), /DATA_LOSS: sequence 0: token 2 was awaited/);
  continuation.restart();
  assert.throws(() => continuation.newPart(response(0, "ax")), (error) => error instanceof OctavoError);
});

test("progress only grows, and comes before the first token", () => {
  const continuation = new Continuation(1);
  const progress = (computed: number): GenerateResponse =>
    response(0, "", { progress: { computed_tokens: computed, prompt_tokens: 9 } });
  assert.ok(continuation.newPart(progress(4)));
  assert.equal(continuation.newPart(progress(4)), undefined);
  assert.ok(continuation.newPart(progress(8)));
  parts(continuation, response(0, "a"));
  assert.equal(continuation.newPart(progress(9)), undefined);
});
