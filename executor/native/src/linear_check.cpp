#include "linear_check.h"

#include <cmath>
#include <cstdint>

#include "linear.h"
#include "scratch.h"

namespace octavo {

namespace {

constexpr int64_t kRows = 33, kOutputs = 48, kInputs = 96;  // more than one tile of each, the last ones not full

// From -1 to 1, without a pattern.
float number(int64_t i) {
  return static_cast<float>((static_cast<uint32_t>(i) * 2654435761u >> 16) % 255) / 127.0f - 1.0f;
}

// Rounded activations and codes are within 1 % of what they stand for; a wrong instruction is not.
bool is_near(const float* products, const float* x, const float* weights) {
  for (int64_t row = 0; row < kRows; ++row)
    for (int64_t output = 0; output < kOutputs; ++output) {
      float sum = 0.0f, size = 0.0f;
      for (int64_t k = 0; k < kInputs; ++k) {
        const float product = x[row * kInputs + k] * weights[output * kInputs + k];
        sum += product;
        size += std::fabs(product);
      }
      if (!(std::fabs(products[row * kOutputs + output] - sum) <= 0.01f * size)) return false;
    }
  return true;
}

bool is_right(WeightKind kind) {
  Scratch<float> x, weights, products;
  Scratch<uint8_t> packed, workspace;
  if (!x.reserve(kRows * kInputs) || !weights.reserve(kOutputs * kInputs) || !products.reserve(kRows * kOutputs) ||
      !packed.reserve(packed_bytes(kind, kOutputs, kInputs)) ||
      !workspace.reserve(linear_workspace_bytes(kind, kRows, kInputs)))
    return true;  // without memory nothing is known
  for (int64_t i = 0; i < kRows * kInputs; ++i) x.data()[i] = number(i);
  for (int64_t i = 0; i < kOutputs * kInputs; ++i) weights.data()[i] = number(i + kRows * kInputs);
  pack(kind, kOutputs, kInputs, weights.data(), packed.data());
  unpack(kind, kOutputs, kInputs, packed.data(), weights.data());
  const Linear matrix = {kind, kOutputs, kInputs, packed.data(), nullptr};
  Crew crew(1);
  crew.run([&](Team& team) {
    linear(team, matrix, x.data(), kInputs, kRows, products.data(), kOutputs, Epilogue::kStore, workspace.data());
  });
  return is_near(products.data(), x.data(), weights.data());
}

}  // namespace

bool products_are_right() {
  for (const auto kind : {WeightKind::kFloat32, WeightKind::kBfloat16, WeightKind::kInt8, WeightKind::kInt4})
    if (!is_right(kind)) return false;
  return true;
}

}  // namespace octavo
