#include "linear_float.h"

#include <algorithm>

#include "linear_kernel.h"

namespace octavo {

namespace {

// Inputs whose weights are expanded at a time: with a pair of panels 32 KiB, so that they stay in the first-level cache
// for all the rows.
constexpr int64_t kChunk = 256;

// Rows of x are taken in blocks of at most this many bytes, which stay in the second-level cache while the weights
// pass.
constexpr int64_t kBlockBytes = 1 << 20;
constexpr int64_t kMostBlockRows = 256, kFewestBlockRows = 4 * kTileRows;

int64_t divided_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

// The i-th of `parts` parts of n, all as equal as can be, begins here.
int64_t part_begin(int64_t n, int64_t parts, int64_t i) { return n * i / parts; }

template <typename Panels>
class Product {
 public:
  Product(const Linear& weight, const float* x, int64_t x_stride, int64_t rows, float* y, int64_t y_stride,
          Epilogue epilogue)
      : weight_(weight),
        x_(x),
        x_stride_(x_stride),
        rows_(rows),
        y_(y),
        y_stride_(y_stride),
        epilogue_(epilogue),
        panel_bytes_(Panels::panel_bytes(weight.inputs)),
        pairs_(divided_up(weight.outputs, kPair)) {}

  void run(Team& team) const {
    if (rows_ <= kTileRows)
      team.parallel(pairs_, [this](int64_t pair) { few_rows(pair); });
    else
      many_rows(team);
  }

 private:
  // All rows at once: the weights pass through the registers and nothing else.
  void few_rows(int64_t pair) const {
    alignas(64) float products[kTileRows * kPair];
    multiply_pair<Panels>(rows_, panel(pair), distance(pair), weight_.inputs, x_, x_stride_, products, false,
                          {reinterpret_cast<const uint8_t*>(x_), 0});
    finish(products, rows_, 2, weight_, pair * kPair, y_, y_stride_, epilogue_);
  }

  void many_rows(Team& team) const {
    const int64_t fit = kBlockBytes / (weight_.inputs * 4);
    const int64_t most = std::min(std::max(fit, kFewestBlockRows), kMostBlockRows);
    const int64_t blocks = divided_up(rows_, most), items = blocks * pairs_;
    team.parallel_ahead(items, [=](int64_t item, int64_t next) {
      const int64_t first = part_begin(rows_, blocks, item / pairs_),
                    end = part_begin(rows_, blocks, item / pairs_ + 1);
      block(item % pairs_, next < items ? next % pairs_ : item % pairs_, first, end - first);
    });
  }

  // Some rows, for which the weights become floats just once. What `next` needs first is fetched meanwhile.
  void block(int64_t pair, int64_t next, int64_t first_row, int64_t rows) const {
    alignas(64) float scratch[kChunk * kPair];
    alignas(64) float products[kMostBlockRows * kPair];
    const float* x = x_ + first_row * x_stride_;
    const int64_t tiles = divided_up(rows, kTileRows);
    for (int64_t k = 0; k < weight_.inputs; k += kChunk) {
      const int64_t count = std::min(kChunk, weight_.inputs - k);
      const bool last = k + count == weight_.inputs;
      const uint8_t* ahead = last ? panel(next) : panel(pair) + Panels::panel_bytes(k + count);
      const int64_t ahead_distance = distance(last ? next : pair);

      int64_t floats_distance = distance(pair);
      const uint8_t* floats = Panels::expand(panel(pair), k, count, floats_distance, scratch);
      for (int64_t tile = 0; tile < tiles; ++tile) {
        const int64_t begin = part_begin(rows, tiles, tile), end = part_begin(rows, tiles, tile + 1);
        const Ahead lines = {ahead + (tile == 1 ? ahead_distance : 0), tile < 2 ? 64 : 0};
        multiply_pair<FloatPanels>(end - begin, floats, floats_distance, count, x + begin * x_stride_ + k, x_stride_,
                                   products + begin * kPair, k > 0, lines);
      }
    }
    finish(products, rows, 2, weight_, pair * kPair, y_ + first_row * y_stride_, y_stride_, epilogue_);
  }

  const uint8_t* panel(int64_t pair) const {
    return static_cast<const uint8_t*>(weight_.weights) + 2 * pair * panel_bytes_;
  }

  // From the first panel of a pair to the second. One that has no second counts as its own: `finish` drops the
  // products.
  int64_t distance(int64_t pair) const { return (2 * pair + 1) * kPanel < weight_.outputs ? panel_bytes_ : 0; }

  const Linear& weight_;
  const float* const x_;
  const int64_t x_stride_;
  const int64_t rows_;
  float* const y_;
  const int64_t y_stride_;
  const Epilogue epilogue_;
  const int64_t panel_bytes_;
  const int64_t pairs_;
};

}  // namespace

void float_linear(Team& team, const Linear& weight, const float* x, int64_t x_stride, int64_t rows, float* y,
                  int64_t y_stride, Epilogue epilogue) {
  if (weight.kind == WeightKind::kFloat32)
    Product<FloatPanels>(weight, x, x_stride, rows, y, y_stride, epilogue).run(team);
  else
    Product<Bf16Panels>(weight, x, x_stride, rows, y, y_stride, epilogue).run(team);
}

}  // namespace octavo
