// Products with matrices of float32 and, where there are no tile registers for them, of bfloat16.
#pragma once

#include "linear.h"

namespace octavo {

void float_linear(Team& team, const Linear& weight, const float* x, int64_t x_stride, int64_t rows, float* y,
                  int64_t y_stride, Epilogue epilogue);

}  // namespace octavo
