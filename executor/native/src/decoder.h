// A decoder-only transformer over the rows of a step, all layers in one call.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "attention.h"
#include "linear.h"
#include "phase_clock.h"
#include "team.h"

namespace octavo {

enum class NormKind : int32_t { kRms = 0, kLayer = 1 };

struct NormWeights {
  const float* weight;  // [hidden], or null where it has none
  const float* bias;    // [hidden], or null
};

struct LayerWeights {
  NormWeights attention_norm;
  NormWeights mlp_norm;
  Linear qkv;  // queries, then keys, then values
  Linear attention_out;
  Linear mlp_in;
  Linear mlp_out;
};

// As `executor.description.DecoderDescription`; the pointers belong to the caller and outlive the decoder.
struct DecoderModel {
  int64_t vocab_size;
  int64_t hidden_size;
  int64_t embedding_size;
  int64_t intermediate_size;  // inputs of mlp_out
  int64_t num_layers;
  int64_t rotary_dim;       // 0: positions are learned
  int64_t position_offset;  // row of position 0 in the learned positions
  NormKind norm;
  float norm_epsilon;
  int32_t norm_first;  // before or after each half of a layer
  int32_t has_final_norm;
  Epilogue activation;  // of mlp_in
  AttentionParams attention;
  Linear embedding;   // [vocab_size][embedding_size]; its rows are the tokens' embeddings
  Linear head;        // [vocab_size][embedding_size]
  Linear project_in;  // weights null where embedding_size is hidden_size
  Linear project_out;
  const float* position_embedding;  // [positions][hidden_size], or null
  NormWeights final_norm;
  const LayerWeights* layers;
};

struct DecoderStep {
  int64_t num_rows;
  const int64_t* counts;         // [rows] new tokens of each row, at least 1
  const int64_t* contexts;       // [rows] tokens of its sequence up to and including them
  const int64_t* const* tables;  // [rows] block ids
  const int64_t* const* tokens;  // [rows] ids of the new tokens
  const int64_t* sampled;        // [samples] indices of the tokens, in the flat token dimension, whose logits are
                                 // wanted, in ascending order; the last tokens of their rows, or all tokens
  int64_t num_sampled;
  // Cosines and sines [...][rotary_dim / 2], a row for each position, or, where `angles_by_token`, for each token of
  // the step.
  const float* cosines;
  const float* sines;
  int32_t angles_by_token;
  float* logits;  // [samples][vocab_size]
};

class Decoder {
 public:
  Decoder(const DecoderModel& model, const KvCache& first_layer, int64_t layer_stride);
  ~Decoder();

  // Writes the tokens' keys and values, then computes the logits of the sampled ones. Allocates only where a step is
  // larger than all before. Returns false where there is no memory for it; nothing has been written then.
  bool run(Crew& crew, const DecoderStep& step);

  // Wall time of a phase in all steps so far.
  int64_t nanoseconds(int32_t phase) const { return clock_.nanoseconds(phase); }

 private:
  struct Buffers;

  bool reserve(const DecoderStep& step, const StepRows& rows, int team_size);
  void describe_tokens(const DecoderStep& step, const StepRows& rows);
  void run(Team& team, const DecoderStep& step, StepRows rows);
  void embed(Team& team, const StepRows& rows);
  void write_half(Team& team, int64_t layer, const DecoderStep& step, const StepRows& rows, const float* input);
  StepRows keep_sampled(Team& team, const DecoderStep& step);
  void attend_half(Team& team, int64_t layer, const StepRows& rows);
  void mlp_half(Team& team, int64_t layer, int64_t tokens, const float* input);
  void logits(Team& team, const DecoderStep& step);
  void norm(Team& team, const NormWeights& weights, const float* x, int64_t tokens, float* y);
  void rotate(Team& team, const DecoderStep& step, int64_t tokens);
  void product(Team& team, const Linear& weight, const float* x, int64_t tokens, float* y, int64_t y_stride,
               Epilogue epilogue);
  void done(Team& team, Phase phase);
  KvCache cache_of(int64_t layer) const;

  const DecoderModel model_;
  const KvCache first_layer_;
  const int64_t layer_stride_;
  const int64_t query_size_;
  const int64_t qkv_size_;
  std::unique_ptr<Buffers> buffers_;
  PhaseClock clock_;
};

}  // namespace octavo
