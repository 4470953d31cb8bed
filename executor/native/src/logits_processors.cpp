#include "logits_processors.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace octavo {

namespace {

constexpr int32_t kDone = -1;
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kLimit = std::numeric_limits<float>::max();

bool penalises_output(const SamplingParams& params) { return params.presence != 0 || params.frequency != 0; }

bool penalises(const SamplingParams& params) { return params.repetition != 1 || penalises_output(params); }

bool is_too_early_to_stop(const Draw& draw) {
  return draw.num_output_tokens < draw.params->min_tokens && draw.params->num_stop_tokens > 0;
}

// Keskar et al., "CTRL", arXiv 1909.05858, section 4.1; negative logits multiplied, as everyone does since. The
// smallest penalties would make infinities, whose softmax is no number.
float penalise_repetition(float logit, float penalty) {
  const float after = logit < 0 ? logit * penalty : logit / penalty;
  return after < -kLimit ? -kLimit : after > kLimit ? kLimit : after;
}

// Each token once, however often it comes.
void penalise(const Draw& draw, float* logits, int64_t vocab, int32_t* counts) {
  const SamplingParams& params = *draw.params;
  const int64_t* output = draw.tokens + draw.num_tokens - draw.num_output_tokens;
  const int64_t* end = draw.tokens + draw.num_tokens;
  const int64_t* begin = params.repetition != 1 ? draw.tokens : output;
  const auto is_known = [vocab](int64_t token) { return token >= 0 && token < vocab; };

  if (penalises_output(params))
    for (const int64_t* token = output; token < end; ++token)
      if (is_known(*token)) ++counts[*token];
  for (const int64_t* token = begin; token < end; ++token) {
    if (!is_known(*token) || counts[*token] == kDone) continue;
    const int32_t count = std::exchange(counts[*token], kDone);
    float& logit = logits[*token];
    if (params.repetition != 1) logit = penalise_repetition(logit, static_cast<float>(params.repetition));
    // As in OpenAI's API.
    if (count > 0) logit -= static_cast<float>(params.presence + params.frequency * count);
  }
  for (const int64_t* token = begin; token < end; ++token)
    if (is_known(*token)) counts[*token] = 0;
}

void mask_stop_tokens(const SamplingParams& params, float* logits, int64_t vocab) {
  for (int64_t i = 0; i < params.num_stop_tokens; ++i) {
    const int64_t token = params.stop_tokens[i];
    if (token >= 0 && token < vocab) logits[token] = -kInfinity;
  }
}

// A token that is allowed keeps a number, whatever the model made of it: else one that is not could be chosen.
void mask_disallowed(const uint32_t* allowed, float* logits, int64_t vocab) {
  constexpr int64_t kWord = 32;
  for (int64_t begin = 0; begin < vocab; begin += kWord) {
    const uint32_t word = allowed[begin / kWord];
    const int64_t size = std::min(kWord, vocab - begin);
    float* some = logits + begin;
    if (word == 0) {
      std::fill(some, some + size, -kInfinity);
      continue;
    }
    for (int64_t i = 0; i < size; ++i)
      some[i] = !(word >> i & 1) ? -kInfinity : some[i] > kLimit ? kLimit : some[i] >= -kLimit ? some[i] : -kLimit;
  }
}

}  // namespace

bool changes_logits(const Draw& draw) {
  const SamplingParams& params = *draw.params;
  return params.num_biases > 0 || penalises(params) || is_too_early_to_stop(draw) || params.allowed;
}

void process_logits(const Draw& draw, float* logits, int64_t vocab, int32_t* counts) {
  const SamplingParams& params = *draw.params;
  for (int64_t i = 0; i < params.num_biases; ++i) {
    const int64_t token = params.bias_tokens[i];
    if (token >= 0 && token < vocab) logits[token] += params.biases[i];
  }
  if (penalises(params)) penalise(draw, logits, vocab, counts);
  if (is_too_early_to_stop(draw)) mask_stop_tokens(params, logits, vocab);
  if (params.allowed) mask_disallowed(params.allowed, logits, vocab);
}

}  // namespace octavo
