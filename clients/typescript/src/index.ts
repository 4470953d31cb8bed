export { type ClientOptions, DEFAULT_ADDRESS, OctavoClient } from "./client.js";
export { OctavoError } from "./errors.js";
export { DEFAULT_RETRIES, type RetryPolicy } from "./retries.js";
export type {
  CacheScope,
  CallOptions,
  ChatOptions,
  GenerateOptions,
  GenerateResponse,
  Message,
  Model,
  PromptLike,
  RequestOptions,
  ScopeLike,
  Segment,
} from "./types.js";
