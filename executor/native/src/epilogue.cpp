#include "epilogue.h"

#include <algorithm>

namespace octavo {

namespace {

template <typename F>
void for_each_vector(int64_t n, F&& f) {
  for (int64_t i = 0; i < n; i += kLanes) f(i, std::min<int64_t>(kLanes, n - i));
}

Vec load_first(const float* p, int64_t count) {
  if (count == kLanes) return load(p);
  float values[kLanes] = {};
  std::memcpy(values, p, count * sizeof(float));
  return load(values);
}

void store_first(float* p, Vec v, int64_t count) {
  if (count == kLanes) return store(p, v);
  float values[kLanes];
  store(values, v);
  std::memcpy(p, values, count * sizeof(float));
}

// One row: y[i] = f(product[i] + bias[i], i, count).
template <typename F>
void each(const float* products, const float* bias, int64_t n, float* y, F&& f) {
  for_each_vector(n, [&](int64_t i, int64_t count) {
    Vec v = load(products + i);
    if (bias) v = v + load_first(bias + i, count);
    store_first(y + i, f(v, i, count), count);
  });
}

template <typename F>
void gate(const float* products, const float* bias, int64_t panels, float* y, F&& activation) {
  for (int64_t panel = 0; panel < panels; panel += 2, products += 2 * kPanel, y += kPanel)
    for (int64_t i = 0; i < kPanel; i += kLanes) {
      Vec gate = load(products + i), up = load(products + kPanel + i);
      if (bias) {
        gate = gate + load(bias + panel * kPanel + i);
        up = up + load(bias + (panel + 1) * kPanel + i);
      }
      store(y + i, activation(gate) * up);
    }
}

}  // namespace

void finish(const float* products, int64_t rows, int64_t panels, const Linear& weight, int64_t first, float* y,
            int64_t y_stride, Epilogue epilogue) {
  const int64_t n = std::min(panels * kPanel, weight.outputs - first);
  const float* bias = weight.bias ? weight.bias + first : nullptr;
  const auto each_row = [&](int64_t column, auto&& f) {
    for (int64_t row = 0; row < rows; ++row) f(products + row * panels * kPanel, y + row * y_stride + column);
  };
  const auto plain = [&](auto&& f) {
    each_row(first,
             [&](const float* p, float* out) { each(p, bias, n, out, [&](Vec v, int64_t, int64_t) { return f(v); }); });
  };
  const auto gated = [&](auto&& f) {
    each_row(first / 2, [&](const float* p, float* out) { gate(p, bias, panels, out, f); });
  };
  switch (epilogue) {
    case Epilogue::kStore:
      return plain([](Vec v) { return v; });
    case Epilogue::kAdd:
      return each_row(first, [&](const float* p, float* out) {
        each(p, bias, n, out, [&](Vec v, int64_t i, int64_t count) { return load_first(out + i, count) + v; });
      });
    case Epilogue::kGateSilu:
      return gated(silu);
    case Epilogue::kGateGelu:
      return gated(gelu);
    case Epilogue::kGateGeluTanh:
      return gated(gelu_tanh);
    case Epilogue::kGateRelu:
      return gated(relu);
    case Epilogue::kSilu:
      return plain(silu);
    case Epilogue::kGelu:
      return plain(gelu);
    case Epilogue::kGeluTanh:
      return plain(gelu_tanh);
    case Epilogue::kRelu:
      return plain(relu);
  }
}

}  // namespace octavo
