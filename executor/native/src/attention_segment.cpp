#include "attention_segment.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "attention_softmax.h"
#include "attention_tiles.h"
#include "vec.h"

namespace octavo {

namespace {

// Rows of queries that are attended together, about so many.
constexpr int64_t kTileRows = 48;

// How many groups ahead memory is fetched. One was slower, more were not faster.
constexpr int64_t kAhead = 2;

// Tokens whose keys are multiplied at once.
constexpr int64_t kStep = kTokenVectors * kLanes;

int64_t longest(const StepRows& rows) {
  int64_t most = 0;
  for (int64_t row = 0; row < rows.num_rows; ++row) most = std::max(most, rows.counts[row]);
  return most;
}

// The positions that a tile's rows see of a segment.
TokenRange range_of(const AttentionShape& shape, const SegmentPart& part) {
  const int64_t start = part.segment * kSegment;
  return {std::max(start, first_seen(shape.params, part.tile.first_position)),
          std::min(start + kSegment, part.tile.first_position + part.tile.positions)};
}

int64_t num_groups(TokenRange range) { return (range.end - 1) / kGroup - range.begin / kGroup + 1; }

// The range's part in the group with that number from its first one on; empty where there is none.
TokenRange group_of(TokenRange range, int64_t number) {
  const int64_t group = (range.begin / kGroup + number) * kGroup;
  return {std::max(range.begin, group), std::min(range.end, group + kGroup)};
}

template <typename F>
void each_group(TokenRange range, const F& f) {
  for (int64_t group = 0; group < num_groups(range); ++group) f(group_of(range, group));
}

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
  return round_up(shape.tile_rows, kRows) * shape.width + shape.tile_rows * (kScoreStride + 2 * kTile) + 2 * kSegment +
         kGroup * shape.width + 2 * Partial::floats(shape);
}

AttentionScratch AttentionScratch::at(const AttentionShape& shape, float* memory) {
  AttentionScratch scratch{};
  const auto take = [&memory](int64_t count) {
    float* taken = memory;
    memory += count;
    return taken;
  };
  scratch.queries = take(round_up(shape.tile_rows, kRows) * shape.width);
  scratch.scores = take(shape.tile_rows * kScoreStride);
  scratch.tops = take(shape.tile_rows * kTile);
  scratch.totals = take(shape.tile_rows * kTile);
  scratch.key_scales = take(kSegment);
  scratch.value_scales = take(kSegment);
  scratch.expanded = take(kGroup * shape.width);
  scratch.partial = Partial::at(shape, take(Partial::floats(shape)));
  scratch.merged = Partial::at(shape, take(Partial::floats(shape)));
  return scratch;
}

namespace {

// One segment's attention, in two passes over the groups of its positions: keys, then values.
class SegmentAttention {
 public:
  SegmentAttention(const AttentionShape& shape, const SegmentPart& part, const AttentionScratch& scratch,
                   const Partial& result)
      : shape_(shape),
        tile_(part.tile),
        scratch_(scratch),
        result_(result),
        start_(part.segment * kSegment),
        rows_(part.tile.positions * shape.group),
        range_(range_of(shape, part)),
        in_place_(reads_in_place(shape, part.tile)),
        has_scales_(shape.cache.kind == KvKind::kInt8),
        kind_(in_place_ ? shape.cache.kind : KvKind::kFloat32) {}

  // Scores of all rows, and the largest of each.
  void multiply_keys(const SegmentPart* next) {
    fill(scratch_.tops, rows_ * kTile, -std::numeric_limits<float>::infinity());
    each_group(range_, [&](TokenRange range) {
      const Tiles keys = find_keys(shape_, tile_, range, in_place_, scratch_.expanded);
      Ahead ahead{};
      const bool fetch = find_ahead(number_of(range) + kAhead, next, ahead);
      for (int64_t row = 0; row < rows_; row += kRows) {
        const int64_t count = std::min<int64_t>(rows_ - row, kRows);
        const TokenRange seen{seen_of(range, row).begin, seen_of(range, row + count - 1).end};
        const auto multiply = row_kernels(kind_, fetch && row == 0).multiply_keys[count - 1];
        for (int64_t t = seen.begin / kStep * kStep; t < seen.end; t += kStep)
          multiply(keys, ahead, static_cast<int>(t / kLanes), shape_.cache.head_dim,
                   scratch_.queries + row * shape_.width, scores(range, row));
      }
      if (has_scales_)
        copy_scales(shape_, tile_, range, scratch_.key_scales + in_segment(range),
                    scratch_.value_scales + in_segment(range));
      ScoreFinish finish{shape_.params.soft_cap, 0, has_scales_ ? scratch_.key_scales + in_segment(range) : nullptr};
      each_row(range, [&](int64_t row, int64_t head, int64_t position, TokenRange seen) {
        finish.slope = shape_.params.alibi_slopes ? shape_.params.alibi_slopes[head] : 0.0f;
        finish_scores(finish, seen, range.begin / kGroup * kGroup - position, scores(range, row),
                      scratch_.tops + row * kTile);
      });
    });
    for (int64_t row = 0; row < rows_; ++row) result_.tops[row] = largest(load(scratch_.tops + row * kTile));
  }

  // Weights of all rows, their sums, and the sums of values. `next` as in attend_segment.
  void add_values(const SegmentPart* next) {
    fill(result_.sums, rows_ * shape_.width, 0.0f);
    fill(scratch_.totals, rows_ * kTile, 0.0f);
    each_group(range_, [&](TokenRange range) {
      const float* value_scales = has_scales_ ? scratch_.value_scales + in_segment(range) : nullptr;
      each_row(range, [&](int64_t row, int64_t, int64_t, TokenRange seen) {
        weigh(value_scales, seen, result_.tops[row], scores(range, row), scratch_.totals + row * kTile);
      });
      const Tiles values = find_values(shape_, tile_, range, in_place_, scratch_.expanded);
      Ahead ahead{};
      const bool fetch = find_ahead(num_groups(range_) + number_of(range) + kAhead, next, ahead);
      for (int64_t row = 0; row < rows_; row += kRows)
        add_rows(values, fetch && row == 0 ? &ahead : nullptr, range, row, std::min<int64_t>(rows_ - row, kRows));
    });
    for (int64_t row = 0; row < rows_; ++row) result_.totals[row] = sum(load(scratch_.totals + row * kTile));
  }

 private:
  static void fill(float* p, int64_t count, float value) { std::fill_n(p, count, value); }

  int64_t position_of(int64_t row) const { return tile_.first_position + token_of(row); }
  // Of the tile. In 32 bits, which take half the time.
  int64_t token_of(int64_t row) const { return static_cast<uint32_t>(row) / static_cast<uint32_t>(shape_.group); }
  int64_t in_segment(TokenRange range) const { return range.begin / kGroup * kGroup - start_; }
  float* scores(TokenRange range, int64_t row) const {
    return scratch_.scores + row * kScoreStride + in_segment(range);
  }
  int64_t number_of(TokenRange range) const { return range.begin / kGroup - range_.begin / kGroup; }

  // The group with that number, counted from the first one of keys: those of keys are followed by those of values, and
  // these by the next segment's. Returns whether there is one to fetch.
  bool find_ahead(int64_t number, const SegmentPart* next, Ahead& ahead) const {
    if (!in_place_) return false;
    const int64_t groups = num_groups(range_);
    if (number < groups) {
      ahead = ahead_keys(shape_, tile_, group_of(range_, number));
    } else if (number < 2 * groups) {
      ahead = ahead_values(shape_, tile_, group_of(range_, number - groups));
    } else {
      const TokenRange range = next ? group_of(range_of(shape_, *next), number - 2 * groups) : TokenRange{0, 0};
      if (range.begin >= range.end) return false;
      ahead = ahead_keys(shape_, next->tile, range);
    }
    return true;
  }

  // Calls f(row, head, position, seen) for each row.
  template <typename F>
  void each_row(TokenRange range, const F& f) const {
    int64_t row = 0;
    for (int64_t position = tile_.first_position; position < tile_.first_position + tile_.positions; ++position) {
      const TokenRange seen = seen_at(range, position);
      const int64_t head = tile_.kv_head * shape_.group;
      for (int64_t i = 0; i < shape_.group; ++i) f(row++, head + i, position, seen);
    }
  }

  // What a row, or the token at a position, sees of a group, counted from the group's first position.
  TokenRange seen_of(TokenRange range, int64_t row) const { return seen_at(range, position_of(row)); }
  TokenRange seen_at(TokenRange range, int64_t position) const {
    const int64_t group = range.begin / kGroup * kGroup;
    return {std::max(range.begin, first_seen(shape_.params, position)) - group,
            std::min(range.end, position + 1) - group};
  }

  // Values of a group, for at most kRows rows: what all of them see together, what is before or after that for the rows
  // of each token. For each row in the order of positions.
  void add_rows(const Tiles& values, const Ahead* ahead, TokenRange range, int64_t first_row, int64_t count) {
    const auto add = [&](int64_t row, int64_t rows, int64_t begin, int64_t end, const Ahead* fetched) {
      if (begin >= end) return;
      const auto add_values = row_kernels(kind_, fetched != nullptr).add_values[rows - 1];
      add_values(values, fetched ? *fetched : Ahead{}, begin, end, shape_.width, scores(range, row),
                 result_.sums + row * shape_.width);
    };
    // Later rows begin and end later.
    const TokenRange first = seen_of(range, first_row), last = seen_of(range, first_row + count - 1);
    if (first.begin == last.begin && first.end == last.end) return add(first_row, count, first.begin, first.end, ahead);
    const bool shared = last.begin < first.end;
    const auto each_token = [&](const auto& f) {
      for (int64_t row = first_row, next; row < first_row + count; row = next) {
        next = std::min((token_of(row) + 1) * shape_.group, first_row + count);
        f(row, next - row, seen_of(range, row));
      }
    };
    each_token([&](int64_t row, int64_t rows, TokenRange seen) {
      add(row, rows, seen.begin, shared ? last.begin : seen.end, nullptr);
    });
    if (!shared) return;
    add(first_row, count, last.begin, first.end, ahead);
    each_token([&](int64_t row, int64_t rows, TokenRange seen) { add(row, rows, first.end, seen.end, nullptr); });
  }

  const AttentionShape& shape_;
  const QueryTile& tile_;
  const AttentionScratch& scratch_;
  const Partial& result_;
  const int64_t start_;  // first position of the segment
  const int64_t rows_;
  const TokenRange range_;  // what any of the rows sees of it
  const bool in_place_;
  const bool has_scales_;
  const KvKind kind_;  // of the tiles
};

}  // namespace

void attend_segment(const AttentionShape& shape, const SegmentPart& part, const SegmentPart* next,
                    const AttentionScratch& scratch, const Partial& result) {
  SegmentAttention attention(shape, part, scratch, result);
  attention.multiply_keys(next);
  attention.add_values(next);
}

}  // namespace octavo
