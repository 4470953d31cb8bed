#include "quantized.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "quantized_half.h"
#include "quantized_layout.h"

namespace octavo {

namespace {

constexpr float kLargestHalf = 65504.0f;

// Not if there is a NaN among them.
bool all_fit(const float* weights) {
  return std::all_of(weights, weights + kGroup, [](float weight) { return std::fabs(weight) <= kLargestHalf; });
}

uint8_t nearest(float code, float lowest, float highest) {
  return static_cast<uint8_t>(std::min(std::max(std::nearbyint(code), lowest), highest));
}

// One group to 4 bits between its smallest and its largest weight.
void quantize_int4(const float* weights, uint8_t* codes, uint16_t* scale, uint16_t* minimum) {
  const auto [low, high] = std::minmax_element(weights, weights + kGroup);
  *minimum = float_to_half(*low);
  *scale = float_to_half((*high - *low) / 15.0f);
  const float step = half_to_float(*scale), offset = half_to_float(*minimum);
  for (int64_t i = 0; i < kGroup; ++i) codes[i] = step == 0.0f ? 0 : nearest((weights[i] - offset) / step, 0.0f, 15.0f);
}

// One group to 8 bits around zero.
void quantize_int8(const float* weights, uint8_t* codes, uint16_t* scale) {
  float largest = 0.0f;
  for (int64_t i = 0; i < kGroup; ++i) largest = std::max(largest, std::fabs(weights[i]));
  *scale = float_to_half(largest / 127.0f);
  const float step = half_to_float(*scale);
  for (int64_t i = 0; i < kGroup; ++i)
    codes[i] = step == 0.0f ? 128 : nearest(weights[i] / step + 128.0f, 1.0f, 255.0f);
}

// A group's codes of one output feature to their places in the panel.
void place_codes(const QuantizedLayout& layout, const uint8_t* codes, uint8_t* group, int64_t output) {
  for (int64_t quad = 0; quad < (layout.is_int4 ? kQuads / 2 : kQuads); ++quad) {
    uint32_t four, upper;
    std::memcpy(&four, codes + quad * 4, sizeof four);
    if (layout.is_int4) {
      std::memcpy(&upper, codes + (quad + kQuads / 2) * 4, sizeof upper);
      four |= upper << 4;
    }
    std::memcpy(group + quad * kQuadBytes + output * 4, &four, sizeof four);
  }
}

// Back from there.
void take_codes(const QuantizedLayout& layout, const uint8_t* group, int64_t output, uint8_t* codes) {
  for (int64_t quad = 0; quad < (layout.is_int4 ? kQuads / 2 : kQuads); ++quad)
    for (int64_t i = 0; i < 4; ++i) {
      const uint8_t code = group[quad * kQuadBytes + output * 4 + i];
      codes[quad * 4 + i] = layout.is_int4 ? code & 15 : code;
      if (layout.is_int4) codes[kGroup / 2 + quad * 4 + i] = code >> 4;
    }
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
  const float zero = layout.is_int4 ? 0.0f : 128.0f;
  for (int64_t group = 0; group < layout.groups; ++group, out += kGroup) {
    uint8_t codes[kGroup];
    take_codes(layout, panel + layout.codes + group * layout.group_codes, output, codes);
    const float scale = half_to_float(halves(panel, 0, group)[output]);
    const float minimum = layout.is_int4 ? half_to_float(halves(panel, layout.minimums, group)[output]) : 0.0f;
    // The product is exact, so it does not matter whether the compiler contracts this.
    for (int64_t i = 0; i < kGroup; ++i) out[i] = scale * (static_cast<float>(codes[i]) - zero) + minimum;
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
    if (!all_fit(from)) return false;
    if (kind == WeightKind::kInt4) {
      quantize_int4(from, codes, matrix.scales + group, matrix.minimums + group);
    } else {
      quantize_int8(from, codes, matrix.scales + group);
    }
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
