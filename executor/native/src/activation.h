// Activation functions on vectors.
#pragma once

#include "vec.h"

namespace octavo {

// 0 below -87, so that times an x of any size it is still nothing.
inline Vec sigmoid(Vec x) {
  const Vec result = broadcast(1.0f) / (broadcast(1.0f) + exp(-x));
  return x < broadcast(-87.0f) ? zero() : result;
}

inline Vec relu(Vec x) { return x < zero() ? zero() : x; }  // a NaN stays one

inline Vec silu(Vec x) { return x * sigmoid(x); }

// x (1 + tanh(u)) / 2 = x sigmoid(2u), with u = sqrt(2 / pi) (x + 0.044715 x^3).
inline Vec gelu_tanh(Vec x) {
  const Vec doubled = x * fma(x * x, broadcast(0.0713548163f), broadcast(1.59576912f));
  return x * sigmoid(doubled);
}

// x times the normal distribution's share below x, which is erfc(-x / sqrt(2)) / 2. For z >= 0, erfc(z) = exp(-z^2)
// g(1 / (1 + z / 2)) with g a polynomial that is within 4e-8 of it, relatively, for z up to 10, where exp gives 0. So
// the small shares of negative x keep their digits, which 1 + erf would lose.
inline Vec gelu(Vec x) {
  const Vec z = max(x, -x) * broadcast(0.707106781f);
  const Vec t = broadcast(1.0f) / fma(z, broadcast(0.5f), broadcast(1.0f));
  Vec g = broadcast(-5.5951133e-2f);
  g = fma(g, t, broadcast(2.684594e-1f));
  g = fma(g, t, broadcast(-4.513757e-1f));
  g = fma(g, t, broadcast(2.3325805e-1f));
  g = fma(g, t, broadcast(8.011045e-3f));
  g = fma(g, t, broadcast(1.8558857e-1f));
  g = fma(g, t, broadcast(2.484754e-1f));
  g = fma(g, t, broadcast(2.8134295e-1f));
  g = fma(g, t, broadcast(2.8219628e-1f));
  g = fma(g, t, broadcast(-4.925994e-6f));
  // The share beyond |x|. -z^2 from x, with one rounding: what it is off by, e^it is off by relatively.
  const Vec beyond = exp(x * broadcast(-0.5f) * x) * g * broadcast(0.5f);
  return x * (x < zero() ? beyond : broadcast(1.0f) - beyond);
}

}  // namespace octavo
