#include "embedding.h"

#include "quantized.h"
#include "vec.h"

namespace octavo {

void unpack_row(const Linear& matrix, int64_t row, float* out) {
  if (matrix.kind == WeightKind::kInt8 || matrix.kind == WeightKind::kInt4) {
    quantized_unpack_row(matrix, row, out);
    return;
  }
  const int64_t panel = row / kPanel, lane = row % kPanel;
  const auto* base =
      static_cast<const uint8_t*>(matrix.weights) + panel * packed_bytes(matrix.kind, kPanel, matrix.inputs);
  if (matrix.kind == WeightKind::kFloat32) {
    const auto* values = reinterpret_cast<const float*>(base);
    for (int64_t k = 0; k < matrix.inputs; ++k) out[k] = values[k * kPanel + lane];
  } else {
    const auto* values = reinterpret_cast<const uint16_t*>(base);
    for (int64_t k = 0; k < matrix.inputs; ++k) out[k] = bf16_to_float(values[(k / 2 * kPanel + lane) * 2 + k % 2]);
  }
}

}  // namespace octavo
