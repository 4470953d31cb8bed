// In vectors of 16-bit integers, which every machine multiplies.
#pragma once

#include "quantized_kernel.h"

namespace octavo {

constexpr int kRowsAtOnce = 4;

typedef int16_t Shorts __attribute__((vector_size(4 * kLanes)));

inline Shorts as_shorts(IVec v) { return reinterpret_cast<Shorts>(v); }

// Of kLanes quads of bytes: the first and third of each, the second and fourth.
inline Shorts even_bytes(IVec quads) { return (as_shorts(quads) << 8) >> 8; }
inline Shorts odd_bytes(IVec quads) { return as_shorts(quads) >> 8; }

// The sum of the two 16-bit integers in each lane.
inline IVec sum_of_pairs(Shorts pairs) {
  const IVec both = reinterpret_cast<IVec>(pairs);
  return ((both << 16) >> 16) + (both >> 16);
}

// A group's dot products of kLanes outputs, whose quad i is at codes + i * kQuadBytes.
template <bool kIsInt4>
IVec group_dots(const uint8_t* codes, const Shorts* even, const Shorts* odd) {
  if (kIsInt4) {
    Shorts pairs = {};  // at most 16 * 15 * 127
    for (int i = 0; i < kQuads / 2; ++i) {
      const Shorts bytes = as_shorts(load_bits(codes + i * kQuadBytes));
      pairs += (bytes & 15) * even[i] + ((bytes >> 8) & 15) * odd[i];
      pairs += ((bytes >> 4) & 15) * even[i + kQuads / 2] + ((bytes >> 12) & 15) * odd[i + kQuads / 2];
    }
    return sum_of_pairs(pairs);
  }
  IVec dots = {};
  for (int i = 0; i < kQuads; ++i) {
    const IVec signed_codes = load_bits(codes + i * kQuadBytes) ^ static_cast<int32_t>(0x80808080u);
    // At most 2 * 128 * 127.
    dots += sum_of_pairs(even_bytes(signed_codes) * even[i] + odd_bytes(signed_codes) * odd[i]);
  }
  return dots;
}

template <bool kIsInt4, int kRows>
void multiply_panel(const QuantizedPanel& panel, const QuantizedBlock& x, float* products, int64_t stride) {
  constexpr int kParts = kPanel / kLanes;
  constexpr int64_t kGroupCodes = (kIsInt4 ? kQuads / 2 : kQuads) * kQuadBytes;
  for (int row = 0; row < kRows; ++row) {
    Vec sums[kParts] = {};
    for (int64_t group = 0; group < panel.groups; ++group) {
      Shorts even[kQuads], odd[kQuads];
      for (int quad = 0; quad < kQuads; ++quad) {
        int32_t four;
        std::memcpy(&four, x.codes + ((group * kQuads + quad) * kRows + row) * 4, sizeof four);
        even[quad] = even_bytes(four - IVec{});
        odd[quad] = odd_bytes(four - IVec{});
      }
      const Vec row_scale = broadcast(x.scales[group * kRows + row]);
      const Vec row_sum = broadcast(x.sums[group * kRows + row]);
      for (int part = 0; part < kParts; ++part) {
        const uint8_t* codes = panel.codes + group * kGroupCodes + part * kLanes * 4;
        const Vec dots = __builtin_convertvector(group_dots<kIsInt4>(codes, even, odd), Vec);
        const int64_t at = group * kPanel + part * kLanes;
        sums[part] = fma(load_half(panel.scales + at) * dots, row_scale, sums[part]);
        if (kIsInt4) sums[part] = fma(load_half(panel.minimums + at), row_sum, sums[part]);
      }
    }
    for (int part = 0; part < kParts; ++part) store(products + row * stride + part * kLanes, sums[part]);
  }
}

}  // namespace octavo
