import assert from "node:assert/strict";
import { test } from "node:test";
import { status } from "@grpc/grpc-js";
import { OctavoError } from "../src/errors.js";
import { Generation } from "../src/generation.js";
import { generateRequest } from "../src/messages.js";
import { DEFAULT_RETRIES, Retries } from "../src/retries.js";

const AWAY = new OctavoError(status.UNAVAILABLE, "no connection", { fromServer: false });
const FULL = new OctavoError(status.RESOURCE_EXHAUSTED, "the queue is full", { retryAfter: 3 });
const TOKEN = {
  request_id: "r",
  sequence_index: 0,
  position: 0,
  token_ids: [1],
  text: "a",
  logprobs: [],
  finish_reason: "FINISH_REASON_UNSPECIFIED",
  usage: null,
  progress: null,
} as const;

class Clock {
  now = 100;

  retries(timeout?: number, numAddresses = 1): Retries {
    return new Retries(DEFAULT_RETRIES, timeout, numAddresses, () => this.now, () => 1);
  }
}

test("waits grow up to a limit, and a call that has had no response is given up", () => {
  const clock = new Clock();
  const retries = clock.retries();
  const delays: number[] = [];
  assert.throws(() => {
    for (;;) {
      const delay = retries.delayAfter(AWAY);
      delays.push(delay);
      clock.now += delay;
    }
  }, AWAY);
  assert.deepEqual(delays.slice(0, 7), [0.1, 0.2, 0.4, 0.8, 1.6, 2, 2]);
  assert.ok(clock.now <= 110);
});

test("each address is tried before any wait", () => {
  const retries = new Clock().retries(undefined, 3);
  assert.deepEqual([1, 2, 3, 4].map(() => retries.delayAfter(AWAY)), [0, 0, 0.1, 0]);
});

test("a server's word on when to come again is followed, within the timeout", () => {
  const clock = new Clock();
  assert.equal(clock.retries().delayAfter(FULL), 3.1);
  assert.throws(() => clock.retries(2).delayAfter(FULL), FULL);
  const late = clock.retries(2);
  assert.equal(late.delayAfter(AWAY), 0.1);
  clock.now += 3;
  assert.throws(() => late.delayAfter(AWAY), /DEADLINE_EXCEEDED: timeout: not done within 2 s; the last try ended/);
});

test("without a policy there is one try", () => {
  assert.throws(() => new Retries(null, undefined, 2).delayAfter(AWAY), AWAY);
});

test("what has begun is resumed, and repeated with the same seed where nobody knows it any more", () => {
  const generation = new Generation(generateRequest({ prompt: "x" }), new Clock().retries());
  const first = generation.nextCall();
  assert.equal(first.method, "Generate");
  assert.ok(first.message.request_id);
  generation.newPart({ ...TOKEN, token_ids: [...TOKEN.token_ids], logprobs: [] });
  generation.delayAfter(AWAY);
  assert.deepEqual(generation.nextCall(), {
    method: "Resume",
    message: { request_id: first.message.request_id, from_token: [1] },
    deadline: undefined,
  });
  assert.equal(generation.delayAfter(new OctavoError(status.NOT_FOUND, "there is no such request")), 0);
  const third = generation.nextCall();
  assert.equal(third.method, "Generate");
  assert.ok(third.method === "Generate" && BigInt(third.message.sampling?.seed as string) >= 0n);
});

test("a greedy request needs no seed; a refusal is not tried again", () => {
  const generation = new Generation(generateRequest({ prompt: "x", temperature: 0 }), new Clock().retries());
  const call = generation.nextCall();
  assert.ok(call.method === "Generate" && call.message.sampling?.seed === undefined);
  const refusal = new OctavoError(status.INVALID_ARGUMENT, "sampling.n: must be less", { field: "sampling.n" });
  assert.throws(() => generation.delayAfter(refusal), refusal);
});

test("options that are none are named", () => {
  // @ts-expect-error: there is none.
  assert.throws(() => generateRequest({ prompt: "x", temprature: 0 }), /there is no option temprature/);
  // @ts-expect-error: a prompt is of one kind.
  assert.throws(() => generateRequest({ prompt: ["x", 3] }), /prompt: must be all/);
  // @ts-expect-error: there is none.
  assert.throws(() => generateRequest({ prompt: "x", cache_scope: "world" }), /cache_scope: must be/);
});

test("prompts and scopes of every kind", () => {
  const scoped = generateRequest({
    prompt: [{ content: "a", cache_scope: "shared:docs" }, { content: "b" }],
    cache_scope: "app",
    timeout: 1.5,
  });
  assert.deepEqual(scoped.prompt, {
    segmented: { segments: [{ text: "a", cache_scope: { shared: "docs" } }, { text: "b" }] },
  });
  assert.deepEqual([scoped.cache_scope, scoped.timeout], [{ app: {} }, { seconds: 1, nanos: 5e8 }]);
  assert.deepEqual(generateRequest({ prompt: [1, 2] }).prompt, { tokens: { token_ids: [1, 2] } });
  const message = { role: "user", content: "hello" };
  assert.deepEqual(generateRequest({ prompt: [message] }).prompt, { chat: { messages: [message] } });
});
