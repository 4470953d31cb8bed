// Products with matrices of small integers: a weight is scale * code + minimum, where 32 neighbouring inputs of an
// output feature share scale and minimum. This holds the blocks of llama.cpp exactly: Q4_0 and Q4_1 as kInt4, Q8_0 as
// kInt8.
//
// Activations are rounded to 8 bits, each row's groups of 32 on a scale of their own, so that products are of integers.
#pragma once

#include <cstddef>
#include <cstdint>

#include "linear.h"
#include "team.h"

namespace octavo {

constexpr int64_t kGroup = 32;  // inputs; those of a matrix are a multiple of it

// A matrix as it is before packing.
struct QuantizedMatrix {
  uint8_t* codes;      // [outputs][inputs]: below 16 for kInt4; 128 more than the signed code for kInt8
  uint16_t* scales;    // [outputs][inputs / 32] float16
  uint16_t* minimums;  // the same; null for kInt8, whose minimum is -128 * scale
};

// The nearest codes. False where a weight is beyond float16 or not a number; the matrix holds nothing of use then.
bool quantize(WeightKind kind, int64_t outputs, int64_t inputs, const float* weights, const QuantizedMatrix& matrix);

void pack_codes(WeightKind kind, int64_t outputs, int64_t inputs, const QuantizedMatrix& matrix, void* packed);

// As their namesakes in linear.h.
size_t quantized_packed_bytes(WeightKind kind, int64_t outputs, int64_t inputs);
void quantized_pack(WeightKind kind, int64_t outputs, int64_t inputs, const float* weights, void* packed);
void quantized_unpack(WeightKind kind, int64_t outputs, int64_t inputs, const void* packed, float* weights);
size_t quantized_workspace_bytes(WeightKind kind, int64_t rows, int64_t inputs);
void quantized_linear(Team& team, const Linear& weight, const float* x, int64_t x_stride, int64_t rows, float* y,
                      int64_t y_stride, Epilogue epilogue, void* workspace);

// Row `row` of the matrix, [inputs] floats.
void quantized_unpack_row(const Linear& weight, int64_t row, float* out);

}  // namespace octavo
