// How matrices of floats are packed; see WeightKind.
#pragma once

#include "linear.h"
#include "vec.h"

namespace octavo {

constexpr int kParts = kPanel / kLanes;  // vectors that hold one k of a panel

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

}  // namespace octavo
