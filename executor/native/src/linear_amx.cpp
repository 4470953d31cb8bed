#include "linear_amx.h"

#if defined(OCTAVO_AMX)

#include <algorithm>

#include "epilogue.h"
#include "panels.h"

namespace octavo {

namespace {

constexpr int64_t kTileRows = 16, kTileInputs = 32, kTileBytes = 1024;

// Tiles of rows that pass one pair of panels after another, so that they stay in the second-level cache.
constexpr int64_t kMostBlockTiles = 16, kBlockBytes = 1 << 20;

// How many tiles before their use weights are fetched.
constexpr int64_t kAhead = 4;

int64_t divided_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

// x as bfloat16: [tiles of rows][steps][16][32], padded with zeros. A step is kTileInputs of k.
class RoundedRows {
 public:
  RoundedRows(void* memory, int64_t rows, int64_t inputs)
      : memory_(static_cast<uint16_t*>(memory)), rows_(rows), inputs_(inputs) {}

  int64_t tiles() const { return divided_up(rows_, kTileRows); }
  int64_t steps() const { return divided_up(inputs_, kTileInputs); }
  int64_t tile_bytes() const { return steps() * kTileBytes; }
  const uint8_t* tile(int64_t i) const { return reinterpret_cast<const uint8_t*>(memory_) + i * tile_bytes(); }

  void round(Team& team, const float* x, int64_t x_stride) const {
    team.parallel(tiles(), [=](int64_t tile) {
      for (int64_t row = tile * kTileRows; row < (tile + 1) * kTileRows; ++row)
        for (int64_t step = 0; step < steps(); ++step) {
          uint16_t* out = memory_ + ((tile * steps() + step) * kTileRows + row % kTileRows) * kTileInputs;
          const int64_t k = step * kTileInputs, count = row < rows_ ? std::min(kTileInputs, inputs_ - k) : 0;
          round_inputs(x + row * x_stride + k, count, out);
        }
    });
  }

 private:
  static void round_inputs(const float* x, int64_t count, uint16_t* out) {
    int64_t i = 0;
    for (; i + kLanes <= count; i += kLanes) store_bf16(out + i, load(x + i));
    for (; i < count; ++i) out[i] = float_to_bf16(x[i]);
    std::fill(out + i, out + kTileInputs, 0);
  }

  uint16_t* const memory_;
  const int64_t rows_;
  const int64_t inputs_;
};

// The tiles of one or two of x with a pair of panels are registers 0 to 3; x is in 4 and 5, the panels in 6 and 7. Each
// element is one chain of additions, a step at a time, whatever is beside it.
template <bool kTwo>
void multiply_step(const uint8_t* x, int64_t x_distance, const uint8_t* panel, int64_t panel_distance) {
  amx::load<6>(panel, kPanel * 4);
  amx::load<7>(panel + panel_distance, kPanel * 4);
  amx::load<4>(x, kTileInputs * 2);
  amx::multiply_bf16<0, 4, 6>();
  amx::multiply_bf16<1, 4, 7>();
  if (kTwo) {
    amx::load<5>(x + x_distance, kTileInputs * 2);
    amx::multiply_bf16<2, 5, 6>();
    amx::multiply_bf16<3, 5, 7>();
  }
}

class Product {
 public:
  Product(const Linear& weight, const RoundedRows& x, int64_t rows, float* y, int64_t y_stride, Epilogue epilogue)
      : weight_(weight), x_(x), rows_(rows), y_(y), y_stride_(y_stride), epilogue_(epilogue) {}

  void run(Team& team) const {
    // So many tiles that fit, but few enough that there is work for all threads.
    const int64_t tiles = x_.tiles(), pairs = divided_up(weight_.outputs, kPair);
    const int64_t fit = kBlockBytes / x_.tile_bytes(), share = tiles * pairs / (2 * team.size());
    const int64_t most = std::min(std::max<int64_t>(std::min(fit, share) / 2 * 2, 2), kMostBlockTiles);
    const int64_t items = divided_up(tiles, most) * pairs;
    amx::configure();
    team.parallel_ahead(items, [=](int64_t item, int64_t next) {
      const int64_t pair = item % pairs, first = item / pairs * most, end = std::min(first + most, tiles);
      for (int64_t tile = first; tile < end; tile += 2) {
        const bool fetches = tile == first && next < items;
        if (tile + 1 < end)
          multiply<true>(pair, fetches ? next % pairs : pair, tile);
        else
          multiply<false>(pair, fetches ? next % pairs : pair, tile);
      }
    });
    amx::release();
  }

 private:
  // Fetches the pair's weights and the first ones of `next` before they are used.
  template <bool kTwo>
  void multiply(int64_t pair, int64_t next, int64_t tile) const {
    alignas(64) float products[2 * kTileRows * kPair];
    const PanelPair panels = panel_pair<Bf16Panels>(weight_, pair, 0);
    const PanelPair next_panels = panel_pair<Bf16Panels>(weight_, next, 0);
    const uint8_t* x = x_.tile(tile);
    const int64_t whole_steps = weight_.inputs / kTileInputs;
    amx::zero<0>();
    amx::zero<1>();
    amx::zero<2>();
    amx::zero<3>();
    for (int64_t step = 0; step < whole_steps; ++step) {
      const int64_t ahead = step + kAhead;
      if (ahead < whole_steps)
        fetch(panels, ahead);
      else
        fetch(next_panels, ahead - whole_steps);
      multiply_step<kTwo>(x + step * kTileBytes, x_.tile_bytes(), panels.first + step * kTileBytes, panels.distance);
    }
    if (whole_steps < x_.steps())
      last_step<kTwo>(x + whole_steps * kTileBytes, panel_pair<Bf16Panels>(weight_, pair, whole_steps * kTileInputs));
    amx::store<0>(products, kPair * 4);
    amx::store<1>(products + kPanel, kPair * 4);
    if (kTwo) {
      amx::store<2>(products + kTileRows * kPair, kPair * 4);
      amx::store<3>(products + kTileRows * kPair + kPanel, kPair * 4);
    }
    const int64_t row = tile * kTileRows, rows = std::min((kTwo ? 2 : 1) * kTileRows, rows_ - row);
    finish(products, rows, 2, weight_, pair * kPair, y_ + row * y_stride_, y_stride_, epilogue_);
  }

  // Fewer inputs than a tile has: what follows a panel is not multiplied, not even with 0, as it may be no number.
  template <bool kTwo>
  void last_step(const uint8_t* x, PanelPair panels) const {
    alignas(64) uint8_t padded[2][kTileBytes] = {};
    const int64_t bytes = Bf16Panels::panel_bytes(weight_.inputs % kTileInputs);
    std::memcpy(padded[0], panels.first, bytes);
    std::memcpy(padded[1], panels.first + panels.distance, bytes);
    multiply_step<kTwo>(x, x_.tile_bytes(), padded[0], kTileBytes);
  }

  static void fetch(PanelPair panels, int64_t step) {
    for (int64_t line = 0; line < kTileBytes; line += 64) {
      __builtin_prefetch(panels.first + step * kTileBytes + line, 0, 2);
      __builtin_prefetch(panels.first + panels.distance + step * kTileBytes + line, 0, 2);
    }
  }

  const Linear& weight_;
  const RoundedRows& x_;
  const int64_t rows_;
  float* const y_;
  const int64_t y_stride_;
  const Epilogue epilogue_;
};

}  // namespace

size_t amx_workspace_bytes(int64_t rows, int64_t inputs) {
  const RoundedRows x(nullptr, rows, inputs);
  return x.tiles() * x.tile_bytes();
}

void amx_linear(Team& team, const Linear& weight, const float* x, int64_t x_stride, int64_t rows, float* y,
                int64_t y_stride, Epilogue epilogue, void* workspace) {
  const RoundedRows rounded(workspace, rows, weight.inputs);
  rounded.round(team, x, x_stride);
  Product(weight, rounded, rows, y, y_stride, epilogue).run(team);
}

}  // namespace octavo

#endif
