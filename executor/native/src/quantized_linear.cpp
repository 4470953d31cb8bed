#include <algorithm>

#include "epilogue.h"
#include "quantized.h"
#include "quantized_half.h"
#include "quantized_layout.h"
#include "quantized_rows.h"
#include "vec.h"

namespace octavo {

namespace {

constexpr int kParts = kPanel / kLanes;

uint8_t code_of(const QuantizedLayout& layout, const uint8_t* group, int64_t output, int64_t i) {
  const int64_t quad = i / 4, within = output * 4 + i % 4;
  if (!layout.is_int4) return group[quad * kQuadBytes + within];
  if (quad < kQuads / 2) return group[quad * kQuadBytes + within] & 15;
  return group[(quad - kQuads / 2) * kQuadBytes + within] >> 4;
}

// products[16] of one row with a panel. The groups follow one another in every row's sum.
void multiply(const QuantizedLayout& layout, const uint8_t* panel, const QuantizedRows& x, int64_t row,
              float* products) {
  Vec sums[kParts] = {};
  for (int64_t group = 0; group < layout.groups; ++group) {
    const uint8_t* codes = panel + layout.codes + group * layout.group_codes;
    const auto* scales = reinterpret_cast<const uint16_t*>(panel + group * kGroupScales);
    const auto* minimums = reinterpret_cast<const uint16_t*>(panel + layout.minimums + group * kGroupScales);
    const int8_t* from = x.codes + row * x.inputs + group * kGroup;
    const int64_t index = row * x.groups + group;
    float dots[kPanel];
    for (int64_t output = 0; output < kPanel; ++output) {
      int32_t dot = layout.is_int4 ? 0 : -128 * x.totals[index];
      for (int64_t i = 0; i < kGroup; ++i) dot += code_of(layout, codes, output, i) * from[i];
      dots[output] = static_cast<float>(dot);
    }
    for (int part = 0; part < kParts; ++part) {
      const int at = part * kLanes;
      sums[part] = fma(load_half(scales + at) * load(dots + at), broadcast(x.scales[index]), sums[part]);
      if (layout.is_int4) sums[part] = fma(load_half(minimums + at), broadcast(x.sums[index]), sums[part]);
    }
  }
  for (int part = 0; part < kParts; ++part) store(products + part * kLanes, sums[part]);
}

}  // namespace

size_t quantized_workspace_bytes(WeightKind, int64_t rows, int64_t inputs) {
  return QuantizedRows::bytes(rows, inputs);
}

void quantized_linear(Team& team, const Linear& weight, const float* x, int64_t x_stride, int64_t rows, float* y,
                      int64_t y_stride, Epilogue epilogue, void* workspace) {
  const QuantizedLayout layout(weight.kind, weight.inputs);
  const QuantizedRows activations(workspace, rows, weight.inputs);
  team.parallel(rows, [&](int64_t row) { activations.quantize(row, x + row * x_stride); });
  const int64_t panels = (weight.outputs + kPanel - 1) / kPanel;
  team.parallel((panels + 1) / 2, [&](int64_t pair) {
    const int64_t first = 2 * pair, count = std::min<int64_t>(2, panels - first);
    const uint8_t* packed = static_cast<const uint8_t*>(weight.weights) + first * layout.panel;
    for (int64_t row = 0; row < rows; ++row) {
      float products[2 * kPanel];
      for (int64_t panel = 0; panel < count; ++panel)
        multiply(layout, packed + panel * layout.panel, activations, row, products + panel * kPanel);
      finish(products, 1, count, weight, first * kPanel, y + row * y_stride, y_stride, epilogue);
    }
  });
}

}  // namespace octavo
