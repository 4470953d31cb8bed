#include "attention.h"

#include <algorithm>
#include <cmath>

#include "attention_layout.h"
#include "vec.h"

namespace octavo {

namespace {

float key_at(const KvCache& cache, const uint8_t* head, const HeadLayout& layout, int64_t slot, int64_t d) {
  const int64_t t = cache.block_size;
  switch (cache.kind) {
    case KvKind::kFloat32:
      return reinterpret_cast<const float*>(head)[d * t + slot];
    case KvKind::kBfloat16:
      return bf16_to_float(reinterpret_cast<const uint16_t*>(head)[(d / 2 * t + slot) * 2 + d % 2]);
    default:
      return reinterpret_cast<const int8_t*>(head)[d * t + slot] *
             reinterpret_cast<const float*>(head + layout.key_scales)[slot];
  }
}

float value_at(const KvCache& cache, const uint8_t* head, const HeadLayout& layout, int64_t slot, int64_t d) {
  const int64_t width = round_up(cache.head_dim, kTile);
  const uint8_t* values = head + layout.values;
  switch (cache.kind) {
    case KvKind::kFloat32:
      return reinterpret_cast<const float*>(values)[slot * width + d];
    case KvKind::kBfloat16:
      return bf16_to_float(reinterpret_cast<const uint16_t*>(values)[(slot / 2 * width + d) * 2 + slot % 2]);
    default:
      return reinterpret_cast<const int8_t*>(values)[slot * width + d] *
             reinterpret_cast<const float*>(head + layout.value_scales)[slot];
  }
}

void attend_one(const KvCache& cache, const HeadLayout& layout, const AttentionParams& params, const int64_t* table,
                int64_t position, int32_t head, const float* query, float* out) {
  const int32_t kv_head = head / (params.heads / cache.kv_heads);
  float top = -INFINITY, total = 0;
  std::fill_n(out, cache.head_dim, 0.0f);
  const int64_t first = params.window > 0 ? std::max<int64_t>(0, position + 1 - params.window) : 0;
  for (int64_t seen = first; seen <= position; ++seen) {
    const uint8_t* memory = cache.data + table[seen / cache.block_size] * cache.block_stride + kv_head * layout.size;
    const int64_t slot = seen % cache.block_size;
    float score = 0;
    for (int32_t d = 0; d < cache.head_dim; ++d) score += query[d] * key_at(cache, memory, layout, slot, d);
    score *= params.scale;
    if (params.soft_cap > 0) score = params.soft_cap * std::tanh(score / params.soft_cap);
    if (params.alibi_slopes) score += params.alibi_slopes[head] * static_cast<float>(seen - position);
    if (score > top) {
      const float keep = std::exp(top - score);
      total *= keep;
      for (int32_t d = 0; d < cache.head_dim; ++d) out[d] *= keep;
      top = score;
    }
    const float weight = std::exp(score - top);
    total += weight;
    for (int32_t d = 0; d < cache.head_dim; ++d) out[d] += weight * value_at(cache, memory, layout, slot, d);
  }
  for (int32_t d = 0; d < cache.head_dim; ++d) out[d] /= total;
}

}  // namespace

size_t attention_workspace_bytes(const KvCache&, const StepRows&, const AttentionParams&, int) { return 64; }

void attend(Team& team, const KvCache& cache, const StepRows& rows, const AttentionParams& params, const float* queries,
            int64_t query_stride, float* out, int64_t out_stride, void*) {
  const HeadLayout layout = head_layout(cache.kind, cache.block_size, cache.head_dim);
  team.parallel(rows.num_tokens * params.heads, [&](int64_t item) {
    const int64_t token = item / params.heads;
    const int32_t head = static_cast<int32_t>(item % params.heads);
    int64_t row = 0, before = 0;
    while (token >= before + rows.counts[row]) before += rows.counts[row++];
    const int64_t position = rows.contexts[row] - rows.counts[row] + token - before;
    attend_one(cache, layout, params, rows.tables[row], position, head,
               queries + token * query_stride + head * cache.head_dim,
               out + token * out_stride + head * cache.head_dim);
  });
}

}  // namespace octavo
