// The innermost products: one panel with some rows. One implementation for each level.
//
// Whatever the level and the number of rows, an output is the sum over groups, in their order, of
// scale * dot * activation scale + minimum * activation sum, with the integer dot exact.
#pragma once

#include <cstring>

#include "quantized_half.h"
#include "quantized_layout.h"
#include "quantized_rows.h"
#include "vec.h"

namespace octavo {

struct QuantizedPanel {
  QuantizedPanel(const QuantizedLayout& layout, const uint8_t* panel, bool is_new)
      : is_new(is_new),
        groups(layout.groups),
        scales(reinterpret_cast<const uint16_t*>(panel)),
        minimums(reinterpret_cast<const uint16_t*>(panel + layout.minimums)),
        codes(panel + layout.codes) {}

  bool is_new;  // it was not multiplied with the row block before, so it comes from afar
  int64_t groups;
  const uint16_t* scales;    // [groups][16]
  const uint16_t* minimums;  // the same, for kInt4
  const uint8_t* codes;
};

}  // namespace octavo

#if defined(__AVX512VNNI__)
#include "quantized_kernel_avx512.h"
#elif defined(__AVX2__)
#include "quantized_kernel_avx2.h"
#else
#include "quantized_kernel_plain.h"
#endif
