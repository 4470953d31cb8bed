// With VNNI, whose instruction multiplies a quad of all outputs of a panel with a quad of a row.
#pragma once

#include <immintrin.h>

#include "quantized_kernel.h"

namespace octavo {

constexpr int kRowsAtOnce = 12;  // the dot product and the sum of each in a register, and 8 others

// Into the panels that come next, where waiting for the memory would hold up the products.
constexpr int64_t kBytesAhead = 16384;

template <bool kIsInt4, int kRows>
void multiply_panel(const QuantizedPanel& panel, const QuantizedBlock& x, float* products, int64_t stride) {
  constexpr int kVectors = kIsInt4 ? kQuads / 2 : kQuads;
  const __m512i lower = _mm512_set1_epi8(15);
  const uint8_t* codes = panel.codes;
  const int8_t* activations = x.codes;
  __m512 sums[kRows];
#pragma GCC unroll 16
  for (int row = 0; row < kRows; ++row) sums[row] = _mm512_setzero_ps();

  for (int64_t group = 0; group < panel.groups; ++group) {
    __m512i dots[kRows];
#pragma GCC unroll 16
    for (int row = 0; row < kRows; ++row)
      dots[row] = kIsInt4 ? _mm512_setzero_si512() : _mm512_set1_epi32(x.offsets[group * kRows + row]);
    const auto add = [&](__m512i weights, int quad) __attribute__((always_inline)) {
#pragma GCC unroll 16
      for (int row = 0; row < kRows; ++row) {
        int32_t four;
        std::memcpy(&four, activations + (quad * kRows + row) * 4, sizeof four);
        dots[row] = _mm512_dpbusd_epi32(dots[row], weights, _mm512_set1_epi32(four));
      }
    };
    if (panel.is_new)
      for (int i = 0; i < kVectors; ++i) _mm_prefetch(codes + kBytesAhead + i * kQuadBytes, _MM_HINT_T0);
#pragma GCC unroll 8
    for (int i = 0; i < kVectors; ++i) {
      const __m512i bytes = _mm512_load_si512(codes + i * kQuadBytes);
      if (kIsInt4) {
        add(_mm512_and_si512(bytes, lower), i);
        add(_mm512_and_si512(_mm512_srli_epi16(bytes, 4), lower), i + kVectors);
      } else {
        add(bytes, i);
      }
    }
    codes += kVectors * kQuadBytes;
    activations += kRows * kGroup;

    const __m512 scale = load_half(panel.scales + group * kPanel);
    const __m512 minimum = kIsInt4 ? __m512(load_half(panel.minimums + group * kPanel)) : _mm512_setzero_ps();
#pragma GCC unroll 16
    for (int row = 0; row < kRows; ++row) {
      const __m512 scaled = _mm512_mul_ps(scale, __builtin_convertvector(reinterpret_cast<IVec>(dots[row]), Vec));
      sums[row] = _mm512_fmadd_ps(scaled, _mm512_set1_ps(x.scales[group * kRows + row]), sums[row]);
      if (kIsInt4) sums[row] = _mm512_fmadd_ps(minimum, _mm512_set1_ps(x.sums[group * kRows + row]), sums[row]);
    }
  }
#pragma GCC unroll 16
  for (int row = 0; row < kRows; ++row) _mm512_storeu_ps(products + row * stride, sums[row]);
}

}  // namespace octavo
