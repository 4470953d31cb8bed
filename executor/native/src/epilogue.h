// What happens to products on their way to memory. Shared by the kernels of all kinds of weights.
#pragma once

#include "activation.h"
#include "linear.h"

namespace octavo {

// Products of `rows` rows with neighbouring panels, [rows][panels * kPanel], of which `outputs` of each row are of the
// matrix and the others of its padding. `first` is the first's number among the matrix's outputs. Adds the bias,
// applies the epilogue and stores in y, whose row 0 is the first row of the products. With a gate, panels are whole
// pairs.
void finish(const float* products, int64_t rows, int64_t panels, const Linear& weight, int64_t first, float* y,
            int64_t y_stride, Epilogue epilogue);

}  // namespace octavo
