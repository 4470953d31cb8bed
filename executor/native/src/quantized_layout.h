// Where the parts of a packed matrix of small integers lie.
#pragma once

#include "quantized.h"

namespace octavo {

constexpr int64_t kQuads = kGroup / 4;        // four neighbouring inputs, whose codes are multiplied together
constexpr int64_t kQuadBytes = kPanel * 4;    // a byte for each code
constexpr int64_t kGroupScales = kPanel * 2;  // bytes

// A panel: the scales of its groups [groups][16], then, for kInt4, their minimums, each rounded up to 64 bytes; then
// the groups' codes.
//
// A group's codes are vectors of 64 bytes: [16 outputs][4 inputs]. kInt8 has one for each of the 8 quads. kInt4 has
// four, the j-th holding quad j in its lower and quad j + 4 in its upper halves of bytes.
struct QuantizedLayout {
  QuantizedLayout(WeightKind kind, int64_t inputs)
      : is_int4(kind == WeightKind::kInt4),
        groups(inputs / kGroup),
        minimums((groups * kGroupScales + 63) / 64 * 64),
        codes(is_int4 ? 2 * minimums : minimums),
        group_codes(is_int4 ? kQuads / 2 * kQuadBytes : kQuads * kQuadBytes),
        panel(codes + groups * group_codes) {}

  bool is_int4;
  int64_t groups;
  // In bytes from the panel's first.
  int64_t minimums;
  int64_t codes;
  // In bytes.
  int64_t group_codes;
  int64_t panel;
};

}  // namespace octavo
