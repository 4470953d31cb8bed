// Normalisation of one token's vector.
#pragma once

#include <cmath>
#include <cstdint>

#include "vec.h"

namespace octavo {

// RMSNorm (Zhang and Sennrich, arXiv 1910.07467): y = x / sqrt(mean(x^2) + epsilon) * weight. `y` may be `x`.
inline void rms_norm(const float* x, const float* weight, float epsilon, int64_t size, float* y) {
  Vec squares = zero();
  int64_t i = 0;
  for (; i + kLanes <= size; i += kLanes) squares = fma(load(x + i), load(x + i), squares);
  float total = sum(squares);
  for (; i < size; ++i) total += x[i] * x[i];
  const float scale = 1.0f / std::sqrt(total / static_cast<float>(size) + epsilon);
  for (i = 0; i + kLanes <= size; i += kLanes) {
    const Vec scaled = load(x + i) * broadcast(scale);
    store(y + i, weight ? scaled * load(weight + i) : scaled);
  }
  for (; i < size; ++i) y[i] = x[i] * scale * (weight ? weight[i] : 1.0f);
}

// LayerNorm (Ba et al., arXiv 1607.06450): y = (x - mean) / sqrt(variance + epsilon) * weight + bias. `y` may be `x`.
inline void layer_norm(const float* x, const float* weight, const float* bias, float epsilon, int64_t size, float* y) {
  Vec sums = zero();
  int64_t i = 0;
  for (; i + kLanes <= size; i += kLanes) sums += load(x + i);
  float total = sum(sums);
  for (; i < size; ++i) total += x[i];
  const float mean = total / static_cast<float>(size);

  Vec squares = zero();
  for (i = 0; i + kLanes <= size; i += kLanes) {
    const Vec centred = load(x + i) - broadcast(mean);
    squares = fma(centred, centred, squares);
  }
  float variance = sum(squares);
  for (; i < size; ++i) variance += (x[i] - mean) * (x[i] - mean);
  const float scale = 1.0f / std::sqrt(variance / static_cast<float>(size) + epsilon);

  for (i = 0; i < size; ++i) {
    const float scaled = (x[i] - mean) * scale;
    y[i] = scaled * (weight ? weight[i] : 1.0f) + (bias ? bias[i] : 0.0f);
  }
}

}  // namespace octavo
