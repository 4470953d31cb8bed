// float16, in which scales and minimums are kept.
#pragma once

#include <cmath>
#include <cstdint>

#if defined(__F16C__)
#include <immintrin.h>
#endif

#include "vec.h"

namespace octavo {

inline float half_to_float(uint16_t half) {
  const int exponent = (half >> 10) & 31;
  const float fraction = static_cast<float>(half & 1023);
  float value;
  if (exponent == 31) {
    value = half & 1023 ? NAN : INFINITY;
  } else if (exponent == 0) {
    value = std::ldexp(fraction, -24);
  } else {
    value = std::ldexp(fraction + 1024.0f, exponent - 25);
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
  float values[kLanes];
  for (int i = 0; i < kLanes; ++i) values[i] = half_to_float(p[i]);
  return load(values);
#endif
}

}  // namespace octavo
