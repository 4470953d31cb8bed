#include <algorithm>

#include "epilogue.h"
#include "quantized.h"
#include "quantized_kernel.h"

namespace octavo {

namespace {

constexpr int64_t kGroupsAtOnce = 8;  // whose activations a thread rounds

int64_t divided_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

template <bool kIsInt4, int kRows = kRowsAtOnce>
void multiply_rows(const QuantizedPanel& panel, const QuantizedBlock& x, float* products, int64_t stride) {
  if (x.rows == kRows) {
    multiply_panel<kIsInt4, kRows>(panel, x, products, stride);
  } else if constexpr (kRows > 1) {
    multiply_rows<kIsInt4, kRows - 1>(panel, x, products, stride);
  }
}

}  // namespace

size_t quantized_workspace_bytes(WeightKind, int64_t rows, int64_t inputs) {
  return QuantizedRows::bytes(rows, inputs);
}

void quantized_linear(Team& team, const Linear& weight, const float* x, int64_t x_stride, int64_t rows, float* y,
                      int64_t y_stride, Epilogue epilogue, void* workspace) {
  const QuantizedLayout layout(weight.kind, weight.inputs);
  const int64_t rows_at_once = divided_up(rows, divided_up(rows, kRowsAtOnce));
  // Few activations are rounded by each thread for itself, sooner than threads could wait for one another.
  alignas(64) uint8_t own[8192];
  const bool shared = QuantizedRows::bytes(rows, weight.inputs) > sizeof own;
  const QuantizedRows activations(shared ? workspace : own, rows, rows_at_once, weight.inputs);
  const int64_t blocks = divided_up(rows, rows_at_once);
  if (shared) {
    // A row's codes lie among those of its block, so threads share a block by groups, not by rows.
    const int64_t parts = divided_up(layout.groups, kGroupsAtOnce);
    team.parallel(blocks * parts, [&](int64_t item) {
      const int64_t first = item % parts * kGroupsAtOnce, end = std::min(layout.groups, first + kGroupsAtOnce);
      activations.quantize(item / parts * rows_at_once, first, end, x, x_stride);
    });
  } else {
    for (int64_t block = 0; block < blocks; ++block)
      activations.quantize(block * rows_at_once, 0, layout.groups, x, x_stride);
  }

  const int64_t panels = divided_up(weight.outputs, kPanel);
  team.parallel(divided_up(panels, 2), [&](int64_t pair) {
    const int64_t first = 2 * pair, count = std::min<int64_t>(2, panels - first);
    const uint8_t* packed = static_cast<const uint8_t*>(weight.weights) + first * layout.panel;
    for (int64_t row = 0; row < rows; row += rows_at_once) {
      const QuantizedBlock block = activations.block(row);
      alignas(64) float products[kRowsAtOnce * 2 * kPanel];
      for (int64_t p = 0; p < count; ++p) {
        const QuantizedPanel panel(layout, packed + p * layout.panel, row == 0);
        float* to = products + p * kPanel;
        if (layout.is_int4) {
          multiply_rows<true>(panel, block, to, count * kPanel);
        } else {
          multiply_rows<false>(panel, block, to, count * kPanel);
        }
      }
      finish(products, block.rows, count, weight, first * kPanel, y + row * y_stride, y_stride, epilogue);
    }
  });
}

}  // namespace octavo
