// Attention over block tables.
#pragma once

#include <cstddef>
#include <cstdint>

#include "team.h"

namespace octavo {

enum class KvKind : int32_t { kFloat32 = 0, kBfloat16 = 1, kInt8 = 2 };

// One layer's keys and values. Block b begins at data + b * block_stride. How it is laid out inside is known to
// attention.cpp alone.
struct KvCache {
  uint8_t* data;
  int64_t block_stride;  // bytes
  KvKind kind;
  int32_t block_size;  // tokens, at least 1
  int32_t kv_heads;
  int32_t head_dim;
};

// The rows of a step. Row i's new tokens follow those of row i - 1 in the flat token dimension.
struct StepRows {
  int64_t num_rows;
  int64_t num_tokens;            // of all rows
  const int64_t* counts;         // [rows] new tokens, at least 1
  const int64_t* contexts;       // [rows] tokens of the sequence up to and including the new ones
  const int64_t* const* tables;  // [rows] block ids, at least ceil(context / block_size) of them
};

struct AttentionParams {
  float scale;                // of each query-key product
  float soft_cap;             // scores become cap * tanh(score / cap); 0: none
  int64_t window;             // a token sees itself and the window - 1 tokens before it; 0: all
  const float* alibi_slopes;  // [heads], or null: score += slope * (key position - query position)
  int32_t heads;              // query heads, a multiple of kv_heads
};

// Bytes of one layer's part of a block, a multiple of 64.
size_t kv_block_bytes(KvKind kind, int32_t block_size, int32_t kv_heads, int32_t head_dim);

// keys, values: [tokens][stride] floats with [kv_heads][head_dim] of them used. Stores the new tokens' in their slots.
// By all threads of the team; returns when all is done.
void write_kv(Team& team, const KvCache& cache, const StepRows& rows, const float* keys, const float* values,
              int64_t stride);

size_t attention_workspace_bytes(const KvCache& cache, const StepRows& rows, const AttentionParams& params,
                                 int team_size);

// queries: [tokens][query_stride] with [heads][head_dim] used; out: [tokens][out_stride] likewise. All floats.
// Memory past a sequence's end, NaN included, influences nothing. A token's result depends on its query, its context
// and the parameters alone, bit by bit: not on the other rows, on how the prompt was cut into chunks, nor on the number
// of threads.
void attend(Team& team, const KvCache& cache, const StepRows& rows, const AttentionParams& params, const float* queries,
            int64_t query_stride, float* out, int64_t out_stride, void* workspace);

}  // namespace octavo
