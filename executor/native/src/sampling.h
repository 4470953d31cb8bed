// Choosing tokens from logits, as `executor.sampling` defines it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "team.h"

namespace octavo {

// [rows][stride] floats of which the first `vocab` of each row are logits. Never written.
struct Logits {
  const float* data;
  int64_t stride;
  int64_t vocab;
};

// How one sequence's tokens are chosen. Token ids outside the vocabulary are passed over.
struct SamplingParams {
  double temperature;  // 0: the most likely token
  double top_p;        // 1: all
  int64_t top_k;       // 0: all
  double min_p;        // 0: all
  double presence;
  double frequency;
  double repetition;  // 1: none
  int64_t num_biases;
  const int64_t* bias_tokens;
  const float* biases;
  int64_t min_tokens;
  int64_t num_stop_tokens;
  const int64_t* stop_tokens;
  const uint32_t* allowed;  // a bit for each token, lowest first: those that a guide allows; null: all
};

enum class Purpose : int64_t {
  kToken = 0,            // choose a token
  kTokenAndLogprob = 1,  // and report its log probability and the `num_top` most likely tokens
  kCandidates = 2,       // choose none; report the `num_top` most likely tokens after bias, penalties and mask
};

struct Draw {
  const SamplingParams* params;
  Purpose purpose;
  int64_t num_top;  // at most `vocab`
  int64_t row;      // of the logits; several draws may share one
  double uniform;   // in [0, 1); read only where the temperature is not 0
  // Prompt and output so far; read only where a penalty or `min_tokens` looks at them.
  const int64_t* tokens;
  int64_t num_tokens;
  int64_t num_output_tokens;
};

// What comes out; entry i of draw i.
struct Choices {
  int64_t* tokens;
  float* logprobs;
  // [draws][width], most likely first, of equal ones lower ids first; `num_top` of each row are written.
  int64_t width;
  int64_t* top_tokens;
  float* top_logprobs;
};

// Memory that `choose` needs for each thread, in bytes, a multiple of 64. Zeroed before the first call, and left alone
// between calls.
size_t sampling_workspace_bytes(int64_t vocab);

// Every draw depends on its own row of logits and its own numbers alone, bit by bit. NaN is never the largest; where
// the largest logit is infinite, or there is none, the first of the largest is chosen, and token 0 if all are NaN.
// workspace: of each thread of the crew one after another.
void choose(Crew& crew, const Logits& logits, const Draw* draws, int64_t num_draws, uint8_t* workspace,
            const Choices& choices);

}  // namespace octavo
