// float16, in which scales and minimums are kept.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#if defined(__F16C__)
#include <immintrin.h>
#endif

#include "vec.h"

namespace octavo {

inline float half_to_float(uint16_t half) {
  const int32_t size = half & 0x7fff;
  float value;
  if (size < 0x400) {
    value = static_cast<float>(size) * 0x1p-24f;
  } else {
    // Infinity and NaN have the largest exponent here and there.
    const int32_t bits = (size << 13) + ((size < 0x7c00 ? 127 - 15 : 255 - 31) << 23);
    std::memcpy(&value, &bits, sizeof value);
  }
  return half & 0x8000 ? -value : value;
}

// To nearest, ties to even; beyond the range: infinite.
inline uint16_t float_to_half(float value) {
  const uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  const float size = std::fabs(value);
  if (std::isnan(value)) return sign | 0x7e00;
  if (size >= 65520.0f) return sign | 0x7c00;
  if (size < 6.103515625e-5f) return sign | static_cast<uint16_t>(std::nearbyint(std::ldexp(size, 24)));
  const int exponent = std::ilogb(size);
  // A fraction that is rounded up to 2048 carries into the exponent, as it should.
  const int fraction = static_cast<int>(std::nearbyint(std::ldexp(size, 10 - exponent)));
  return sign | static_cast<uint16_t>((exponent + 14) * 1024 + fraction);
}

// kLanes of them one after another.
inline Vec load_half(const uint16_t* p) {
#if defined(__AVX512F__)
  const __m256i halves = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return reinterpret_cast<Vec>(_mm512_maskz_cvtph_ps(0xffff, halves));  // gcc 12 warns of the one without a mask
#elif defined(__F16C__)
  return reinterpret_cast<Vec>(_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
#else
  const IVec bits = __builtin_convertvector(*reinterpret_cast<const HalfBitsAt*>(p), IVec);
  const IVec size = bits & 0x7fff;
  const IVec small = as_bits(__builtin_convertvector(size, Vec) * broadcast(0x1p-24f));
  const IVec exponent = size < 0x7c00 ? IVec{} + ((127 - 15) << 23) : IVec{} + ((255 - 31) << 23);
  return as_floats((size < 0x400 ? small : (size << 13) + exponent) | ((bits & 0x8000) << 16));
#endif
}

}  // namespace octavo
