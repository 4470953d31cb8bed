#include "attention_segment.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "attention_tiles.h"
#include "vec.h"

namespace octavo {

namespace {

// Rows of queries that are attended together, about so many.
constexpr int64_t kTileRows = 48;

// The positions that a row sees in a segment, from the segment's first one on.
struct Seen {
  int64_t begin;
  int64_t end;
};

Seen seen_by(const AttentionShape& shape, int64_t position, int64_t segment) {
  const int64_t start = segment * kSegment;
  return {std::max<int64_t>(first_seen(shape.params, position) - start, 0),
          std::min<int64_t>(position + 1 - start, kSegment)};
}

int64_t longest(const StepRows& rows) {
  int64_t most = 0;
  for (int64_t row = 0; row < rows.num_rows; ++row) most = std::max(most, rows.counts[row]);
  return most;
}

// Calls f(range) for each group of the positions [begin, end).
template <typename F>
void each_group(int64_t begin, int64_t end, const F& f) {
  for (int64_t group = begin / kGroup * kGroup; group < end; group += kGroup)
    f(TokenRange{std::max(begin, group), std::min(end, group + kGroup)});
}

IVec lane_numbers() {
  IVec numbers;
  for (int i = 0; i < kLanes; ++i) numbers[i] = i;
  return numbers;
}

// tanh(x) = 1 - 2 / (e^2x + 1), whose absolute error is that of the last place of 1.
Vec tanh(Vec x) { return broadcast(1.0f) - broadcast(2.0f) / (exp(x + x) + broadcast(1.0f)); }

// Turns the products of a row into weights exp(score - top) for what it sees; `distance` is the first position of the
// segment less the row's own.
struct RowSoftmax {
  const AttentionParams& params;
  float slope;
  const float* key_scales;    // or null
  const float* value_scales;  // or null

  void operator()(float* scores, Seen seen, int64_t distance, float& top, float& total) const {
    const int64_t begin = seen.begin / kLanes * kLanes;
    const IVec lanes = lane_numbers();
    const Vec nothing = broadcast(-std::numeric_limits<float>::infinity());
    Vec tops = nothing;
    for (int64_t t = begin; t < seen.end; t += kLanes) {
      Vec score = load(scores + t);
      if (key_scales) score *= load(key_scales + t);
      if (params.soft_cap > 0) score = broadcast(params.soft_cap) * tanh(score / broadcast(params.soft_cap));
      const IVec position = lanes + static_cast<int32_t>(t);
      if (slope != 0) {
        const IVec apart = position + static_cast<int32_t>(distance);
        score = fma(broadcast(slope), __builtin_convertvector(apart, Vec), score);
      }
      const IVec is_seen = (position >= static_cast<int32_t>(seen.begin)) & (position < static_cast<int32_t>(seen.end));
      score = is_seen ? score : nothing;
      store(scores + t, score);
      tops = max(tops, score);
    }
    top = largest(tops);
    Vec totals = zero();
    for (int64_t t = begin; t < seen.end; t += kLanes) {
      Vec weight = exp(load(scores + t) - broadcast(top));
      totals += weight;
      if (value_scales) weight *= load(value_scales + t);
      store(scores + t, weight);
    }
    total = sum(totals);
  }
};

}  // namespace

AttentionShape::AttentionShape(const KvCache& cache, const StepRows& rows, const AttentionParams& params)
    : cache(cache),
      params(params),
      layout(head_layout(cache.kind, cache.block_size, cache.head_dim)),
      group(params.heads / cache.kv_heads),
      width(round_up(cache.head_dim, kTile)),
      tile_positions(std::clamp<int64_t>(longest(rows), 1, std::max<int64_t>(kTileRows / group, 1))),
      tile_rows(tile_positions * group) {}

int64_t AttentionScratch::floats(const AttentionShape& shape) {
  return shape.tile_rows * (shape.width + kScoreStride) + 2 * kSegment + kGroup * shape.width +
         2 * Partial::floats(shape);
}

AttentionScratch AttentionScratch::at(const AttentionShape& shape, float* memory) {
  AttentionScratch scratch{};
  const auto take = [&memory](int64_t count) {
    float* taken = memory;
    memory += count;
    return taken;
  };
  scratch.queries = take(shape.tile_rows * shape.width);
  scratch.scores = take(shape.tile_rows * kScoreStride);
  scratch.key_scales = take(kSegment);
  scratch.value_scales = take(kSegment);
  scratch.expanded = take(kGroup * shape.width);
  scratch.partial = Partial::at(shape, take(Partial::floats(shape)));
  scratch.merged = Partial::at(shape, take(Partial::floats(shape)));
  return scratch;
}

void attend_segment(const AttentionShape& shape, const QueryTile& tile, int64_t segment,
                    const AttentionScratch& scratch, const Partial& result) {
  const int64_t start = segment * kSegment, rows = tile.positions * shape.group;
  const int64_t last_position = tile.first_position + tile.positions - 1;
  const int64_t begin = std::max(start, first_seen(shape.params, tile.first_position));
  const int64_t end = std::min(start + kSegment, last_position + 1);
  const bool in_place = reads_in_place(shape, tile), scaled = shape.cache.kind == KvKind::kInt8;
  const RowKernels& kernels = row_kernels(kind_read(shape, in_place));

  each_group(begin, end, [&](TokenRange range) {
    const Tiles keys = find_keys(shape, tile, range, end, in_place, scratch.expanded);
    float* scores = scratch.scores + (range.begin - start) / kGroup * kGroup;
    const int first = range.begin % kGroup / kTile * kTile / kLanes;
    const int last = static_cast<int>(round_up((range.end - 1) % kGroup + 1, kTile) / kLanes);
    for (int64_t row = 0; row < rows; row += kRows) {
      const auto multiply = kernels.multiply_keys[std::min<int64_t>(rows - row, kRows) - 1];
      for (int vector = first / kTokenVectors * kTokenVectors; vector < last; vector += kTokenVectors)
        multiply(keys, vector, shape.cache.head_dim, scratch.queries + row * shape.width, shape.width,
                 scores + row * kScoreStride, kScoreStride);
    }
    if (scaled)
      copy_scales(shape, tile, range, scratch.key_scales + (range.begin - start) / kGroup * kGroup,
                  scratch.value_scales + (range.begin - start) / kGroup * kGroup);
  });

  for (int64_t row = 0; row < rows; ++row) {
    const int64_t position = tile.first_position + row / shape.group;
    const Seen seen = seen_by(shape, position, segment);
    std::fill_n(result.sums + row * shape.width, shape.width, 0.0f);
    result.tops[row] = -std::numeric_limits<float>::infinity();
    result.totals[row] = 0;
    if (seen.begin >= seen.end) continue;
    const int64_t head = tile.kv_head * shape.group + row % shape.group;
    const RowSoftmax softmax{shape.params, shape.params.alibi_slopes ? shape.params.alibi_slopes[head] : 0.0f,
                             scaled ? scratch.key_scales : nullptr, scaled ? scratch.value_scales : nullptr};
    softmax(scratch.scores + row * kScoreStride, seen, start - position, result.tops[row], result.totals[row]);
  }

  each_group(begin, end, [&](TokenRange range) {
    const Tiles values = find_values(shape, tile, range, end, in_place, scratch.expanded);
    const int64_t group = (range.begin - start) / kGroup * kGroup;
    const auto add = [&](int64_t row, int64_t count, int64_t first, int64_t last) {
      kernels.add_values[count - 1](values, first, last, shape.width, scratch.scores + row * kScoreStride + group,
                                    kScoreStride, result.sums + row * shape.width, shape.width);
    };
    const int64_t group_begin = range.begin - start - group, group_end = range.end - start - group;
    for (int64_t row = 0; row < rows;) {
      // Rows that see the same of this group: all of it, or those of one token.
      const auto seen = [&](int64_t r) {
        const Seen whole = seen_by(shape, tile.first_position + r / shape.group, segment);
        return Seen{std::max(whole.begin - group, group_begin), std::min(whole.end - group, group_end)};
      };
      const Seen mine = seen(row);
      int64_t count = 1;
      while (count < kRows && row + count < rows) {
        const Seen next = seen(row + count);
        if (next.begin != mine.begin || next.end != mine.end) break;
        ++count;
      }
      if (mine.begin < mine.end) add(row, count, mine.begin, mine.end);
      row += count;
    }
  });
}

}  // namespace octavo
