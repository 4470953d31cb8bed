// How matrices of floats are packed; see WeightKind.
#pragma once

#include "linear.h"
#include "vec.h"

namespace octavo {

constexpr int kParts = kPanel / kLanes;  // vectors that hold one k of a panel
constexpr int64_t kPair = 2 * kPanel;    // outputs that are computed together: a panel of gates and one of ups

struct FloatPanels {
  static constexpr int64_t panel_bytes(int64_t inputs) { return inputs * kPanel * 4; }

  static float get(const uint8_t* panel, int64_t output, int64_t input) {
    return reinterpret_cast<const float*>(panel)[input * kPanel + output];
  }

  static void set(uint8_t* panel, int64_t output, int64_t input, float value) {
    reinterpret_cast<float*>(panel)[input * kPanel + output] = value;
  }
};

// A pair of panels that have become floats: [k][2][16].
struct FloatPairs {
  static constexpr int64_t panel_bytes(int64_t inputs) { return inputs * 2 * kPanel * 4; }
};

struct Bf16Panels {
  static constexpr int64_t panel_bytes(int64_t inputs) { return (inputs + 1) / 2 * kPanel * 4; }

  static float get(const uint8_t* panel, int64_t output, int64_t input) {
    return bf16_to_float(reinterpret_cast<const uint16_t*>(panel)[index(output, input)]);
  }

  static void set(uint8_t* panel, int64_t output, int64_t input, float value) {
    reinterpret_cast<uint16_t*>(panel)[index(output, input)] = float_to_bf16(value);
  }

 private:
  static constexpr int64_t index(int64_t output, int64_t input) {
    return (input / 2 * kPanel + output) * 2 + input % 2;
  }
};

// Two neighbouring panels of a matrix, from the same k on.
struct PanelPair {
  const uint8_t* first;
  int64_t distance;  // bytes from the first to the second; 0: there is none, and the first one counts twice
};

// `k` is even.
template <typename Panels>
PanelPair panel_pair(const Linear& weight, int64_t pair, int64_t k) {
  const int64_t bytes = Panels::panel_bytes(weight.inputs);
  const uint8_t* first = static_cast<const uint8_t*>(weight.weights) + 2 * pair * bytes + Panels::panel_bytes(k);
  return {first, (2 * pair + 1) * kPanel < weight.outputs ? bytes : 0};
}

}  // namespace octavo
