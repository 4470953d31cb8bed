#include "linear_float.h"

#include <algorithm>

#include "epilogue.h"
#include "linear_amx.h"
#include "linear_kernel.h"

namespace octavo {

namespace {

// Weights are used for all rows in chunks of at most this many inputs: a pair of panels of them as floats is 32 KiB,
// which stays in the first-level cache.
constexpr int64_t kChunk = 256;

// Rows of x are taken in blocks of at most this many bytes, which stay in the second-level cache while the weights
// pass.
constexpr int64_t kBlockBytes = 1 << 20;
constexpr int64_t kMostBlockRows = 256, kFewestBlockRows = 2 * kTileRows;

// How many inputs before their use weights are fetched that are used once: 4 KiB of a bfloat16 panel. A page's first
// lines are what the processor does not foresee.
constexpr int64_t kAhead = 128;

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
        pairs_(divided_up(weight.outputs, kPair)) {}

  void run(Team& team) const {
    if (rows_ <= kTileRows)
      team.parallel_ahead(pairs_, [this](int64_t pair, int64_t next) { few_rows(pair, next < pairs_ ? next : pair); });
    else
      many_rows(team);
  }

 private:
  // All rows at once: the weights go from memory to the registers. What `next` needs first is fetched at the end.
  void few_rows(int64_t pair, int64_t next) const {
    alignas(64) float products[kTileRows * kPair];
    constexpr int64_t kStep = Panels::panel_bytes(2);
    const int64_t head = std::max<int64_t>(0, weight_.inputs - kAhead) / 2 * 2;
    const PanelPair ahead = panels(pair, kAhead), ahead_of_next = panels(next, 0);
    if (head > 0)
      multiply_pair<Panels, false>(rows_, panels(pair, 0), head,
                                   {x_, x_stride_, products, false, nullptr, {ahead.first, ahead.distance, kStep}});
    multiply_pair<Panels, false>(
        rows_, panels(pair, head), weight_.inputs - head,
        {x_ + head, x_stride_, products, head > 0, nullptr, {ahead_of_next.first, ahead_of_next.distance, kStep}});
    finish(products, rows_, 2, weight_, pair * kPair, y_, y_stride_, epilogue_);
  }

  void many_rows(Team& team) const {
    // So many that fit, but few enough that there is work for all threads.
    const int64_t fit = kBlockBytes / (weight_.inputs * 4), share = rows_ * pairs_ / (2 * team.size());
    const int64_t most = std::min(std::max(std::min(fit, share), kFewestBlockRows), kMostBlockRows);
    const int64_t blocks = divided_up(rows_, most), items = blocks * pairs_;
    team.parallel_ahead(items, [=](int64_t item, int64_t next) {
      const int64_t first = part_begin(rows_, blocks, item / pairs_),
                    end = part_begin(rows_, blocks, item / pairs_ + 1);
      block(item % pairs_, next < items ? next % pairs_ : item % pairs_, first, end - first);
    });
  }

  // Some rows, tile by tile with each chunk of the weights. The first tile makes them floats on the way. The next
  // chunk, or what `next` begins with, is fetched meanwhile.
  void block(int64_t pair, int64_t next, int64_t first_row, int64_t rows) const {
    alignas(64) float floats[kChunk * kPair];
    alignas(64) float products[kMostBlockRows * kPair];
    const int64_t tiles = divided_up(rows, kTileRows), chunks = divided_up(weight_.inputs, kChunk);
    const int64_t chunk = divided_up(weight_.inputs, 2 * chunks) * 2;
    for (int64_t k = 0; k < weight_.inputs; k += chunk) {
      const int64_t count = std::min(chunk, weight_.inputs - k);
      const bool last = k + count == weight_.inputs;
      const PanelPair own = panels(pair, k), ahead = last ? panels(next, 0) : panels(pair, k + count);
      for (int64_t i = 0; i < tiles; ++i) {
        const int64_t begin = part_begin(rows, tiles, i), size = part_begin(rows, tiles, i + 1) - begin;
        const int64_t row = first_row + begin;
        Tile tile = {x_ + row * x_stride_ + k, x_stride_, products + begin * kPair, k > 0, floats, {}};
        tile.ahead = {ahead.first + i * Panels::panel_bytes(count) / tiles, ahead.distance,
                      Panels::panel_bytes(2) / tiles};
        if (i == 0)
          multiply_pair<Panels, true>(size, own, count, tile);
        else
          multiply_pair<FloatPairs, false>(size, {reinterpret_cast<const uint8_t*>(floats), kPanel * 4}, count, tile);
        if (last) finish(tile.products, size, 2, weight_, pair * kPair, y_ + row * y_stride_, y_stride_, epilogue_);
      }
    }
  }

  PanelPair panels(int64_t pair, int64_t k) const { return panel_pair<Panels>(weight_, pair, k); }

  const Linear& weight_;
  const float* const x_;
  const int64_t x_stride_;
  const int64_t rows_;
  float* const y_;
  const int64_t y_stride_;
  const Epilogue epilogue_;
  const int64_t pairs_;
};

}  // namespace

void float_linear(Team& team, const Linear& weight, const float* x, int64_t x_stride, int64_t rows, float* y,
                  int64_t y_stride, Epilogue epilogue) {
  const auto multiply = [&](auto panels) {
    Product<decltype(panels)>(weight, x, x_stride, rows, y, y_stride, epilogue).run(team);
  };
  if (weight.kind == WeightKind::kFloat32) return multiply(FloatPanels{});
  if constexpr (!kHasAmx) multiply(Bf16Panels{});
}

}  // namespace octavo
