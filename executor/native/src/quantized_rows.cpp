#include "quantized_rows.h"

#include "quantized.h"
#include "vec.h"

namespace octavo {

namespace {

constexpr float kRounder = 12582912.0f;  // 1.5 * 2^23: added to a small number, it leaves the nearest integer
constexpr int32_t kRounderBits = 0x4b400000;
constexpr float kNothing = 1e-30f;  // activations below it are 0: 127 divided by them may be infinite

int64_t rounded_up(int64_t bytes) { return (bytes + 63) / 64 * 64; }

}  // namespace

size_t QuantizedRows::bytes(int64_t rows, int64_t inputs) {
  return rounded_up(rows * inputs) + 3 * rounded_up(rows * (inputs / kGroup) * sizeof(float));
}

QuantizedRows::QuantizedRows(void* memory, int64_t rows, int64_t inputs)
    : inputs(inputs), groups(inputs / kGroup), codes(static_cast<int8_t*>(memory)) {
  const int64_t each = rounded_up(rows * groups * sizeof(float));
  uint8_t* next = static_cast<uint8_t*>(memory) + rounded_up(rows * inputs);
  scales = reinterpret_cast<float*>(next);
  sums = reinterpret_cast<float*>(next + each);
  totals = reinterpret_cast<int32_t*>(next + 2 * each);
}

void QuantizedRows::quantize(int64_t row, const float* x) const {
  int8_t* to = codes + row * inputs;
  for (int64_t group = 0; group < groups; ++group, x += kGroup, to += kGroup) {
    Vec sizes = zero(), nothing = zero();
    for (int64_t i = 0; i < kGroup; i += kLanes) {
      const Vec v = load(x + i);
      sizes = max(sizes, max(v, -v));
      nothing += v - v;  // NaN for a NaN and for infinity
    }
    const float size = largest(sizes);
    const Vec factor = broadcast(size > kNothing ? 127.0f / size : 0.0f);
    IVec totals_of_lanes = {};
    for (int64_t i = 0; i < kGroup; i += kLanes) {
      const IVec rounded = as_bits(fma(load(x + i), factor, broadcast(kRounder))) - kRounderBits;
      totals_of_lanes += rounded;
      *reinterpret_cast<BytesAt*>(to + i) = __builtin_convertvector(rounded, Bytes);
    }
    int32_t total = 0;
    for (int lane = 0; lane < kLanes; ++lane) total += totals_of_lanes[lane];
    const float scale = (size > kNothing ? size / 127.0f : 0.0f) + sum(nothing);
    scales[row * groups + group] = scale;
    sums[row * groups + group] = scale * static_cast<float>(total);
    totals[row * groups + group] = total;
  }
}

}  // namespace octavo
