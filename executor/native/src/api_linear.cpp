#include "api.h"
#include "linear.h"
#include "linear_check.h"

using octavo::Linear;
using octavo::WeightKind;

OCTAVO_API int64_t octavo_packed_bytes(int32_t kind, int64_t outputs, int64_t inputs) {
  return octavo::packed_bytes(static_cast<WeightKind>(kind), outputs, inputs);
}

OCTAVO_API void octavo_pack(int32_t kind, int64_t outputs, int64_t inputs, const float* weights, void* packed) {
  octavo::pack(static_cast<WeightKind>(kind), outputs, inputs, weights, packed);
}

OCTAVO_API void octavo_unpack(int32_t kind, int64_t outputs, int64_t inputs, const void* packed, float* weights) {
  octavo::unpack(static_cast<WeightKind>(kind), outputs, inputs, packed, weights);
}

OCTAVO_API int64_t octavo_linear_workspace_bytes(int32_t kind, int64_t rows, int64_t inputs) {
  return octavo::linear_workspace_bytes(static_cast<WeightKind>(kind), rows, inputs);
}

// Multiplies x with one matrix after another, as a step does. All are of one shape; each writes y.
OCTAVO_API void octavo_linear(octavo::Crew* crew, const Linear* matrices, int64_t count, const float* x,
                              int64_t x_stride, int64_t rows, float* y, int64_t y_stride, int32_t epilogue,
                              void* workspace) {
  crew->run([&](octavo::Team& team) {
    for (int64_t i = 0; i < count; ++i)
      octavo::linear(team, matrices[i], x, x_stride, rows, y, y_stride, static_cast<octavo::Epilogue>(epilogue),
                     workspace);
  });
}

OCTAVO_API int32_t octavo_products_are_right() { return octavo::products_are_right(); }
