// The innermost loops of products: some rows of x with a pair of neighbouring panels, in registers.
//
// Each element of a product is one chain of fused multiply-adds over k in ascending order, in every loop here. So it
// has the same bits whichever loop, with however many rows beside it, computed it.
#pragma once

#include <array>
#include <type_traits>
#include <utility>

#include "panels.h"

namespace octavo {

// Accumulators are kTileRows rows of kTileParts vectors. They, the weights and one broadcast x fill the registers.
#if defined(__AVX512F__)
constexpr int kTileRows = 13, kTileParts = 2;
#elif defined(__aarch64__)
constexpr int kTileRows = 6, kTileParts = 4;
#else
constexpr int kTileRows = 6, kTileParts = 2;
#endif

// A pair of panels that is fetched into the cache during a computation: for each two k, the line at `line` and the one
// `distance` bytes after it, before `line` moves on by `step`.
struct Ahead {
  const uint8_t* line;
  int64_t distance;
  int64_t step;
};

// kLanes outputs of a panel: the weights of one k, or of the one after it.
template <typename Panels>
struct PairOfK;

template <>
struct PairOfK<FloatPanels> {
  explicit PairOfK(const uint8_t* at) : weights(reinterpret_cast<const float*>(at)) {}
  Vec first() const { return load(weights); }
  Vec second() const { return load(weights + kPanel); }

  const float* weights;
};

template <>
struct PairOfK<FloatPairs> {
  explicit PairOfK(const uint8_t* at) : weights(reinterpret_cast<const float*>(at)) {}
  Vec first() const { return load(weights); }
  Vec second() const { return load(weights + kPair); }

  const float* weights;
};

template <>
struct PairOfK<Bf16Panels> {
  explicit PairOfK(const uint8_t* at) : pairs(load_bits(at)) {}
  Vec first() const { return first_of_pairs(pairs); }
  Vec second() const { return second_of_pairs(pairs); }

  IVec pairs;
};

struct Tile {
  const float* x;
  int64_t x_stride;
  float* products;  // rows are kPair apart
  bool continues;   // whether products are added to, or begin at 0
  float* floats;    // [k][kPair], where the weights are kept as floats, if they are
  Ahead ahead;
};

// products[row][..] += `count` k of Rows rows of x times kTileParts vectors of a pair of panels, from `first_part` on.
template <typename Panels, int Rows, bool kKeep>
void multiply_tile(PanelPair panels, int first_part, int64_t count, const Tile& tile) {
  const float* x = tile.x;
  const int64_t x_stride = tile.x_stride;
  const uint8_t* weights_at = panels.first + first_part / kParts * panels.distance + first_part % kParts * (4 * kLanes);
  float* products = tile.products + first_part * kLanes;
  float* floats = kKeep ? tile.floats + first_part * kLanes : nullptr;
  const int64_t ahead_distance = tile.ahead.distance, ahead_step = tile.ahead.step;
  const uint8_t* ahead = tile.ahead.line + first_part / kParts * ahead_distance;
  // Weights that are used once come from memory, and with them what is fetched ahead: all of it, into the first level.
  constexpr bool kOnce = !kKeep && !std::is_same_v<Panels, FloatPairs>;
  constexpr int kLines = kOnce ? Panels::panel_bytes(2) / 64 : 1, kLocality = kOnce ? 3 : 2;

  Vec sums[Rows][kTileParts];
  OCTAVO_UNROLL
  for (int row = 0; row < Rows; ++row) {
    OCTAVO_UNROLL
    for (int part = 0; part < kTileParts; ++part)
      sums[row][part] = tile.continues ? load(products + row * kPair + part * kLanes) : zero();
  }

  const auto pair = [&](int part) {
    return PairOfK<Panels>(weights_at + part / kParts * panels.distance + part % kParts * (4 * kLanes));
  };
  const auto add = [&](int64_t k, const Vec(&weights)[kTileParts]) {
    OCTAVO_UNROLL
    for (int row = 0; row < Rows; ++row) {
      const Vec factor = broadcast(x[row * x_stride + k]);
      OCTAVO_UNROLL
      for (int part = 0; part < kTileParts; ++part) sums[row][part] = fma(factor, weights[part], sums[row][part]);
    }
    if (kKeep) {
      OCTAVO_UNROLL
      for (int part = 0; part < kTileParts; ++part) store(floats + k * kPair + part * kLanes, weights[part]);
    }
  };
  int64_t left = count;
  for (; left >= 2; left -= 2) {
    OCTAVO_UNROLL
    for (int part = 0; part < kTileParts; part += kParts) {
      OCTAVO_UNROLL
      for (int line = 0; line < kLines; ++line)
        __builtin_prefetch(ahead + part / kParts * ahead_distance + line * 64, 0, kLocality);
    }
    Vec weights[kTileParts];
    OCTAVO_UNROLL
    for (int part = 0; part < kTileParts; ++part) weights[part] = pair(part).first();
    add(0, weights);
    OCTAVO_UNROLL
    for (int part = 0; part < kTileParts; ++part) weights[part] = pair(part).second();
    add(1, weights);
    x += 2;
    weights_at += Panels::panel_bytes(2);
    ahead += ahead_step;
    if (kKeep) floats += 2 * kPair;
  }
  if (left) {
    Vec weights[kTileParts];
    OCTAVO_UNROLL
    for (int part = 0; part < kTileParts; ++part) weights[part] = pair(part).first();
    add(0, weights);
  }
  OCTAVO_UNROLL
  for (int row = 0; row < Rows; ++row) {
    OCTAVO_UNROLL
    for (int part = 0; part < kTileParts; ++part) store(products + row * kPair + part * kLanes, sums[row][part]);
  }
}

template <typename Panels, bool kKeep, int... Index>
constexpr auto tile_kernels(std::integer_sequence<int, Index...>) {
  return std::array{multiply_tile<Panels, Index + 1, kKeep>...};
}

// All of a pair of panels, for 1 to kTileRows rows.
template <typename Panels, bool kKeep>
void multiply_pair(int64_t rows, PanelPair panels, int64_t count, const Tile& tile) {
  static constexpr auto kernels = tile_kernels<Panels, kKeep>(std::make_integer_sequence<int, kTileRows>{});
  for (int part = 0; part < 2 * kParts; part += kTileParts) kernels[rows - 1](panels, part, count, tile);
}

}  // namespace octavo
