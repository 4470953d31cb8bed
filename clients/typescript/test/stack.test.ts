/** Against a real stack, which tests/services/e2e/test_typescript.py starts. */

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { after, test } from "node:test";
import { status } from "@grpc/grpc-js";
import { type GenerateOptions, type GenerateResponse, OctavoClient, OctavoError } from "../src/index.js";

/** Two gateways that share a Redis; the process id of the first, which is killed in the end. */
const addresses = process.env["OCTAVO_ADDRESSES"]?.split(",");
const pid = Number(process.env["OCTAVO_GATEWAY_PID"]);
/** One over TLS that asks for a key. */
const secure = {
  address: process.env["OCTAVO_TLS_ADDRESS"] ?? "",
  ca: process.env["OCTAVO_TLS_CA"] ?? "",
  key: process.env["OCTAVO_TLS_KEY"] ?? "",
};

const skip = addresses ? false : "OCTAVO_ADDRESSES names no stack";
const client = new OctavoClient(addresses);
after(() => client.close());

const LONG = { max_tokens: 400, ignore_eos: true };

interface Sequence {
  tokenIds: number[];
  text: string;
  reason: string;
}

/** Puts sequences together, and checks that nothing is missing, repeated or after the end. */
class Answer {
  sequences: Record<number, Sequence> = {};
  usage: GenerateResponse["usage"] = null;

  add(response: GenerateResponse): void {
    assert.equal(this.usage, null, "a response after the one with the usage");
    const sequence = (this.sequences[response.sequence_index] ??= { tokenIds: [], text: "", reason: "" });
    assert.equal(response.position, sequence.tokenIds.length);
    sequence.tokenIds.push(...response.token_ids);
    sequence.text += response.text;
    if (response.finish_reason !== "FINISH_REASON_UNSPECIFIED") {
      sequence.reason = response.finish_reason;
    }
    this.usage = response.usage;
  }

  get numTokens(): number {
    return Math.min(...Object.values(this.sequences).map((sequence) => sequence.tokenIds.length), Infinity);
  }
}

async function ask(options: GenerateOptions, onResponse: (answer: Answer) => void = () => {}): Promise<Answer> {
  const answer = new Answer();
  for await (const response of client.generate(options)) {
    answer.add(response);
    onResponse(answer);
  }
  assert.ok(answer.usage, "the stream ended silently");
  return answer;
}

function failure(options: GenerateOptions): Promise<OctavoError> {
  return ask(options).then(
    () => assert.fail("it did not fail"),
    (error: unknown) => {
      assert.ok(error instanceof OctavoError, String(error));
      return error;
    },
  );
}

test("models and tokens", { skip }, async () => {
  const [model] = await client.models();
  assert.equal(model?.name, "tiny");
  assert.equal(model?.max_model_len, 512);
  const tokens = await client.tokenize("A printer folds a sheet");
  assert.ok(tokens.length > 3 && tokens.every(Number.isInteger));
  const [byText, byTokens] = await Promise.all(
    ["A printer folds a sheet", tokens].map((prompt) => ask({ prompt, temperature: 0, max_tokens: 8 })),
  );
  assert.deepEqual(byText?.sequences, byTokens?.sequences);
});

test("an answer is streamed, and its last response has the usage", { skip }, async () => {
  let responses = 0;
  const asked = { prompt: "fold it twice", temperature: 0, max_tokens: 64, ignore_eos: true, response_interval: 0 };
  const answer = await ask(asked, () => (responses += 1));
  assert.ok(responses > 1);
  assert.equal(answer.sequences[0]?.reason, "FINISH_REASON_LENGTH");
  assert.equal(answer.sequences[0]?.tokenIds.length, 64);
  assert.equal(answer.usage?.completion_tokens, 64);
});

test("a conversation", { skip }, async () => {
  const messages = [{ role: "user", content: "what is a quarto?" }];
  const texts: string[] = [];
  for await (const { text } of client.chat({ messages, temperature: 0, max_tokens: 8, ignore_eos: true })) {
    texts.push(text);
  }
  const whole = await ask({ prompt: messages, temperature: 0, max_tokens: 8, ignore_eos: true });
  assert.equal(texts.join(""), whole.sequences[0]?.text);
});

test("log probabilities and large seeds arrive", { skip }, async () => {
  const asked = { prompt: "x", max_tokens: 4, n: 2, logprobs: 1, seed: "18446744073709551615" };
  const answers = [new Answer(), new Answer()];
  for (const answer of answers) {
    for await (const response of client.generate(asked)) {
      assert.equal(response.logprobs.length, response.token_ids.length);
      answer.add(response);
    }
  }
  assert.deepEqual(answers[0]?.sequences, answers[1]?.sequences);
});

test("a guide is followed", { skip }, async () => {
  const choices = ["folio", "quarto", "octavo"];
  const answer = await ask({ prompt: "folded three times", guide: { choice: { choices } } });
  assert.ok(choices.includes(answer.sequences[0]?.text ?? ""), answer.sequences[0]?.text);
});

test("errors name the field", { skip }, async () => {
  const error = await failure({ prompt: "x", max_tokens: 0 });
  assert.deepEqual(
    [error.status, error.field, error.reason, error.fromServer],
    [status.INVALID_ARGUMENT, "sampling.max_tokens", "INVALID_ARGUMENT", true],
  );
  assert.match(error.message, /^INVALID_ARGUMENT: sampling.max_tokens: must be at least 1/);
  await assert.rejects(client.tokenize("x", { model: "other" }), { status: status.NOT_FOUND, field: "model" });
});

test("a request ends with its timeout", { skip }, async () => {
  const error = await failure({ prompt: "x", n: 8, timeout: 0.05, ...LONG });
  assert.equal(error.status, status.DEADLINE_EXCEEDED);
});

test("nobody is there", { skip }, async () => {
  const nowhere = new OctavoClient("127.0.0.1:1", { retry: { startPatience: 0.3 } });
  await assert.rejects(nowhere.models(), { status: status.UNAVAILABLE, fromServer: false });
  await assert.rejects(nowhere.models({ signal: AbortSignal.abort() }), { name: "AbortError" });
  const leaving = nowhere.models({ signal: AbortSignal.timeout(100) });
  await assert.rejects(leaving, { name: "TimeoutError" });
  nowhere.close();
});

test("an abort ends the stream", { skip }, async () => {
  const controller = new AbortController();
  const asked = { prompt: "left", n: 8, signal: controller.signal, ...LONG };
  await assert.rejects(
    ask(asked, () => controller.abort()),
    { name: "AbortError" },
  );
  await assert.rejects(ask(asked), { name: "AbortError" });
});

test("leaving the loop, or closing the client, ends the stream", { skip }, async () => {
  for await (const response of client.generate({ prompt: "left", n: 8, ...LONG })) {
    assert.ok(response.request_id);
    break;
  }
  const other = new OctavoClient(addresses);
  await assert.rejects(
    async () => {
      for await (const _ of other.generate({ prompt: "closed", n: 8, ...LONG })) {
        other.close();
      }
    },
    { name: "OctavoError", status: status.CANCELLED },
  );
});

test("over TLS, with a key", { skip }, async () => {
  const tls = { ca: readFileSync(secure.ca) };
  const nobody = new OctavoClient(secure.address, { tls });
  await assert.rejects(nobody.models(), { status: status.UNAUTHENTICATED });
  nobody.close();
  const somebody = new OctavoClient(secure.address, { tls, apiKey: secure.key });
  assert.equal((await somebody.models()).length, 1);
  somebody.close();
  const stranger = new OctavoClient(secure.address, { tls: true, apiKey: secure.key, retry: null });
  await assert.rejects(stranger.models(), { status: status.UNAVAILABLE, fromServer: false });
  stranger.close();
  assert.throws(() => new OctavoClient(secure.address, { apiKey: "two words" }), /apiKey/);
});

test("a gateway is killed and the streams go on at another one", { skip }, async () => {
  const requests: GenerateOptions[] = [
    { prompt: "greedy one", temperature: 0, ...LONG },
    { prompt: "seeded", temperature: 0.8, seed: 21, ...LONG },
    { prompt: "three seeded", n: 3, seed: 22, logprobs: 1, ...LONG },
    { prompt: "stops", seed: 23, stop: ["never said at all"], ...LONG },
  ];
  const undisturbed = await Promise.all(requests.map((request) => ask(request)));
  const arrived = requests.map(() => 0);
  let killedAfter: number[] | undefined;
  const disturbed = await Promise.all(
    requests.map((request, index) =>
      ask(request, (answer) => {
        arrived[index] = answer.numTokens;
        if (!killedAfter && arrived.every((count) => count >= 20)) {
          killedAfter = [...arrived];
          process.kill(pid, "SIGKILL");
        }
      }),
    ),
  );
  assert.ok(killedAfter?.every((count) => count < LONG.max_tokens), `killed after ${killedAfter}`);
  assert.deepEqual(
    disturbed.map((answer) => answer.sequences),
    undisturbed.map((answer) => answer.sequences),
  );
});
