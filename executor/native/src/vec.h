// Vectors of floats as wide as the level this is compiled for, in the compiler's own vector types.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

// Arrays of vectors are kept in registers only if every loop over them is gone.
#define OCTAVO_UNROLL _Pragma("GCC unroll 32")

namespace octavo {

#if defined(__AVX512F__)
constexpr int kLanes = 16;
#elif defined(__AVX2__)
constexpr int kLanes = 8;
#else
constexpr int kLanes = 4;  // SSE2, NEON
#endif

typedef float Vec __attribute__((vector_size(4 * kLanes)));
typedef int32_t IVec __attribute__((vector_size(4 * kLanes)));
typedef uint16_t HalfBits __attribute__((vector_size(2 * kLanes)));
typedef int8_t Bytes __attribute__((vector_size(kLanes)));

// The same at any address.
typedef Vec VecAt __attribute__((aligned(4), may_alias));
typedef IVec IVecAt __attribute__((aligned(4), may_alias));
typedef HalfBits HalfBitsAt __attribute__((aligned(2), may_alias));
typedef Bytes BytesAt __attribute__((aligned(1), may_alias));

inline Vec load(const float* p) { return *reinterpret_cast<const VecAt*>(p); }
inline void store(float* p, Vec v) { *reinterpret_cast<VecAt*>(p) = v; }
inline IVec load_bits(const void* p) { return *reinterpret_cast<const IVecAt*>(p); }
inline Vec broadcast(float x) { return x - Vec{}; }
inline Vec zero() { return Vec{}; }

// Contracted to one rounding where the level has it. Everywhere the same for the same operands, which is what makes a
// row's result independent of the rows beside it.
inline Vec fma(Vec a, Vec b, Vec c) { return a * b + c; }
inline Vec max(Vec a, Vec b) { return a > b ? a : b; }
inline Vec min(Vec a, Vec b) { return a < b ? a : b; }

inline Vec as_floats(IVec bits) { return reinterpret_cast<Vec>(bits); }
inline IVec as_bits(Vec v) { return reinterpret_cast<IVec>(v); }

// bfloat16 is the upper half of a float.
inline float bf16_to_float(uint16_t bits) {
  const uint32_t wide = static_cast<uint32_t>(bits) << 16;
  float x;
  std::memcpy(&x, &wide, sizeof x);
  return x;
}

// Rounds to nearest, ties to even; a NaN stays one.
inline uint16_t float_to_bf16(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((bits >> 16) | 0x40);
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1)) >> 16);
}

// kLanes bfloat16 values one after another.
inline Vec load_bf16(const uint16_t* p) {
  return as_floats(__builtin_convertvector(*reinterpret_cast<const HalfBitsAt*>(p), IVec) << 16);
}

inline void store_bf16(uint16_t* p, Vec v) {
  typedef uint32_t UVec __attribute__((vector_size(4 * kLanes)));
  const UVec bits = reinterpret_cast<UVec>(v);
  const UVec rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const IVec is_nan = v != v;
  const UVec kept = (bits >> 16) | 0x40u;
  *reinterpret_cast<HalfBitsAt*>(p) = __builtin_convertvector(
      reinterpret_cast<UVec>(is_nan ? reinterpret_cast<IVec>(kept) : reinterpret_cast<IVec>(rounded)), HalfBits);
}

// Of kLanes pairs of bfloat16 values (a pair is 32 bits): the first, the second of each.
inline Vec first_of_pairs(IVec pairs) { return as_floats(pairs << 16); }
inline Vec second_of_pairs(IVec pairs) { return as_floats(pairs & static_cast<int32_t>(0xffff0000u)); }

// kLanes signed bytes one after another. GCC 12 would widen them one by one.
inline Vec load_int8(const int8_t* p) {
#if defined(__AVX512F__)
  const __m512i wide = _mm512_maskz_cvtepi8_epi32(0xffff, _mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  return __builtin_convertvector(reinterpret_cast<IVec>(wide), Vec);
#elif defined(__AVX2__)
  const __m256i wide = _mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
  return __builtin_convertvector(reinterpret_cast<IVec>(wide), Vec);
#else
  return __builtin_convertvector(*reinterpret_cast<const BytesAt*>(p), Vec);
#endif
}

inline float sum(Vec v) {
  float total[kLanes];
  store(total, v);
  for (int half = kLanes / 2; half > 0; half /= 2)
    for (int i = 0; i < half; ++i) total[i] += total[i + half];
  return total[0];
}

inline float largest(Vec v) {
  float values[kLanes];
  store(values, v);
  float result = values[0];
  for (int i = 1; i < kLanes; ++i) result = values[i] > result ? values[i] : result;
  return result;
}

// e^x for x <= 88, within 2 units in the last place; 0 below -87. Range reduction by powers of two (Cody and Waite),
// then a polynomial of degree 6 for the rest.
inline Vec exp(Vec x) {
  const Vec clamped = max(min(x, broadcast(88.0f)), broadcast(-87.0f));
  const Vec shifted = fma(clamped, broadcast(1.44269504f), broadcast(12582912.0f));  // 1.5 * 2^23: rounds to an integer
  const Vec n = shifted - broadcast(12582912.0f);
  Vec r = fma(n, broadcast(-0.693359375f), clamped);
  r = fma(n, broadcast(2.12194440e-4f), r);
  Vec p = broadcast(1.38888889e-3f);
  p = fma(p, r, broadcast(8.33333333e-3f));
  p = fma(p, r, broadcast(4.16666667e-2f));
  p = fma(p, r, broadcast(1.66666667e-1f));
  p = fma(p, r, broadcast(0.5f));
  p = fma(p, r, broadcast(1.0f));
  p = fma(p, r, broadcast(1.0f));
  const IVec exponent = (as_bits(shifted) - 0x4b400000) << 23;
  const Vec result = as_floats(as_bits(p) + exponent);
  return x < broadcast(-87.0f) ? zero() : result;
}

}  // namespace octavo
