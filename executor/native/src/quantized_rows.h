// Activations rounded to 8 bits.
#pragma once

#include <cstddef>
#include <cstdint>

namespace octavo {

// Rows of activations: scale * code for each group of kGroup inputs.
struct QuantizedRows {
  // In memory of `bytes(rows, inputs)`, aligned to 64 bytes.
  QuantizedRows(void* memory, int64_t rows, int64_t inputs);

  static size_t bytes(int64_t rows, int64_t inputs);

  // To the nearest codes between -127 and 127, the largest activation of a group being 127. A group with an infinite
  // activation or a NaN gets NaN for its scale.
  void quantize(int64_t row, const float* x) const;

  int64_t inputs;
  int64_t groups;
  int8_t* codes;    // [rows][inputs]
  float* scales;    // [rows][groups]
  float* sums;      // [rows][groups] of the group's scale * code
  int32_t* totals;  // [rows][groups] of the group's codes
};

}  // namespace octavo
