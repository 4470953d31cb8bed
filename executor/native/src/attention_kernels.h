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

// A sequence is attended in segments that begin at multiples of this position, each from scratch and merged in order:
// so a row's result depends neither on who computes which segment, nor on the rows beside it.
constexpr int64_t kSegment = 256;

// Rows of a segment's scores lie apart by more than a power of two, so that they don't share the same lines of the
// cache.
constexpr int64_t kScoreStride = kSegment + kTile;

constexpr int kGroupTiles = 4;
constexpr int kGroup = kGroupTiles * kTile;  // tokens whose keys or values are read together

// A tile is kTile tokens of one head, at absolute positions from a multiple of kTile on: keys or values of a group.
struct Tiles {
  const uint8_t* start[kGroupTiles];
  int64_t stride;  // bytes from one step (see Stored) to the next
};

// What will be needed next, to be fetched meanwhile: as many pieces of each tile as there are vectors of kTile lanes in
// the tiles that are read now.
struct Ahead {
  const uint8_t* start[kGroupTiles];
  int64_t stride;  // bytes from one piece to the next
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

// Into the second-level cache.
inline void prefetch(const uint8_t* p) { __builtin_prefetch(p, 0, 2); }

// scores[m][t] = sum over d of queries[d][m] * keys[d][t], for M rows and the tokens of kTokenVectors vectors that
// begin at vector `first` of the tiles.
//
// queries: [width][kRows], 0 beyond the head's size. scores: [M][kScoreStride]. ahead: read where kFetch.
template <KvKind kind, int M, bool kFetch>
void multiply_keys(const Tiles& keys, const Ahead& ahead, int first, int64_t head_dim, const float* queries,
                   float* scores) {
  using Format = Stored<kind>;
  constexpr int kTileVectors = kTile / kLanes;
  const uint8_t *from[kTokenVectors], *fetched[kTokenVectors];
  for (int v = 0; v < kTokenVectors; ++v) {
    const int tile = (first + v) / kTileVectors, lane = (first + v) % kTileVectors * kLanes;
    from[v] = keys.start[tile] + lane * Format::kBytes;
    if (kFetch) fetched[v] = ahead.start[tile] + lane * Format::kBytes;
  }
  Vec sums[M][kTokenVectors];
  OCTAVO_UNROLL
  for (int m = 0; m < M; ++m) OCTAVO_UNROLL
  for (int v = 0; v < kTokenVectors; ++v) sums[m][v] = zero();
  int64_t offset = 0, fetched_offset = 0;
  for (int64_t d = 0; d < head_dim; d += Format::kSteps, queries += Format::kSteps * kRows) {
    Vec key[kTokenVectors][Format::kSteps];
    OCTAVO_UNROLL
    for (int v = 0; v < kTokenVectors; ++v) {
      Format::load(from[v] + offset, key[v]);
      // Four pieces of int8 keys lie in a line.
      if (kFetch && (Format::kBytes == 4 || d % 4 == 0)) prefetch(fetched[v] + fetched_offset);
    }
    OCTAVO_UNROLL
    for (int step = 0; step < Format::kSteps; ++step) OCTAVO_UNROLL
    for (int m = 0; m < M; ++m) {
      const Vec query = broadcast(queries[step * kRows + m]);
      OCTAVO_UNROLL
      for (int v = 0; v < kTokenVectors; ++v) sums[m][v] = fma(query, key[v][step], sums[m][v]);
    }
    offset += keys.stride;
    if (kFetch) fetched_offset += ahead.stride;
  }
  OCTAVO_UNROLL
  for (int m = 0; m < M; ++m) OCTAVO_UNROLL
  for (int v = 0; v < kTokenVectors; ++v) store(scores + m * kScoreStride + (first + v) * kLanes, sums[m][v]);
}

// sums[m][d] += sum over t in [first, last) of weights[m][t] * values[t][d], for M rows and V vectors of entries from
// `entry` on. Tokens are counted from the first tile's first.
//
// weights: [M][kScoreStride]. sums: [M][width]. ahead: read where kFetch.
template <KvKind kind, int M, int V, bool kFetch>
void add_values(const Tiles& values, const Ahead& ahead, int64_t first, int64_t last, int64_t width, int64_t entry,
                const float* weights, float* sums) {
  using Format = Stored<kind>;
  Vec sum[M][V];
  OCTAVO_UNROLL
  for (int m = 0; m < M; ++m) OCTAVO_UNROLL
  for (int v = 0; v < V; ++v) sum[m][v] = load(sums + m * width + entry + v * kLanes);
  for (int64_t tile = first / kTile; tile * kTile < last; ++tile) {
    const uint8_t* from = values.start[tile] + entry * Format::kBytes;
    const uint8_t* fetched = kFetch ? ahead.start[tile] + entry / kTile * ahead.stride : nullptr;
    const float* weight = weights + tile * kTile;
    const int64_t begin = std::max<int64_t>(first - tile * kTile, 0);
    const int64_t end = std::min<int64_t>(last - tile * kTile, kTile);
    for (int64_t t = begin / Format::kSteps * Format::kSteps; t < end; t += Format::kSteps) {
      const int64_t row = t / Format::kSteps;
      Vec value[V][Format::kSteps];
      OCTAVO_UNROLL
      for (int v = 0; v < V; ++v) {
        Format::load(from + row * values.stride + v * kLanes * Format::kBytes, value[v]);
        if (kFetch && v * kLanes * Format::kBytes % 64 == 0)
          prefetch(fetched + (row * (width / kTile) + v * kLanes / kTile) * ahead.stride);
      }
      OCTAVO_UNROLL
      for (int step = 0; step < Format::kSteps; ++step) {
        // What lies beside the first or the last token may be anything, NaN included: it is not multiplied by 0.
        if (Format::kSteps > 1 && (t + step < begin || t + step >= end)) continue;
        OCTAVO_UNROLL
        for (int m = 0; m < M; ++m) {
          const Vec factor = broadcast(weight[m * kScoreStride + t + step]);
          OCTAVO_UNROLL
          for (int v = 0; v < V; ++v) sum[m][v] = fma(factor, value[v][step], sum[m][v]);
        }
      }
    }
  }
  OCTAVO_UNROLL
  for (int m = 0; m < M; ++m) OCTAVO_UNROLL
  for (int v = 0; v < V; ++v) store(sums + m * width + entry + v * kLanes, sum[m][v]);
}

// All of a head's entries, as many vectors at once as the registers hold beside each other.
template <KvKind kind, int M, bool kFetch>
void add_head_values(const Tiles& values, const Ahead& ahead, int64_t first, int64_t last, int64_t width,
                     const float* weights, float* sums) {
  constexpr int kMost = M * 4 <= 2 * kRows ? 4 : 2;
  int64_t entry = 0;
  for (; entry + kMost * kLanes <= width; entry += kMost * kLanes)
    add_values<kind, M, kMost, kFetch>(values, ahead, first, last, width, entry, weights, sums);
  for (; entry < width; entry += kLanes)
    add_values<kind, M, 1, kFetch>(values, ahead, first, last, width, entry, weights, sums);
}

using MultiplyKeys = void (*)(const Tiles&, const Ahead&, int, int64_t, const float*, float*);
using AddValues = void (*)(const Tiles&, const Ahead&, int64_t, int64_t, int64_t, const float*, float*);

// The functions for 1 to kRows rows, at the number of rows less 1.
struct RowKernels {
  std::array<MultiplyKeys, kRows> multiply_keys;
  std::array<AddValues, kRows> add_values;
};

template <KvKind kind, bool kFetch, int... rows>
constexpr RowKernels row_kernels(std::integer_sequence<int, rows...>) {
  return {{multiply_keys<kind, rows + 1, kFetch>...}, {add_head_values<kind, rows + 1, kFetch>...}};
}

// fetch: whether they fetch what is ahead.
inline const RowKernels& row_kernels(KvKind kind, bool fetch) {
  using Rows = std::make_integer_sequence<int, kRows>;
  static constexpr RowKernels kKernels[][2] = {
      {row_kernels<KvKind::kFloat32, false>(Rows{}), row_kernels<KvKind::kFloat32, true>(Rows{})},
      {row_kernels<KvKind::kBfloat16, false>(Rows{}), row_kernels<KvKind::kBfloat16, true>(Rows{})},
      {row_kernels<KvKind::kInt8, false>(Rows{}), row_kernels<KvKind::kInt8, true>(Rows{})}};
  return kKernels[static_cast<int>(kind)][fetch];
}

}  // namespace octavo
