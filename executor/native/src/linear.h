// Products with weight matrices: y = x W^T + b.
#pragma once

#include <cstddef>
#include <cstdint>

#include "team.h"

namespace octavo {

// How a matrix is stored. All are packed into panels of kPanel output features (the last one padded with zeros).
enum class WeightKind : int32_t {
  kFloat32 = 0,   // panel: [k][16] floats
  kBfloat16 = 1,  // panel: [k / 2][16][2], so that a 32-bit lane holds two neighbouring k of one output feature; odd k
                  // padded with 0. x is rounded to bfloat16 by the level amx, and by no other
  kInt8 = 2,      // groups of 32 k with a scale and a minimum for each output feature
  kInt4 = 3,      // the same with 4 bits
};

constexpr int64_t kPanel = 16;

struct Linear {
  WeightKind kind;
  int64_t outputs;      // n
  int64_t inputs;       // k
  const void* weights;  // packed, aligned to 64 bytes
  const float* bias;    // [outputs], or null
};

// What happens to a product, its bias included, before it is stored.
enum class Epilogue : int32_t {
  kStore = 0,  // y = product
  kAdd = 1,    // y += product
  // The rows of W, and the biases, come in pairs of panels, gate then up (see `interleave` in
  // executor/native/linear.py): y = act(gate) * up, outputs / 2 wide. Outputs are a multiple of 2 * kPanel.
  kGateSilu = 2,
  kGateGelu = 3,
  kGateGeluTanh = 4,
  kGateRelu = 5,
  // No gate: y = act(product).
  kSilu = 6,
  kGelu = 7,
  kGeluTanh = 8,
  kRelu = 9,
};

// Size of the packed matrix in bytes, a multiple of 64.
size_t packed_bytes(WeightKind kind, int64_t outputs, int64_t inputs);

// weights: [outputs][inputs] row-major floats.
void pack(WeightKind kind, int64_t outputs, int64_t inputs, const float* weights, void* packed);

// Back to [outputs][inputs] floats, exactly the values that `linear` multiplies with.
void unpack(WeightKind kind, int64_t outputs, int64_t inputs, const void* packed, float* weights);

// Memory that `linear` needs beside its arguments for `rows` rows of `inputs`, in bytes, aligned to 64. No less for
// more rows.
size_t linear_workspace_bytes(WeightKind kind, int64_t rows, int64_t inputs);

// x: [rows][x_stride], y: [rows][y_stride] floats, apart from each other; what lies between a row's end and the next
// row is neither read nor written. Called by all threads of the team; returns when all is done.
// Row r of y depends on row r of x alone, bit by bit: not on the number of rows, nor on which thread computed it.
void linear(Team& team, const Linear& weight, const float* x, int64_t x_stride, int64_t rows, float* y,
            int64_t y_stride, Epilogue epilogue, void* workspace);

}  // namespace octavo
