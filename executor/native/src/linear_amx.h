// Products with matrices of bfloat16 on tile registers, where the level has them. x is rounded to bfloat16.
#pragma once

#include "amx.h"
#include "linear.h"

namespace octavo {

#if defined(OCTAVO_AMX)
constexpr bool kHasAmx = true;
#else
constexpr bool kHasAmx = false;
#endif

// Only where kHasAmx.
size_t amx_workspace_bytes(int64_t rows, int64_t inputs);
void amx_linear(Team& team, const Linear& weight, const float* x, int64_t x_stride, int64_t rows, float* y,
                int64_t y_stride, Epilogue epilogue, void* workspace);

}  // namespace octavo
