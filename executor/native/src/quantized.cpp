#include "quantized.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "quantized_half.h"
#include "quantized_layout.h"

namespace octavo {

namespace {

constexpr float kLargestHalf = 65504.0f;

bool fits(float value) { return std::fabs(value) <= kLargestHalf; }  // not for a NaN

uint8_t nearest(float code, float lowest, float highest) {
  return static_cast<uint8_t>(std::min(std::max(std::nearbyint(code), lowest), highest));
}

// One group to 4 bits between its smallest and its largest weight.
bool quantize_int4(const float* weights, uint8_t* codes, uint16_t* scale, uint16_t* minimum) {
  const auto [low, high] = std::minmax_element(weights, weights + kGroup);
  const float range = *high - *low;
  if (!fits(*low) || !fits(range)) return false;
  *minimum = float_to_half(*low);
  *scale = float_to_half(range / 15.0f);
  const float step = half_to_float(*scale), offset = half_to_float(*minimum);
  for (int64_t i = 0; i < kGroup; ++i) codes[i] = step == 0.0f ? 0 : nearest((weights[i] - offset) / step, 0.0f, 15.0f);
  return true;
}

// One group to 8 bits around zero.
bool quantize_int8(const float* weights, uint8_t* codes, uint16_t* scale) {
  float largest = 0.0f;
  for (int64_t i = 0; i < kGroup; ++i) {
    if (!fits(weights[i])) return false;
    largest = std::max(largest, std::fabs(weights[i]));
  }
  *scale = float_to_half(largest / 127.0f);
  const float step = half_to_float(*scale);
  for (int64_t i = 0; i < kGroup; ++i)
    codes[i] = step == 0.0f ? 128 : nearest(weights[i] / step + 128.0f, 1.0f, 255.0f);
  return true;
}

// A group's codes of one output feature, from and to their places in the panel.
void place_codes(const QuantizedLayout& layout, const uint8_t* codes, uint8_t* group, int64_t output) {
  for (int64_t i = 0; i < kGroup; ++i) {
    const int64_t quad = i / 4, within = output * 4 + i % 4;
    if (!layout.is_int4) {
      group[quad * kQuadBytes + within] = codes[i];
    } else if (quad < kQuads / 2) {
      group[quad * kQuadBytes + within] |= codes[i];
    } else {
      group[(quad - kQuads / 2) * kQuadBytes + within] |= static_cast<uint8_t>(codes[i] << 4);
    }
  }
}

uint8_t code_at(const QuantizedLayout& layout, const uint8_t* group, int64_t output, int64_t i) {
  const int64_t quad = i / 4, within = output * 4 + i % 4;
  if (!layout.is_int4) return group[quad * kQuadBytes + within];
  if (quad < kQuads / 2) return group[quad * kQuadBytes + within] & 15;
  return group[(quad - kQuads / 2) * kQuadBytes + within] >> 4;
}

uint16_t* halves(uint8_t* panel, int64_t offset, int64_t group) {
  return reinterpret_cast<uint16_t*>(panel + offset + group * kGroupScales);
}

const uint16_t* halves(const uint8_t* panel, int64_t offset, int64_t group) {
  return reinterpret_cast<const uint16_t*>(panel + offset + group * kGroupScales);
}

void place_group(const QuantizedLayout& layout, uint8_t* panel, int64_t output, int64_t group, const uint8_t* codes,
                 uint16_t scale, uint16_t minimum) {
  halves(panel, 0, group)[output] = scale;
  if (layout.is_int4) halves(panel, layout.minimums, group)[output] = minimum;
  place_codes(layout, codes, panel + layout.codes + group * layout.group_codes, output);
}

uint8_t* panel_of(const QuantizedLayout& layout, void* packed, int64_t output) {
  return static_cast<uint8_t*>(packed) + output / kPanel * layout.panel;
}

void unpack_row(const QuantizedLayout& layout, const void* packed, int64_t row, float* out) {
  const uint8_t* panel = panel_of(layout, const_cast<void*>(packed), row);
  const int64_t output = row % kPanel;
  for (int64_t group = 0; group < layout.groups; ++group) {
    const uint8_t* codes = panel + layout.codes + group * layout.group_codes;
    const float scale = half_to_float(halves(panel, 0, group)[output]);
    const float minimum = layout.is_int4 ? half_to_float(halves(panel, layout.minimums, group)[output]) : 0.0f;
    const float zero = layout.is_int4 ? 0.0f : 128.0f;
    // The product is exact, so it does not matter whether the compiler contracts this.
    for (int64_t i = 0; i < kGroup; ++i)
      out[group * kGroup + i] = scale * (static_cast<float>(code_at(layout, codes, output, i)) - zero) + minimum;
  }
}

}  // namespace

size_t quantized_packed_bytes(WeightKind kind, int64_t outputs, int64_t inputs) {
  return (outputs + kPanel - 1) / kPanel * QuantizedLayout(kind, inputs).panel;
}

bool quantize(WeightKind kind, int64_t outputs, int64_t inputs, const float* weights, const QuantizedMatrix& matrix) {
  for (int64_t group = 0; group < outputs * (inputs / kGroup); ++group) {
    const float* from = weights + group * kGroup;
    uint8_t* codes = matrix.codes + group * kGroup;
    const bool done = kind == WeightKind::kInt4
                          ? quantize_int4(from, codes, matrix.scales + group, matrix.minimums + group)
                          : quantize_int8(from, codes, matrix.scales + group);
    if (!done) return false;
  }
  return true;
}

void pack_codes(WeightKind kind, int64_t outputs, int64_t inputs, const QuantizedMatrix& matrix, void* packed) {
  const QuantizedLayout layout(kind, inputs);
  std::memset(packed, 0, quantized_packed_bytes(kind, outputs, inputs));
  for (int64_t output = 0; output < outputs; ++output)
    for (int64_t group = 0; group < layout.groups; ++group) {
      const int64_t index = output * layout.groups + group;
      place_group(layout, panel_of(layout, packed, output), output % kPanel, group, matrix.codes + index * kGroup,
                  matrix.scales[index], layout.is_int4 ? matrix.minimums[index] : 0);
    }
}

void quantized_pack(WeightKind kind, int64_t outputs, int64_t inputs, const float* weights, void* packed) {
  const QuantizedLayout layout(kind, inputs);
  std::memset(packed, 0, quantized_packed_bytes(kind, outputs, inputs));
  for (int64_t output = 0; output < outputs; ++output)
    for (int64_t group = 0; group < layout.groups; ++group) {
      uint8_t codes[kGroup] = {};
      uint16_t scale = 0, minimum = 0;
      quantize(kind, 1, kGroup, weights + output * inputs + group * kGroup, {codes, &scale, &minimum});
      place_group(layout, panel_of(layout, packed, output), output % kPanel, group, codes, scale, minimum);
    }
}

void quantized_unpack(WeightKind kind, int64_t outputs, int64_t inputs, const void* packed, float* weights) {
  const QuantizedLayout layout(kind, inputs);
  for (int64_t row = 0; row < outputs; ++row) unpack_row(layout, packed, row, weights + row * inputs);
}

void quantized_unpack_row(const Linear& weight, int64_t row, float* out) {
  unpack_row(QuantizedLayout(weight.kind, weight.inputs), weight.weights, row, out);
}

}  // namespace octavo
