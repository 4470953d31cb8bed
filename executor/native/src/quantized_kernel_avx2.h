// With AVX2, whose instruction adds products of unsigned with signed bytes by twos, in 16 bits that must not overflow.
#pragma once

#include <immintrin.h>

#include "quantized_kernel.h"

namespace octavo {

constexpr int kRowsAtOnce = 4;  // the dot product and the sum of each in a register, and 8 others

// Into the panels that come next, where waiting for the memory would hold up the products.
constexpr int64_t kBytesAhead = 16384;

// products[row][8], of half a panel.
template <bool kIsInt4, int kRows>
void multiply_half(const QuantizedPanel& panel, int64_t half, const QuantizedBlock& x, float* products,
                   int64_t stride) {
  constexpr int64_t kHalf = kPanel / 2;
  const __m256i ones = _mm256_set1_epi16(1), lower = _mm256_set1_epi8(15), sign = _mm256_set1_epi8(-128);
  const uint8_t* codes = panel.codes + half * kQuadBytes / 2;
  const int8_t* activations = x.codes;
  __m256 sums[kRows];
  for (int row = 0; row < kRows; ++row) sums[row] = _mm256_setzero_ps();

  for (int64_t group = 0; group < panel.groups; ++group) {
    __m256i dots[kRows];
    for (int row = 0; row < kRows; ++row) dots[row] = _mm256_setzero_si256();
    const auto quad_of = [&](int quad, int row) {
      int32_t four;
      std::memcpy(&four, activations + (quad * kRows + row) * 4, sizeof four);
      return _mm256_set1_epi32(four);
    };
    // In 16 bits: all 8 quads of a group come to at most 8 * 2 * 15 * 127.
    const auto add_int4 = [&](__m256i weights, int quad) {
      for (int row = 0; row < kRows; ++row)
        dots[row] = _mm256_add_epi16(dots[row], _mm256_maddubs_epi16(weights, quad_of(quad, row)));
    };
    // Signed codes, as sizes and signs: two products come to at most 2 * 128 * 127. Further ones are added in 32 bits.
    const auto add_int8 = [&](__m256i bytes, int quad) {
      const __m256i weights = _mm256_xor_si256(bytes, sign), sizes = _mm256_abs_epi8(weights);
      for (int row = 0; row < kRows; ++row) {
        const __m256i twos = _mm256_maddubs_epi16(sizes, _mm256_sign_epi8(quad_of(quad, row), weights));
        dots[row] = _mm256_add_epi32(dots[row], _mm256_madd_epi16(twos, ones));
      }
    };
    constexpr int kVectors = kIsInt4 ? kQuads / 2 : kQuads;
    if (panel.is_new)
      for (int i = 0; i < kVectors; i += 2)
        _mm_prefetch(codes + kBytesAhead + i * kQuadBytes + half * kQuadBytes, _MM_HINT_T0);
#pragma GCC unroll 8
    for (int i = 0; i < kVectors; ++i) {
      const __m256i bytes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes + i * kQuadBytes));
      if (kIsInt4) {
        add_int4(_mm256_and_si256(bytes, lower), i);
        add_int4(_mm256_and_si256(_mm256_srli_epi16(bytes, 4), lower), i + kVectors);
      } else {
        add_int8(bytes, i);
      }
    }
    codes += kVectors * kQuadBytes;
    activations += kRows * kGroup;

    const __m256 scale = load_half(panel.scales + group * kPanel + half * kHalf);
    const __m256 minimum =
        kIsInt4 ? __m256(load_half(panel.minimums + group * kPanel + half * kHalf)) : _mm256_setzero_ps();
    for (int row = 0; row < kRows; ++row) {
      const __m256i dot = kIsInt4 ? _mm256_madd_epi16(dots[row], ones) : dots[row];
      const __m256 scaled = _mm256_mul_ps(scale, _mm256_cvtepi32_ps(dot));
      sums[row] = _mm256_fmadd_ps(scaled, _mm256_set1_ps(x.scales[group * kRows + row]), sums[row]);
      if (kIsInt4) sums[row] = _mm256_fmadd_ps(minimum, _mm256_set1_ps(x.sums[group * kRows + row]), sums[row]);
    }
  }
  for (int row = 0; row < kRows; ++row) _mm256_storeu_ps(products + row * stride, sums[row]);
}

template <bool kIsInt4, int kRows>
void multiply_panel(const QuantizedPanel& panel, const QuantizedBlock& x, float* products, int64_t stride) {
  for (int64_t half = 0; half < 2; ++half)
    multiply_half<kIsInt4, kRows>(panel, half, x, products + half * (kPanel / 2), stride);
}

}  // namespace octavo
