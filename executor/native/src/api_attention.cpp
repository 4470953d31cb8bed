#include "api.h"
#include "attention.h"
#include "team.h"

using octavo::AttentionParams;
using octavo::KvCache;
using octavo::KvKind;
using octavo::StepRows;

OCTAVO_API int64_t octavo_kv_block_bytes(int32_t kind, int32_t block_size, int32_t kv_heads, int32_t head_dim) {
  return static_cast<int64_t>(octavo::kv_block_bytes(static_cast<KvKind>(kind), block_size, kv_heads, head_dim));
}

OCTAVO_API void octavo_write_kv(octavo::Crew* crew, const KvCache* cache, const StepRows* rows, const float* keys,
                                const float* values, int64_t stride) {
  crew->run([=](octavo::Team& team) { octavo::write_kv(team, *cache, *rows, keys, values, stride); });
}

OCTAVO_API int64_t octavo_attention_workspace_bytes(const octavo::Crew* crew, const KvCache* cache,
                                                    const StepRows* rows, const AttentionParams* params) {
  return static_cast<int64_t>(octavo::attention_workspace_bytes(*cache, *rows, *params, crew->size()));
}

OCTAVO_API void octavo_attend(octavo::Crew* crew, const KvCache* cache, const StepRows* rows,
                              const AttentionParams* params, const float* queries, int64_t query_stride, float* out,
                              int64_t out_stride, void* workspace) {
  crew->run([=](octavo::Team& team) {
    octavo::attend(team, *cache, *rows, *params, queries, query_stride, out, out_stride, workspace);
  });
}
