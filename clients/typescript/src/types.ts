/** What callers give and get. Names of fields are those of the contracts, times are seconds. */

import type { CacheScope } from "./generated/octavo/v1/CacheScope.js";
import type { GenerateResponse__Output } from "./generated/octavo/v1/GenerateResponse.js";
import type { Model__Output } from "./generated/octavo/v1/Model.js";
import type { SamplingParams } from "./generated/octavo/v1/SamplingParams.js";

/** New tokens of one sequence, as in `octavo.v1.GenerateResponse`. */
export type GenerateResponse = GenerateResponse__Output;

/** A model that is served, with its limits, as in `octavo.v1.Model`. */
export type Model = Model__Output;

/** One turn of a conversation. */
export interface Message {
  role: string;
  content: string;
}

/** Who may reuse the keys and values of a prompt. */
export type ScopeLike = "request" | "app" | "tenant" | `shared:${string}` | CacheScope;

/** A part of a prompt with a cache scope of its own; all parts are text, or messages, or token ids. */
export interface Segment {
  content: string | Message | number[];
  /** Absent: the request's. */
  cache_scope?: ScopeLike;
}

/** Text; a conversation; token ids; or any of them in parts. */
export type PromptLike = string | Message[] | number[] | Segment[];

/** What every call takes. */
export interface CallOptions {
  /** Empty: the only model that is served. */
  model?: string;
  /** Seconds that the call may take, all tries together. Absent: no limit. */
  timeout?: number;
  /** Aborting it ends the call, and the request on the server. */
  signal?: AbortSignal;
}

/** Sampling parameters, as in `octavo.v1.SamplingParams`, and what else a request says. */
export interface RequestOptions extends CallOptions, Pick<SamplingParams, SamplingName> {
  /** Chosen by the client where it is absent. */
  request_id?: string;
  /** Higher goes first, where the server's policy reads it. */
  priority?: number;
  cache_scope?: ScopeLike;
  /** Also tell how far a long prompt has been computed. */
  report_progress?: boolean;
  /** Seconds of which tokens come as one response. */
  response_interval?: number;
}

/** A sampling parameter, without what only tells whether an optional one is there. */
type SamplingName = Exclude<keyof SamplingParams, `_${string}`>;

export interface GenerateOptions extends RequestOptions {
  prompt: PromptLike;
}

export interface ChatOptions extends RequestOptions {
  messages: Message[];
}

export type { CacheScope };
