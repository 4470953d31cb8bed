// Which lanes of a comparison are true, and collecting those.
#pragma once

#include <cstdint>

#include "vec.h"

#if defined(__SSE2__)
#include <immintrin.h>
#endif

namespace octavo {

// Bit i of lane i of a comparison's result.
inline uint32_t lanes(IVec truth) {
#if defined(__AVX512DQ__)
  return _mm512_movepi32_mask(reinterpret_cast<__m512i>(truth));
#elif defined(__AVX2__)
  return static_cast<uint32_t>(_mm256_movemask_ps(reinterpret_cast<__m256>(truth)));
#elif defined(__SSE2__)
  return static_cast<uint32_t>(_mm_movemask_ps(reinterpret_cast<__m128>(truth)));
#else
  uint32_t result = 0;
  for (int i = 0; i < kLanes; ++i) result |= static_cast<uint32_t>(truth[i] & 1) << i;
  return result;
#endif
}

inline int64_t count(uint32_t lanes) { return __builtin_popcount(lanes); }
inline int64_t first(uint32_t lanes) { return __builtin_ctz(lanes); }

// Writes the chosen lanes of v to p, one after another, and returns their number. Up to kLanes floats at p are
// overwritten.
inline int64_t store_lanes(float* p, Vec v, uint32_t chosen) {
#if defined(__AVX512F__)
  store(p,
        reinterpret_cast<Vec>(_mm512_maskz_compress_ps(static_cast<__mmask16>(chosen), reinterpret_cast<__m512>(v))));
#else
  // Without a branch for each lane: where some are chosen, which ones can't be predicted.
  if (!chosen) return 0;
  float values[kLanes];
  store(values, v);
  for (int i = 0; i < kLanes; ++i) {
    *p = values[i];
    p += chosen >> i & 1;
  }
#endif
  return count(chosen);
}

// The first `size` floats at p, and `rest` behind them.
inline Vec load_part(const float* p, int64_t size, float rest) {
  float values[kLanes];
  for (int64_t i = 0; i < kLanes; ++i) values[i] = i < size ? p[i] : rest;
  return load(values);
}

// Calls f(vector, index of its first float) for all of p, `rest` behind the last one.
template <typename F>
void for_each_vec(const float* p, int64_t size, float rest, F&& f) {
  int64_t i = 0;
  for (; i + kLanes <= size; i += kLanes) f(load(p + i), i);
  if (i < size) f(load_part(p + i, size - i, rest), i);
}

// kLanes sums in double precision.
class WideSum {
 public:
  void add(Vec v) {
    Half halves[2];
    std::memcpy(halves, &v, sizeof v);
    low_ += widen(halves[0]);
    high_ += widen(halves[1]);
  }

  double total() const {
    const Wide both = low_ + high_;
    double result = 0;
    for (int i = 0; i < kLanes / 2; ++i) result += both[i];
    return result;
  }

 private:
  typedef float Half __attribute__((vector_size(2 * kLanes)));
  typedef double Wide __attribute__((vector_size(4 * kLanes)));

  // The compiler's own conversion goes through vectors of half the width.
  static Wide widen(Half half) {
#if defined(__AVX512F__)
    return reinterpret_cast<Wide>(_mm512_maskz_cvtps_pd(0xff, reinterpret_cast<__m256>(half)));
#elif defined(__AVX2__)
    return reinterpret_cast<Wide>(_mm256_cvtps_pd(reinterpret_cast<__m128>(half)));
#else
    return __builtin_convertvector(half, Wide);
#endif
  }

  Wide low_{}, high_{};
};

}  // namespace octavo
