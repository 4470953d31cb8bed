// How matrices of floats are packed; see WeightKind. `get` and `set` take one element, `expand` makes `count` k of two
// panels, from the even `k` on, floats: in `scratch`, unless they are. The panels are `distance` bytes apart, which
// becomes the floats' distance.
#pragma once

#include <initializer_list>

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

  static const uint8_t* expand(const uint8_t* panel, int64_t k, int64_t, int64_t&, float*) {
    return panel + panel_bytes(k);
  }
};

struct Bf16Panels {
  static constexpr int64_t panel_bytes(int64_t inputs) { return (inputs + 1) / 2 * kPanel * 4; }

  static float get(const uint8_t* panel, int64_t output, int64_t input) {
    return bf16_to_float(reinterpret_cast<const uint16_t*>(panel)[index(output, input)]);
  }

  static void set(uint8_t* panel, int64_t output, int64_t input, float value) {
    reinterpret_cast<uint16_t*>(panel)[index(output, input)] = float_to_bf16(value);
  }

  static const uint8_t* expand(const uint8_t* panel, int64_t k, int64_t count, int64_t& distance, float* scratch) {
    const int64_t bytes = panel_bytes(count);
    float* out = scratch;
    for (const uint8_t* from : {panel + panel_bytes(k), panel + distance + panel_bytes(k)})
      for (const uint8_t* end = from + bytes; from < end; from += kPanel * 4, out += 2 * kPanel)
        for (int part = 0; part < kParts; ++part) {
          const IVec pairs = load_bits(from + part * (4 * kLanes));
          store(out + part * kLanes, first_of_pairs(pairs));
          store(out + kPanel + part * kLanes, second_of_pairs(pairs));
        }
    distance = 2 * bytes;
    return reinterpret_cast<const uint8_t*>(scratch);
  }

 private:
  static constexpr int64_t index(int64_t output, int64_t input) {
    return (input / 2 * kPanel + output) * 2 + input % 2;
  }
};

}  // namespace octavo
