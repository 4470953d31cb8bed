// A token's embedding out of a packed matrix.
#pragma once

#include <cstdint>

#include "linear.h"

namespace octavo {

// Row `row` of the matrix, [inputs] floats.
void unpack_row(const Linear& matrix, int64_t row, float* out);

}  // namespace octavo
