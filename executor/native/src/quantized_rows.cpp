#include "quantized_rows.h"

#include <algorithm>
#include <cstring>

#include "quantized_layout.h"
#include "vec.h"

namespace octavo {

namespace {

constexpr float kRounder = 12582912.0f;  // 1.5 * 2^23: added to a small number, it leaves the nearest integer
constexpr int32_t kRounderBits = 0x4b400000;
constexpr float kNothing = 1e-30f;  // activations below it are 0: 127 divided by them may be infinite

template <int kDistance>
IVec lanes_from_afar(IVec v) {
  IVec from;
  for (int lane = 0; lane < kLanes; ++lane) from[lane] = lane ^ kDistance;
  return __builtin_shuffle(v, from);
}

// f of all lanes, for an associative and commutative f.
template <typename F>
int32_t of_all_lanes(IVec v, F&& f) {
  if constexpr (kLanes > 8) v = f(v, lanes_from_afar<8>(v));
  if constexpr (kLanes > 4) v = f(v, lanes_from_afar<4>(v));
  v = f(v, lanes_from_afar<2>(v));
  v = f(v, lanes_from_afar<1>(v));
  return v[0];
}

// Size of the largest of a group. Bits of floats without a sign are in the order of what they mean, with infinity and
// then NaN last.
float largest_size(const float* x) {
  IVec sizes = {};
  for (int64_t i = 0; i < kGroup; i += kLanes) {
    const IVec bits = as_bits(load(x + i)) & 0x7fffffff;
    sizes = bits > sizes ? bits : sizes;
  }
  const int32_t bits = of_all_lanes(sizes, [](IVec a, IVec b) { return a > b ? a : b; });
  float size;
  std::memcpy(&size, &bits, sizeof size);
  return size;
}

// One row's group.
void quantize_group(const float* x, const QuantizedBlock& to, int64_t group, int64_t row) {
  const float size = largest_size(x);
  const Vec factor = broadcast(size > kNothing ? 127.0f / size : 0.0f);
  IVec totals = {};
  int8_t codes[kGroup];
  for (int64_t i = 0; i < kGroup; i += kLanes) {
    const IVec rounded = as_bits(fma(load(x + i), factor, broadcast(kRounder))) - kRounderBits;
    totals += rounded;
    *reinterpret_cast<BytesAt*>(codes + i) = __builtin_convertvector(rounded, Bytes);
  }
  for (int64_t quad = 0; quad < kQuads; ++quad)
    std::memcpy(to.codes + ((group * kQuads + quad) * to.rows + row) * 4, codes + quad * 4, 4);
  const int32_t total = of_all_lanes(totals, [](IVec a, IVec b) { return a + b; });
  const int64_t at = group * to.rows + row;
  // NaN where the size is infinite or NaN.
  to.scales[at] = (size > kNothing ? size * (1.0f / 127.0f) : 0.0f) + (size - size);
  to.sums[at] = to.scales[at] * static_cast<float>(total);
  to.offsets[at] = -128 * total;
}

int64_t rounded_up(int64_t bytes) { return (bytes + 63) / 64 * 64; }

}  // namespace

size_t QuantizedRows::bytes(int64_t rows, int64_t inputs) {
  return rounded_up(rows * inputs) + 3 * rounded_up(rows * (inputs / kGroup) * sizeof(float));
}

QuantizedRows::QuantizedRows(void* memory, int64_t rows, int64_t rows_in_block, int64_t inputs)
    : rows_(rows), rows_in_block_(rows_in_block), inputs_(inputs), groups_(inputs / kGroup) {
  const int64_t each = rounded_up(rows * groups_ * sizeof(float));
  uint8_t* next = static_cast<uint8_t*>(memory) + rounded_up(rows * inputs);
  all_ = {rows, static_cast<int8_t*>(memory), reinterpret_cast<float*>(next), reinterpret_cast<float*>(next + each),
          reinterpret_cast<int32_t*>(next + 2 * each)};
}

QuantizedBlock QuantizedRows::block(int64_t row) const {
  return {std::min(rows_in_block_, rows_ - row), all_.codes + row * inputs_, all_.scales + row * groups_,
          all_.sums + row * groups_, all_.offsets + row * groups_};
}

void QuantizedRows::quantize(int64_t first_row, int64_t first_group, int64_t end_group, const float* x,
                             int64_t x_stride) const {
  const QuantizedBlock to = block(first_row);
  for (int64_t group = first_group; group < end_group; ++group)
    for (int64_t row = 0; row < to.rows; ++row)
      quantize_group(x + (first_row + row) * x_stride + group * kGroup, to, group, row);
}

}  // namespace octavo
