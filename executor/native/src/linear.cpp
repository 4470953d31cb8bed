#include "linear.h"

#include <cstring>

#include "linear_amx.h"
#include "linear_float.h"
#include "panels.h"
#include "quantized.h"

namespace octavo {

namespace {

int64_t divided_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

bool is_quantized(WeightKind kind) { return kind == WeightKind::kInt8 || kind == WeightKind::kInt4; }

template <typename F>
auto with_panels(WeightKind kind, F&& f) {
  return kind == WeightKind::kFloat32 ? f(FloatPanels{}) : f(Bf16Panels{});
}

}  // namespace

size_t packed_bytes(WeightKind kind, int64_t outputs, int64_t inputs) {
  if (is_quantized(kind)) return quantized_packed_bytes(kind, outputs, inputs);
  return with_panels(kind, [&](auto panels) { return divided_up(outputs, kPanel) * panels.panel_bytes(inputs); });
}

void pack(WeightKind kind, int64_t outputs, int64_t inputs, const float* weights, void* packed) {
  if (is_quantized(kind)) return quantized_pack(kind, outputs, inputs, weights, packed);
  std::memset(packed, 0, packed_bytes(kind, outputs, inputs));
  with_panels(kind, [&](auto panels) {
    for (int64_t output = 0; output < outputs; ++output) {
      uint8_t* panel = static_cast<uint8_t*>(packed) + output / kPanel * panels.panel_bytes(inputs);
      for (int64_t input = 0; input < inputs; ++input)
        panels.set(panel, output % kPanel, input, weights[output * inputs + input]);
    }
  });
}

void unpack(WeightKind kind, int64_t outputs, int64_t inputs, const void* packed, float* weights) {
  if (is_quantized(kind)) return quantized_unpack(kind, outputs, inputs, packed, weights);
  with_panels(kind, [&](auto panels) {
    for (int64_t output = 0; output < outputs; ++output) {
      const uint8_t* panel = static_cast<const uint8_t*>(packed) + output / kPanel * panels.panel_bytes(inputs);
      for (int64_t input = 0; input < inputs; ++input)
        weights[output * inputs + input] = panels.get(panel, output % kPanel, input);
    }
  });
}

size_t linear_workspace_bytes(WeightKind kind, int64_t rows, int64_t inputs) {
  if (is_quantized(kind)) return quantized_workspace_bytes(kind, rows, inputs);
  return kHasAmx && kind == WeightKind::kBfloat16 ? amx_workspace_bytes(rows, inputs) : 0;
}

void linear(Team& team, const Linear& weight, const float* x, int64_t x_stride, int64_t rows, float* y,
            int64_t y_stride, Epilogue epilogue, void* workspace) {
  if (is_quantized(weight.kind))
    quantized_linear(team, weight, x, x_stride, rows, y, y_stride, epilogue, workspace);
  else if (kHasAmx && weight.kind == WeightKind::kBfloat16)
    amx_linear(team, weight, x, x_stride, rows, y, y_stride, epilogue, workspace);
  else
    float_linear(team, weight, x, x_stride, rows, y, y_stride, epilogue);
}

}  // namespace octavo
