// The two products of attention, for a few rows of queries at a time: queries with keys, weights with values.
//
// Each sum goes over its terms in order, in one lane, whatever the number of rows and however the terms are stored. So
// a row's result is the same to the bit in every path that leads here.
#pragma once

#include <algorithm>
#include <array>
#include <utility>

#include "attention_layout.h"
#include "vec.h"

namespace octavo {

// Rows in one call, and vectors of tokens: as many sums as fit into the registers beside what is multiplied.
#if defined(__AVX512F__)
constexpr int kRows = 8;
#elif defined(__AVX2__)
constexpr int kRows = 6;
#else
constexpr int kRows = 4;
#endif
constexpr int kTokenVectors = 2;

constexpr int kGroupTiles = 4;
constexpr int kGroup = kGroupTiles * kTile;  // tokens whose keys or values are read together

// Tokens of one tile and head: where they are and how they are stored. A tile's tokens are at absolute positions from a
// multiple of kTile on.
struct Tiles {
  const uint8_t* start[kGroupTiles];
  const uint8_t* ahead[kGroupTiles];  // what will be needed soon after, laid out alike
  int64_t stride;                     // bytes from one step (see Stored) to the next
};

// How numbers that are multiplied one step after another are stored, and kLanes of each step taken out.
template <KvKind kind>
struct Stored;

template <>
struct Stored<KvKind::kFloat32> {
  static constexpr int kSteps = 1;
  static constexpr int kBytes = 4;  // of a lane
  static void load(const uint8_t* p, Vec (&out)[1]) { out[0] = octavo::load(reinterpret_cast<const float*>(p)); }
};

template <>
struct Stored<KvKind::kBfloat16> {
  static constexpr int kSteps = 2;
  static constexpr int kBytes = 4;
  static void load(const uint8_t* p, Vec (&out)[2]) {
    const IVec pairs = load_bits(p);
    out[0] = first_of_pairs(pairs);
    out[1] = second_of_pairs(pairs);
  }
};

template <>
struct Stored<KvKind::kInt8> {
  static constexpr int kSteps = 1;
  static constexpr int kBytes = 1;
  static void load(const uint8_t* p, Vec (&out)[1]) { out[0] = load_int8(reinterpret_cast<const int8_t*>(p)); }
};

inline void prefetch(const uint8_t* p) { __builtin_prefetch(p, 0, 3); }

// scores[m][t] = sum over d of queries[m][d] * keys[d][t], for M rows and the tokens of kTokenVectors vectors that
// begin at vector `first` of the tiles. Entries of the queries beyond the head's size are 0.
template <KvKind kind, int M>
void multiply_keys(const Tiles& keys, int first, int64_t head_dim, const float* queries, int64_t query_stride,
                   float* scores, int64_t score_stride) {
  using Format = Stored<kind>;
  constexpr int kTileVectors = kTile / kLanes;
  const uint8_t *from[kTokenVectors], *ahead[kTokenVectors];
  for (int v = 0; v < kTokenVectors; ++v) {
    const int tile = (first + v) / kTileVectors, lane = (first + v) % kTileVectors * kLanes;
    from[v] = keys.start[tile] + lane * Format::kBytes;
    ahead[v] = keys.ahead[tile] + lane * Format::kBytes;
  }
  Vec sums[M][kTokenVectors] = {};
  for (int64_t d = 0, offset = 0; d < head_dim; d += Format::kSteps, offset += keys.stride) {
    Vec key[kTokenVectors][Format::kSteps];
    for (int v = 0; v < kTokenVectors; ++v) {
      Format::load(from[v] + offset, key[v]);
      prefetch(ahead[v] + offset);
    }
    for (int step = 0; step < Format::kSteps; ++step)
      for (int m = 0; m < M; ++m) {
        const Vec query = broadcast(queries[m * query_stride + d + step]);
        for (int v = 0; v < kTokenVectors; ++v) sums[m][v] = fma(query, key[v][step], sums[m][v]);
      }
  }
  for (int m = 0; m < M; ++m)
    for (int v = 0; v < kTokenVectors; ++v) store(scores + m * score_stride + (first + v) * kLanes, sums[m][v]);
}

// sums[m][d] += sum over t in [first, last) of weights[m][t] * values[t][d], for M rows and V vectors of entries from
// `entry` on. Tokens are counted from the first tile's first.
template <KvKind kind, int M, int V>
void add_values(const Tiles& values, int64_t first, int64_t last, int64_t entry, const float* weights,
                int64_t weight_stride, float* sums, int64_t sum_stride) {
  using Format = Stored<kind>;
  Vec sum[M][V];
  for (int m = 0; m < M; ++m)
    for (int v = 0; v < V; ++v) sum[m][v] = load(sums + m * sum_stride + entry + v * kLanes);
  const auto add = [&](const Vec(&value)[V][Format::kSteps], int step, const float* weight) {
    for (int m = 0; m < M; ++m) {
      const Vec factor = broadcast(weight[m * weight_stride]);
      for (int v = 0; v < V; ++v) sum[m][v] = fma(factor, value[v][step], sum[m][v]);
    }
  };
  for (int64_t tile = first / kTile; tile * kTile < last; ++tile) {
    const uint8_t* from = values.start[tile] + entry * Format::kBytes;
    const uint8_t* ahead = values.ahead[tile] + entry * Format::kBytes;
    const float* weight = weights + tile * kTile;
    const int64_t begin = std::max<int64_t>(first - tile * kTile, 0);
    const int64_t end = std::min<int64_t>(last - tile * kTile, kTile);
    for (int64_t t = begin / Format::kSteps * Format::kSteps; t < end; t += Format::kSteps) {
      const int64_t offset = t / Format::kSteps * values.stride;
      Vec value[V][Format::kSteps];
      for (int v = 0; v < V; ++v) {
        Format::load(from + offset + v * kLanes * Format::kBytes, value[v]);
        prefetch(ahead + offset + v * kLanes * Format::kBytes);
      }
      // What lies beside the first or the last token may be anything, NaN included: it is not multiplied by 0.
      for (int step = 0; step < Format::kSteps; ++step)
        if (Format::kSteps == 1 || (t + step >= begin && t + step < end)) add(value, step, weight + t + step);
    }
  }
  for (int m = 0; m < M; ++m)
    for (int v = 0; v < V; ++v) store(sums + m * sum_stride + entry + v * kLanes, sum[m][v]);
}

// The vectors of a head's entries, as many at once as the registers hold beside each other.
template <KvKind kind, int M>
void add_head_values(const Tiles& values, int64_t first, int64_t last, int64_t width, const float* weights,
                     int64_t weight_stride, float* sums, int64_t sum_stride) {
  constexpr int kMost = M * 4 <= 2 * kRows ? 4 : 2;
  int64_t entry = 0;
  for (; entry + kMost * kLanes <= width; entry += kMost * kLanes)
    add_values<kind, M, kMost>(values, first, last, entry, weights, weight_stride, sums, sum_stride);
  for (; entry < width; entry += kLanes)
    add_values<kind, M, 1>(values, first, last, entry, weights, weight_stride, sums, sum_stride);
}

using MultiplyKeys = void (*)(const Tiles&, int, int64_t, const float*, int64_t, float*, int64_t);
using AddValues = void (*)(const Tiles&, int64_t, int64_t, int64_t, const float*, int64_t, float*, int64_t);

// The functions for 1 to kRows rows, at the number of rows less 1.
struct RowKernels {
  std::array<MultiplyKeys, kRows> multiply_keys;
  std::array<AddValues, kRows> add_values;
};

template <KvKind kind, int... rows>
constexpr RowKernels row_kernels(std::integer_sequence<int, rows...>) {
  return {{multiply_keys<kind, rows + 1>...}, {add_head_values<kind, rows + 1>...}};
}

inline const RowKernels& row_kernels(KvKind kind) {
  using Rows = std::make_integer_sequence<int, kRows>;
  static constexpr RowKernels kKernels[] = {row_kernels<KvKind::kFloat32>(Rows{}),
                                            row_kernels<KvKind::kBfloat16>(Rows{}), row_kernels<KvKind::kInt8>(Rows{})};
  return kKernels[static_cast<int>(kind)];
}

}  // namespace octavo
