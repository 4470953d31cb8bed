// How one layer's part of a block is laid out. Nothing outside attention*.cpp knows.
//
// Heads come one after another, each aligned to 64 bytes: its keys, its values, and for int8 their scales. T is the
// block size, D the head's, D16 that rounded up to 16.
//
//              keys                values
//   float32    [D][T]              [T][D16]
//   bfloat16   [(D+1)/2][T][2]     [(T+1)/2][D16][2]
//   int8       [D][T], scales [T]  [T][D16], scales [T]
//
// Keys are transposed, so that a vector holds one entry of many tokens and a score needs no sum across a vector. A
// 32-bit lane of bfloat16 holds two numbers that go into the same sum one after the other: two entries of a key, or the
// same entry of two tokens' values. Splitting such a lane takes two instructions for both; widening takes two for each.
#pragma once

#include "attention.h"

namespace octavo {

constexpr int kTile = 16;  // what heads and blocks are multiples of on the fast paths

constexpr int64_t round_up(int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }

// In bytes, from the head's beginning.
struct HeadLayout {
  int64_t values;
  int64_t key_scales;
  int64_t value_scales;
  int64_t size;
};

inline HeadLayout head_layout(KvKind kind, int64_t block_size, int64_t head_dim) {
  const int64_t width = round_up(head_dim, kTile);
  HeadLayout layout{};
  switch (kind) {
    case KvKind::kFloat32:
      layout.values = 4 * head_dim * block_size;
      layout.size = layout.values + 4 * block_size * width;
      break;
    case KvKind::kBfloat16:
      layout.values = 2 * round_up(head_dim, 2) * block_size;
      layout.size = layout.values + 2 * round_up(block_size, 2) * width;
      break;
    case KvKind::kInt8:
      layout.values = round_up(head_dim * block_size, 16);
      layout.key_scales = layout.values + block_size * width;
      layout.value_scales = layout.key_scales + 4 * block_size;
      layout.size = layout.value_scales + 4 * block_size;
      break;
  }
  layout.size = round_up(layout.size, 64);
  return layout;
}

}  // namespace octavo
