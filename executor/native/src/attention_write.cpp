// New tokens' keys and values go to their slots.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "attention_layout.h"
#include "vec.h"

namespace octavo {

namespace {

// One token's key and value of one head.
struct Slot {
  uint8_t* head;
  int64_t index;  // in the block
  int64_t block_size;
  int64_t head_dim;
};

void write_float32(const Slot& slot, const HeadLayout& layout, const float* key, const float* value) {
  float* keys = reinterpret_cast<float*>(slot.head);
  for (int64_t d = 0; d < slot.head_dim; ++d) keys[d * slot.block_size + slot.index] = key[d];
  float* values = reinterpret_cast<float*>(slot.head + layout.values);
  std::copy_n(value, slot.head_dim, values + slot.index * round_up(slot.head_dim, kTile));
}

// Tokens that a work item writes, more where there would be too many items.
constexpr int64_t kTokensAtOnce = 16, kMostShares = 64;

// Numbers that are converted at once, and then stored one by one where they belong.
constexpr int64_t kConverted = 64;

// f(d, count, converted) for every kConverted numbers of a head, the last ones fewer.
template <typename T, typename Convert, typename F>
void convert(const float* from, int64_t head_dim, const Convert& convert_vector, const F& f) {
  alignas(64) T converted[kConverted];
  alignas(64) float last[kConverted];
  for (int64_t d = 0; d < head_dim; d += kConverted) {
    const int64_t count = std::min(kConverted, head_dim - d);
    const float* numbers = from + d;
    if (count < kConverted) {
      std::fill(std::copy_n(numbers, count, last), last + kConverted, 0.0f);
      numbers = last;
    }
    for (int64_t i = 0; i < count; i += kLanes) convert_vector(load(numbers + i), converted + i);
    f(d, count, converted);
  }
}

void write_bfloat16(const Slot& slot, const HeadLayout& layout, const float* key, const float* value) {
  const auto to_bfloat16 = [](Vec numbers, uint16_t* to) { store_bf16(to, numbers); };
  uint8_t* keys = slot.head + slot.index * 4;
  convert<uint16_t>(key, slot.head_dim, to_bfloat16, [&](int64_t d, int64_t count, const uint16_t* converted) {
    // An odd size ends with a 0 beside the last number, because that is multiplied too.
    for (int64_t i = 0; i < count; i += 2) std::memcpy(keys + (d + i) / 2 * slot.block_size * 4, converted + i, 4);
  });
  uint16_t* values = reinterpret_cast<uint16_t*>(slot.head + layout.values);
  values += slot.index / 2 * 2 * round_up(slot.head_dim, kTile) + slot.index % 2;
  convert<uint16_t>(value, slot.head_dim, to_bfloat16, [&](int64_t d, int64_t count, const uint16_t* converted) {
    for (int64_t i = 0; i < count; ++i) values[2 * (d + i)] = converted[i];
  });
}

float largest_magnitude(const float* numbers, int64_t count) {
  Vec top = zero();
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) top = max(top, as_floats(as_bits(load(numbers + i)) & 0x7fffffff));
  float result = largest(top);
  for (; i < count; ++i) result = std::max(result, std::fabs(numbers[i]));
  return result;
}

// Quantizes a head's numbers to [-127, 127] and stores them `stride` apart; returns the scale.
float write_bytes(const float* from, int64_t head_dim, int8_t* to, int64_t stride) {
  const float top = largest_magnitude(from, head_dim);
  const Vec inverse = broadcast(top > 0 ? 127.0f / top : 0.0f), rounder = broadcast(12582912.0f);  // 1.5 * 2^23
  const auto to_integers = [&](Vec numbers, int32_t* integers) {
    const Vec rounded = (numbers * inverse + rounder) - rounder;
    const IVec converted = __builtin_convertvector(rounded, IVec);
    std::memcpy(integers, &converted, sizeof converted);
  };
  convert<int32_t>(from, head_dim, to_integers, [&](int64_t d, int64_t count, const int32_t* integers) {
    for (int64_t i = 0; i < count; ++i) to[(d + i) * stride] = static_cast<int8_t>(integers[i]);
  });
  return top / 127.0f;
}

void write_int8(const Slot& slot, const HeadLayout& layout, const float* key, const float* value) {
  int8_t* keys = reinterpret_cast<int8_t*>(slot.head) + slot.index;
  int8_t* values = reinterpret_cast<int8_t*>(slot.head + layout.values);
  float* key_scales = reinterpret_cast<float*>(slot.head + layout.key_scales);
  float* value_scales = reinterpret_cast<float*>(slot.head + layout.value_scales);
  key_scales[slot.index] = write_bytes(key, slot.head_dim, keys, slot.block_size);
  const int64_t width = round_up(slot.head_dim, kTile);
  value_scales[slot.index] = write_bytes(value, slot.head_dim, values + slot.index * width, 1);
}

}  // namespace

size_t kv_block_bytes(KvKind kind, int32_t block_size, int32_t kv_heads, int32_t head_dim) {
  return static_cast<size_t>(head_layout(kind, block_size, head_dim).size) * kv_heads;
}

void write_kv(Team& team, const KvCache& cache, const StepRows& rows, const float* keys, const float* values,
              int64_t stride) {
  const HeadLayout layout = head_layout(cache.kind, cache.block_size, cache.head_dim);
  const auto write_token = [&](uint8_t* block, int64_t index, int64_t token) {
    for (int64_t head = 0; head < cache.kv_heads; ++head) {
      const Slot slot{block + head * layout.size, index, cache.block_size, cache.head_dim};
      const float* key = keys + token * stride + head * cache.head_dim;
      const float* value = values + token * stride + head * cache.head_dim;
      if (cache.kind == KvKind::kFloat32) write_float32(slot, layout, key, value);
      if (cache.kind == KvKind::kBfloat16) write_bfloat16(slot, layout, key, value);
      if (cache.kind == KvKind::kInt8) write_int8(slot, layout, key, value);
    }
  };
  // Each item is a share of the tokens, moved to the next border of blocks: a block has one writer.
  const int64_t shares = std::min((rows.num_tokens + kTokensAtOnce - 1) / kTokensAtOnce, kMostShares);
  team.parallel(shares, [&](int64_t share) {
    const int64_t first = rows.num_tokens * share / shares, last = rows.num_tokens * (share + 1) / shares;
    int64_t token = 0;
    for (int64_t row = 0; row < rows.num_rows && token < last; ++row) {
      const int64_t start = rows.contexts[row] - rows.counts[row];
      for (int64_t position = start; position < rows.contexts[row];) {
        const int64_t logical = position / cache.block_size;
        const int64_t end = std::min((logical + 1) * cache.block_size, rows.contexts[row]);
        if (token >= first && token < last) {
          uint8_t* block = cache.data + rows.tables[row][logical] * cache.block_stride;
          for (int64_t i = position; i < end; ++i)
            write_token(block, i - logical * cache.block_size, token + i - position);
        }
        token += end - position;
        position = end;
      }
    }
  });
}

}  // namespace octavo
