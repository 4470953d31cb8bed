// From products of queries and keys to weights, for a row and a group of tokens at a time.
//
// Scores are logarithms to the base 2. The largest score and the sum of the weights are kept by lane until the
// segment's end: what a lane holds depends on the row's own positions alone.
#pragma once

#include <limits>

#include "attention_tiles.h"
#include "vec.h"

namespace octavo {

constexpr float kLog2E = 1.44269504f;

// 2^x for x <= 0 (2^-126 below that), within 4 units in the last place. What the exponent leaves, in [-1/2, 1/2], goes
// into the polynomial of degree 5 with the smallest relative error there.
inline Vec exp2_down(Vec x) {
  const Vec clamped = max(broadcast(-126.0f), x);
  const Vec shifted = clamped + broadcast(12582912.0f);  // 1.5 * 2^23: rounds to an integer, in the lowest bits
  const Vec rest = clamped - (shifted - broadcast(12582912.0f));
  Vec p = broadcast(1.32764720e-3f);
  p = fma(p, rest, broadcast(9.67554138e-3f));
  p = fma(p, rest, broadcast(5.55071327e-2f));
  p = fma(p, rest, broadcast(2.40221197e-1f));
  p = fma(p, rest, broadcast(6.93146967e-1f));
  p = fma(p, rest, broadcast(1.00000007f));
  return as_floats(as_bits(p) + (as_bits(shifted) << 23));
}

// tanh(x) = 1 - 2 / (e^2x + 1), whose absolute error is that of the last place of 1.
inline Vec tanh(Vec x) { return broadcast(1.0f) - broadcast(2.0f) / (exp(x + x) + broadcast(1.0f)); }

inline IVec lane_numbers() {
  IVec numbers{};
  for (int i = 0; i < kLanes; ++i) numbers[i] = i;
  return numbers;
}

// What queries are multiplied with beforehand.
inline float query_scale(const AttentionParams& params) {
  return params.soft_cap > 0 ? params.scale : params.scale * kLog2E;
}

// Products become scores.
struct ScoreFinish {
  float soft_cap;  // 0: none
  float slope;     // 0: none
  // Of the group's keys, or null.
  const float* key_scales;

  bool changes_nothing() const { return soft_cap == 0 && slope == 0 && !key_scales; }

  // t: position of the vector in the group; distance: the group's first position less the row's own.
  Vec operator()(Vec product, int64_t t, int64_t distance) const {
    Vec score = product;
    if (key_scales) score *= load(key_scales + t);
    if (soft_cap > 0) score = broadcast(soft_cap * kLog2E) * tanh(score / broadcast(soft_cap));
    if (slope != 0) {
      const IVec apart = lane_numbers() + static_cast<int32_t>(t + distance);
      score = fma(broadcast(slope * kLog2E), __builtin_convertvector(apart, Vec), score);
    }
    return score;
  }
};

// A row of products becomes scores, minus infinity where it doesn't see; `tops` [kLanes] the largest of each lane.
// Positions are counted from the group's first.
inline void finish_scores(const ScoreFinish& finish, TokenRange seen, int64_t distance, float* scores, float* tops) {
  Vec top = load(tops);
  if (finish.changes_nothing() && seen.begin == 0 && seen.end == kGroup) {
    OCTAVO_UNROLL
    for (int64_t t = 0; t < kGroup; t += kLanes) top = max(top, load(scores + t));
    store(tops, top);
    return;
  }
  const Vec unseen = broadcast(-std::numeric_limits<float>::infinity());
  for (int64_t t = seen.begin / kLanes * kLanes; t < seen.end; t += kLanes) {
    const IVec position = lane_numbers() + static_cast<int32_t>(t);
    const IVec is_seen = (position >= static_cast<int32_t>(seen.begin)) & (position < static_cast<int32_t>(seen.end));
    const Vec score = is_seen ? finish(load(scores + t), t, distance) : unseen;
    store(scores + t, score);
    top = max(top, score);
  }
  store(tops, top);
}

// Scores become weights 2^(score - top), summed up by lane in `totals`, and then, where values have scales, times
// these.
inline void weigh(const float* value_scales, TokenRange seen, float top, float* scores, float* totals) {
  Vec total = load(totals);
  for (int64_t t = seen.begin / kLanes * kLanes; t < seen.end; t += kLanes) {
    Vec weight = exp2_down(load(scores + t) - broadcast(top));
    total += weight;
    if (value_scales) weight *= load(value_scales + t);
    store(scores + t, weight);
  }
  store(totals, total);
}

}  // namespace octavo
