/** Requests from what callers give. */

import type { Duration } from "./generated/google/protobuf/Duration.js";
import type { CacheScope } from "./generated/octavo/v1/CacheScope.js";
import type { GenerateRequest } from "./generated/octavo/v1/GenerateRequest.js";
import type { Prompt } from "./generated/octavo/v1/Prompt.js";
import type { SamplingParams } from "./generated/octavo/v1/SamplingParams.js";
import type { Segment as SegmentMessage } from "./generated/octavo/v1/Segment.js";
import { fieldsOf } from "./protos.js";
import type { GenerateOptions, Message, PromptLike, ScopeLike, Segment } from "./types.js";

const SAMPLING_NAMES = fieldsOf("SamplingParams");

/**
 * The message that asks for an answer.
 *
 * @throws {TypeError} there is no such option, scope, or kind of prompt.
 */
export function generateRequest(options: GenerateOptions): GenerateRequest & { sampling: SamplingParams } {
  const { prompt, model, timeout, request_id, priority, cache_scope, report_progress, response_interval, ...rest } =
    options;
  const { signal: _, ...sampling } = rest;
  for (const name of Object.keys(sampling)) {
    if (!SAMPLING_NAMES.has(name)) {
      throw new TypeError(`there is no option ${name}`);
    }
  }
  return {
    model: model ?? "",
    prompt: asPrompt(prompt),
    sampling,
    request_id: request_id ?? "",
    priority: priority ?? 0,
    report_progress: report_progress ?? false,
    ...(timeout === undefined ? {} : { timeout: asDuration(timeout) }),
    ...(cache_scope === undefined ? {} : { cache_scope: asScope(cache_scope) }),
    ...(response_interval === undefined ? {} : { response_interval: asDuration(response_interval) }),
  };
}

/** Text, a conversation, token ids, or parts of them, as a message. */
export function asPrompt(prompt: PromptLike): Prompt {
  if (typeof prompt === "string") {
    return { text: prompt };
  }
  if (!Array.isArray(prompt)) {
    throw new TypeError("prompt: must be text, messages, token ids or segments");
  }
  const items: (Message | number | Segment)[] = prompt;
  if (items.every((item): item is number => typeof item === "number")) {
    return { tokens: { token_ids: items } };
  }
  if (items.every((item): item is Message => typeof item === "object" && "role" in item)) {
    return { chat: { messages: items } };
  }
  if (items.every((item): item is Segment => typeof item === "object" && "content" in item && !("role" in item))) {
    return { segmented: { segments: items.map(asSegment) } };
  }
  throw new TypeError("prompt: must be all messages, all token ids or all segments");
}

function asSegment({ content, cache_scope }: Segment): SegmentMessage {
  const scope = cache_scope === undefined ? {} : { cache_scope: asScope(cache_scope) };
  if (typeof content === "string") {
    return { text: content, ...scope };
  }
  return Array.isArray(content) ? { tokens: { token_ids: content }, ...scope } : { message: content, ...scope };
}

function asScope(scope: ScopeLike): CacheScope {
  if (typeof scope !== "string") {
    return scope;
  }
  if (scope === "request" || scope === "app" || scope === "tenant") {
    return { [scope]: {} };
  }
  if (scope.startsWith("shared:")) {
    return { shared: scope.slice("shared:".length) };
  }
  throw new TypeError(`cache_scope: must be request, app, tenant or shared:NAME, not ${scope}`);
}

/** Seconds as a message. */
export function asDuration(seconds: number): Duration {
  const whole = Math.trunc(seconds);
  return { seconds: whole, nanos: Math.round((seconds - whole) * 1e9) };
}
