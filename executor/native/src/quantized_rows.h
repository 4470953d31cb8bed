// Activations rounded to 8 bits.
#pragma once

#include <cstddef>
#include <cstdint>

namespace octavo {

// Some rows, that are multiplied at once: what they have in one place lies together.
struct QuantizedBlock {
  int64_t rows;
  int8_t* codes;     // [inputs / 4][rows][4]
  float* scales;     // [groups][rows]
  float* sums;       // [groups][rows] of the group's scale * code
  int32_t* offsets;  // [groups][rows] of -128 * code
};

// Rows of activations: scale * code for each group of kGroup inputs.
class QuantizedRows {
 public:
  // In memory of `bytes(rows, inputs)`, aligned to 64 bytes.
  QuantizedRows(void* memory, int64_t rows, int64_t rows_in_block, int64_t inputs);

  static size_t bytes(int64_t rows, int64_t inputs);

  // Rounds some groups of the block that begins with `first_row`, of x [rows][x_stride]. To the nearest codes between
  // -127 and 127, the largest activation of a group being 127. A group with an infinite activation or a NaN gets NaN
  // for its scale.
  void quantize(int64_t first_row, int64_t first_group, int64_t end_group, const float* x, int64_t x_stride) const;

  // Which begins with `row`.
  QuantizedBlock block(int64_t row) const;

 private:
  int64_t rows_;
  int64_t rows_in_block_;
  int64_t inputs_;
  int64_t groups_;
  QuantizedBlock all_;
};

}  // namespace octavo
