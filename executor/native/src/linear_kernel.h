// The innermost loops of products: some rows of x with two neighbouring panels, in registers.
//
// Each element of a product is one chain of fused multiply-adds over k in ascending order, in every loop here. So it
// has the same bits whichever loop, with however many rows beside it, computed it.
#pragma once

#include <array>
#include <utility>

#include "epilogue.h"
#include "panels.h"

#define OCTAVO_UNROLL _Pragma("GCC unroll 32")

namespace octavo {

constexpr int64_t kPair = 2 * kPanel;  // outputs that are computed together: a panel of gates and one of ups

// Accumulators are kTileRows rows of kTileParts vectors. They, the weights and one broadcast x fill the registers.
#if defined(__AVX512F__)
constexpr int kTileRows = 13, kTileParts = 2;
#elif defined(__aarch64__)
constexpr int kTileRows = 6, kTileParts = 4;
#else
constexpr int kTileRows = 6, kTileParts = 2;
#endif

// Cache lines to be fetched into the second-level cache during a computation, one for each two k.
struct Ahead {
  const uint8_t* line;
  int64_t step;  // bytes to the next; 0: none is wanted, and `line` is any in the cache
};

// kLanes outputs of a panel: the weights of one k, or of the one after it.
template <typename Panels>
struct PairOfK;

template <>
struct PairOfK<FloatPanels> {
  static constexpr int64_t kBytes = 2 * kPanel * 4;  // of a panel

  explicit PairOfK(const uint8_t* at) : weights(reinterpret_cast<const float*>(at)) {}
  Vec first() const { return load(weights); }
  Vec second() const { return load(weights + kPanel); }

  const float* weights;
};

template <>
struct PairOfK<Bf16Panels> {
  static constexpr int64_t kBytes = kPanel * 4;

  explicit PairOfK(const uint8_t* at) : pairs(load_bits(at)) {}
  Vec first() const { return first_of_pairs(pairs); }
  Vec second() const { return second_of_pairs(pairs); }

  IVec pairs;
};

// products[row][..] += `count` k of Rows rows of x times kTileParts vectors of two panels, the first of which begins at
// `panel` and those of the other panel `distance` bytes after the first's. Rows of products are kPair apart. Without
// `continues`, products begin at 0.
template <typename Panels, int Rows>
void multiply_tile(const uint8_t* panel, int64_t distance, int64_t count, const float* x, int64_t x_stride,
                   float* products, bool continues, Ahead ahead) {
  using Pair = PairOfK<Panels>;
  Vec sums[Rows][kTileParts];
  OCTAVO_UNROLL for (int row = 0; row < Rows; ++row) OCTAVO_UNROLL for (int part = 0; part < kTileParts; ++part)
      sums[row][part] = continues ? load(products + row * kPair + part * kLanes) : zero();

  const auto pair = [&](int part) { return Pair(panel + part / kParts * distance + part % kParts * (4 * kLanes)); };
  const auto add = [&](const float* x_k, const Vec(&weights)[kTileParts]) {
    OCTAVO_UNROLL for (int row = 0; row < Rows; ++row) {
      const Vec factor = broadcast(x_k[row * x_stride]);
      OCTAVO_UNROLL for (int part = 0; part < kTileParts; ++part) sums[row][part] =
          fma(factor, weights[part], sums[row][part]);
    }
  };
  int64_t left = count;
  for (; left >= 2; left -= 2, x += 2, panel += Pair::kBytes, ahead.line += ahead.step) {
    __builtin_prefetch(ahead.line, 0, 2);
    Vec weights[kTileParts];
    OCTAVO_UNROLL for (int part = 0; part < kTileParts; ++part) weights[part] = pair(part).first();
    add(x, weights);
    OCTAVO_UNROLL for (int part = 0; part < kTileParts; ++part) weights[part] = pair(part).second();
    add(x + 1, weights);
  }
  if (left) {
    Vec weights[kTileParts];
    OCTAVO_UNROLL for (int part = 0; part < kTileParts; ++part) weights[part] = pair(part).first();
    add(x, weights);
  }
  OCTAVO_UNROLL for (int row = 0; row < Rows; ++row) OCTAVO_UNROLL for (int part = 0; part < kTileParts; ++part)
      store(products + row * kPair + part * kLanes, sums[row][part]);
}

template <typename Panels>
using TileKernel = decltype(&multiply_tile<Panels, 1>);

template <typename Panels, int... Index>
constexpr std::array<TileKernel<Panels>, kTileRows> tile_kernels(std::integer_sequence<int, Index...>) {
  return {multiply_tile<Panels, Index + 1>...};
}

// [rows - 1]
template <typename Panels>
constexpr auto kTileKernels = tile_kernels<Panels>(std::make_integer_sequence<int, kTileRows>{});

// multiply_tile for all of a pair of panels. `rows` is at most kTileRows.
template <typename Panels>
void multiply_pair(int64_t rows, const uint8_t* panel, int64_t distance, int64_t count, const float* x,
                   int64_t x_stride, float* products, bool continues, Ahead ahead) {
  const auto kernel = kTileKernels<Panels>[rows - 1];
  for (int part = 0; part < 2 * kParts; part += kTileParts, products += kTileParts * kLanes)
    kernel(panel + part / kParts * distance + part % kParts * (4 * kLanes), distance, count, x, x_stride, products,
           continues, ahead);
}

}  // namespace octavo
