#include "linear.h"

#include <algorithm>

#include "epilogue.h"
#include "vec.h"

namespace octavo {

namespace {

constexpr int kParts = kPanel / kLanes;  // vectors that hold a k of a panel

int64_t divided_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

// A matrix of floats: panel [k][16].
struct FloatPanels {
  static constexpr size_t panel_bytes(int64_t inputs) { return inputs * kPanel * sizeof(float); }

  static float* at(void* panel, int64_t output, int64_t input) {
    return static_cast<float*>(panel) + input * kPanel + output;
  }

  static void set(void* panel, int64_t output, int64_t input, float value) { *at(panel, output, input) = value; }

  static float get(const void* panel, int64_t output, int64_t input) {
    return *at(const_cast<void*>(panel), output, input);
  }
};

// A matrix of bfloat16: panel [k / 2][16][2].
struct Bf16Panels {
  static constexpr size_t panel_bytes(int64_t inputs) { return (inputs + 1) / 2 * kPanel * 2 * sizeof(uint16_t); }

  static uint16_t* at(void* panel, int64_t output, int64_t input) {
    return static_cast<uint16_t*>(panel) + (input / 2 * kPanel + output) * 2 + input % 2;
  }

  static void set(void* panel, int64_t output, int64_t input, float value) {
    *at(panel, output, input) = float_to_bf16(value);
  }

  static float get(const void* panel, int64_t output, int64_t input) {
    return bf16_to_float(*at(const_cast<void*>(panel), output, input));
  }
};

template <typename F>
auto with_panels(WeightKind kind, F&& f) {
  return kind == WeightKind::kFloat32 ? f(FloatPanels{}) : f(Bf16Panels{});
}

}  // namespace

size_t packed_bytes(WeightKind kind, int64_t outputs, int64_t inputs) {
  return with_panels(kind, [&](auto panels) { return divided_up(outputs, kPanel) * panels.panel_bytes(inputs); });
}

void pack(WeightKind kind, int64_t outputs, int64_t inputs, const float* weights, void* packed) {
  std::memset(packed, 0, packed_bytes(kind, outputs, inputs));
  with_panels(kind, [&](auto panels) {
    for (int64_t output = 0; output < outputs; ++output) {
      void* panel = static_cast<uint8_t*>(packed) + output / kPanel * panels.panel_bytes(inputs);
      for (int64_t input = 0; input < inputs; ++input)
        panels.set(panel, output % kPanel, input, weights[output * inputs + input]);
    }
  });
}

void unpack(WeightKind kind, int64_t outputs, int64_t inputs, const void* packed, float* weights) {
  with_panels(kind, [&](auto panels) {
    for (int64_t output = 0; output < outputs; ++output) {
      const void* panel = static_cast<const uint8_t*>(packed) + output / kPanel * panels.panel_bytes(inputs);
      for (int64_t input = 0; input < inputs; ++input)
        weights[output * inputs + input] = panels.get(panel, output % kPanel, input);
    }
  });
}

size_t linear_workspace_bytes(WeightKind, int64_t, int64_t) { return 0; }

namespace {

// products[r][p * 16 + n]: of `rows` rows with two panels or one.
template <typename Panels>
void multiply(const uint8_t* panel, int64_t inputs, const float* x, float* products) {
  Vec sums[kParts] = {};
  for (int64_t k = 0; k < inputs; ++k)
    for (int part = 0; part < kParts; ++part) {
      float w[kLanes];
      for (int i = 0; i < kLanes; ++i) w[i] = Panels::get(panel, part * kLanes + i, k);
      sums[part] = fma(broadcast(x[k]), load(w), sums[part]);
    }
  for (int part = 0; part < kParts; ++part) store(products + part * kLanes, sums[part]);
}

}  // namespace

void linear(Team& team, const Linear& weight, const float* x, int64_t x_stride, int64_t rows, float* y,
            int64_t y_stride, Epilogue epilogue, void*) {
  with_panels(weight.kind, [&](auto kind) {
    const int64_t panels = divided_up(weight.outputs, kPanel), bytes = kind.panel_bytes(weight.inputs);
    team.parallel(divided_up(panels, 2), [&](int64_t pair) {
      const int64_t first = 2 * pair, count = std::min<int64_t>(2, panels - first);
      const uint8_t* packed = static_cast<const uint8_t*>(weight.weights) + first * bytes;
      for (int64_t row = 0; row < rows; ++row) {
        float products[2 * kPanel];
        for (int64_t p = 0; p < count; ++p)
          multiply<decltype(kind)>(packed + p * bytes, weight.inputs, x + row * x_stride, products + p * kPanel);
        finish(products, 1, count, weight, first * kPanel, y + row * y_stride, y_stride, epilogue);
      }
    });
  });
}

}  // namespace octavo
