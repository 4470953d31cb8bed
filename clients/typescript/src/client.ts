/** The client. */

import { setTimeout as sleep } from "node:timers/promises";
import * as grpc from "@grpc/grpc-js";
import { isServiceError, OctavoError } from "./errors.js";
import { Gateways } from "./gateways.js";
import type { GenerateRequest } from "./generated/octavo/v1/GenerateRequest.js";
import type { SamplingParams } from "./generated/octavo/v1/SamplingParams.js";
import { Generation, type NextCall } from "./generation.js";
import { asPrompt, generateRequest } from "./messages.js";
import { openStub, type Stub } from "./protos.js";
import { DEFAULT_RETRIES, isAboutOneServer, isTransient, Retries, type RetryPolicy } from "./retries.js";
import type { CallOptions, ChatOptions, GenerateOptions, GenerateResponse, Model, PromptLike } from "./types.js";

export const DEFAULT_ADDRESS = "127.0.0.1:50051";

const CHANNEL_OPTIONS: grpc.ChannelOptions = {
  "grpc.initial_reconnect_backoff_ms": 100,
  "grpc.max_reconnect_backoff_ms": 2000,
  // A server that does not answer this for so long is gone, though the connection seems open.
  "grpc.keepalive_time_ms": 5000,
  "grpc.keepalive_timeout_ms": 5000,
};

export interface ClientOptions {
  /** Who is calling: sent as a bearer token. */
  apiKey?: string;
  /** Sent with each call, by lower-case name. */
  metadata?: Record<string, string>;
  /** true: over TLS, with the authorities that Node knows; or those to trust instead, as PEM. */
  tls?: boolean | { ca: string | Buffer };
  /** What differs from `DEFAULT_RETRIES`; null: nothing is tried twice. */
  retry?: Partial<RetryPolicy> | null;
}

/**
 * Calls Octavo.
 *
 *     const client = new OctavoClient(["gateway-a:50051", "gateway-b:50051"]);
 *     for await (const response of client.generate({ prompt: "The sky is", max_tokens: 20 })) {
 *       process.stdout.write(response.text);
 *     }
 *     client.close();
 */
export class OctavoClient {
  readonly #gateways: Gateways;
  readonly #metadata: grpc.Metadata;
  readonly #policy: Readonly<RetryPolicy> | null;
  readonly #running = new Set<Running>();
  #closed = false;

  /** @param addresses `host:port`, one or several in order of preference. */
  constructor(addresses: string | readonly string[] = DEFAULT_ADDRESS, options: ClientOptions = {}) {
    const [first, ...others] = typeof addresses === "string" ? [addresses] : addresses;
    if (first === undefined) {
      throw new TypeError("addresses: at least one is needed");
    }
    const credentials = credentialsOf(options.tls ?? false);
    const open = (address: string): Stub => openStub(address, credentials, CHANNEL_OPTIONS);
    this.#gateways = new Gateways([open(first), ...others.map(open)]);
    this.#metadata = metadataOf(options);
    this.#policy = options.retry === null ? null : { ...DEFAULT_RETRIES, ...options.retry };
  }

  /**
   * Streams an answer. Leaving the loop ends the request on the server.
   *
   * A stream that breaks goes on with another address, or with the same one when it is back, without a gap or a repeat.
   *
   * @throws {OctavoError} the request was refused or broke off.
   * @throws {TypeError} there is no such option.
   */
  generate(options: GenerateOptions): AsyncGenerator<GenerateResponse, void, undefined> {
    return this.#stream(generateRequest(options), options);
  }

  /** Streams the next turn of a conversation, as `generate` does. */
  chat({ messages, ...options }: ChatOptions): AsyncGenerator<GenerateResponse, void, undefined> {
    return this.generate({ ...options, prompt: messages });
  }

  /** Token ids of a prompt, as `generate` would see them. */
  async tokenize(prompt: PromptLike, options: CallOptions = {}): Promise<number[]> {
    const request = { model: options.model ?? "", prompt: asPrompt(prompt) };
    const response = await this.#call<{ token_ids: number[] }>(options, (stub, deadline, done) =>
      stub.Tokenize(request, this.#metadata, { deadline }, done),
    );
    return response.token_ids;
  }

  /** The models that are served, with their limits. */
  async models(options: Omit<CallOptions, "model"> = {}): Promise<Model[]> {
    const response = await this.#call<{ models: Model[] }>(options, (stub, deadline, done) =>
      stub.ListModels({}, this.#metadata, { deadline }, done),
    );
    return response.models;
  }

  /** Ends every call and the connections. */
  close(): void {
    this.#closed = true;
    for (const call of this.#running) {
      call.cancel();
    }
    this.#gateways.close();
  }

  async *#stream(
    request: GenerateRequest & { sampling: SamplingParams },
    { timeout, signal }: CallOptions,
  ): AsyncGenerator<GenerateResponse, void, undefined> {
    const generation = new Generation(request, this.#retries(timeout));
    for (;;) {
      signal?.throwIfAborted();
      const stub = this.#gateways.current;
      const call = this.#start(stub, generation.nextCall());
      const end = this.#enter(call, signal);
      let delay: number;
      try {
        for await (const response of call) {
          signal?.throwIfAborted();
          const part = generation.newPart("response" in response ? response.response : response);
          if (part) {
            yield part;
          }
        }
        return;
      } catch (error) {
        signal?.throwIfAborted();
        if (!isServiceError(error)) {
          throw error;
        }
        if (generation.complete) {
          return;
        }
        delay = this.#after(error, stub, (failure) => generation.delayAfter(failure));
      } finally {
        end();
        call.cancel();
      }
      await pause(delay, signal);
    }
  }

  #start(stub: Stub, next: NextCall): Stream {
    const options = { deadline: deadlineIn(next.deadline) };
    const call =
      next.method === "Resume"
        ? stub.Resume(next.message, this.#metadata, options)
        : stub.Generate(next.message, this.#metadata, options);
    // What comes when nobody reads any more is of no interest.
    call.on("error", () => {});
    return call as unknown as Stream;
  }

  async #call<Response>(
    { timeout, signal }: CallOptions,
    start: (stub: Stub, deadline: number, done: Done) => grpc.ClientUnaryCall,
  ): Promise<Response> {
    const retries = this.#retries(timeout);
    for (let tries = 0; ; tries += 1) {
      signal?.throwIfAborted();
      if (tries) {
        retries.checkTimeout();
      }
      const stub = this.#gateways.current;
      const deadline = deadlineIn(retries.remaining());
      try {
        return (await this.#unary((done) => start(stub, deadline, done), signal)) as Response;
      } catch (error) {
        signal?.throwIfAborted();
        if (!isServiceError(error)) {
          throw error;
        }
        const delay = this.#after(error, stub, (failure) => {
          if (!isTransient(failure)) {
            throw failure;
          }
          return retries.delayAfter(failure);
        });
        await pause(delay, signal);
      }
    }
  }

  #unary(start: (done: Done) => grpc.ClientUnaryCall, signal: AbortSignal | undefined): Promise<unknown> {
    return new Promise((resolve, reject) => {
      const call = start((error, value) => {
        end();
        if (error) {
          reject(error);
        } else {
          resolve(value);
        }
      });
      const end = this.#enter(call, signal);
    });
  }

  /** From here on a call ends with the client, and when the signal says so. Returns what is to be called at its end. */
  #enter(call: Running, signal: AbortSignal | undefined): () => void {
    const cancel = (): void => call.cancel();
    this.#running.add(call);
    signal?.addEventListener("abort", cancel);
    return () => {
      this.#running.delete(call);
      signal?.removeEventListener("abort", cancel);
    };
  }

  #retries(timeout: number | undefined): Retries {
    return new Retries(this.#policy, timeout, this.#gateways.count);
  }

  /** Seconds to wait before the next try; throws where there is none. */
  #after(failure: grpc.ServiceError, stub: Stub, delayAfter: (error: OctavoError) => number): number {
    const error = OctavoError.fromRpc(failure);
    if (this.#closed) {
      throw error;
    }
    if (isAboutOneServer(error)) {
      this.#gateways.leave(stub);
    }
    return delayAfter(error);
  }
}

interface Running {
  cancel(): void;
}

/** A stream of either method. */
interface Stream extends AsyncIterable<GenerateResponse | { response: GenerateResponse }>, Running {}

type Done = (error: grpc.ServiceError | null, value?: unknown) => void;

async function pause(seconds: number, signal: AbortSignal | undefined): Promise<void> {
  try {
    await sleep(seconds * 1000, undefined, { signal });
  } catch (error) {
    signal?.throwIfAborted();
    throw error;
  }
}

/** A call's deadline, in milliseconds of the clock; without a limit it never comes. */
function deadlineIn(seconds: number | undefined): number {
  return seconds === undefined ? Infinity : Date.now() + seconds * 1000;
}

function credentialsOf(tls: boolean | { ca: string | Buffer }): grpc.ChannelCredentials {
  if (typeof tls === "boolean") {
    return tls ? grpc.credentials.createSsl() : grpc.credentials.createInsecure();
  }
  return grpc.credentials.createSsl(Buffer.from(tls.ca as string));
}

function metadataOf({ apiKey, metadata }: ClientOptions): grpc.Metadata {
  const made = new grpc.Metadata();
  for (const [name, value] of Object.entries(metadata ?? {})) {
    made.set(name, value);
  }
  if (apiKey !== undefined) {
    if (!/^[!-~]+$/.test(apiKey)) {
      throw new TypeError("apiKey: must be visible ASCII characters without spaces");
    }
    made.set("authorization", `Bearer ${apiKey}`);
  }
  return made;
}
