// Attention of some rows of queries over one segment of a sequence.
#pragma once

#include "attention_kernels.h"
#include "attention_layout.h"

namespace octavo {

// What all pieces of a layer's attention have in common.
struct AttentionShape {
  AttentionShape(const KvCache& cache, const StepRows& rows, const AttentionParams& params);

  const KvCache& cache;
  const AttentionParams& params;
  HeadLayout layout;
  int64_t group;           // query heads to a key/value head
  int64_t width;           // of a row of queries, values or sums: the head's size rounded up to kTile
  int64_t tile_positions;  // of queries that are attended together
  int64_t tile_rows;       // rows of so many positions
};

// Rows of queries that are attended together: `positions` neighbouring tokens of a sequence, each with the query heads
// that share a key/value head. Row r is head r % group of token r / group.
struct QueryTile {
  const int64_t* table;
  int64_t kv_head;
  int64_t first_position;
  int64_t positions;
};

// Attention over a part of the sequence: for each row the largest score, the sum of exp(score - largest), and the sum
// of values with these weights, [rows][width]. A row that sees nothing has total 0.
struct Partial {
  static int64_t floats(const AttentionShape& shape) { return round_up(shape.tile_rows * (shape.width + 2), kTile); }
  static Partial at(const AttentionShape& shape, float* memory) {
    return {memory + shape.tile_rows * shape.width, memory + shape.tile_rows * (shape.width + 1), memory};
  }

  float* tops;
  float* totals;
  float* sums;
};

// A thread's memory for attending.
struct AttentionScratch {
  static int64_t floats(const AttentionShape& shape);
  static AttentionScratch at(const AttentionShape& shape, float* memory);

  float* queries;       // [rows / kRows][width][kRows], scaled, with 0 beyond the head's size
  float* scores;        // [rows][kScoreStride], then weights
  float* tops;          // [rows][kTile], the largest score of each lane
  float* totals;        // [rows][kTile], the sum of the weights of each lane
  float* key_scales;    // [kSegment], of int8
  float* value_scales;  // [kSegment]
  float* expanded;      // keys [width][kGroup] or values [kGroup][width]
  Partial partial;      // of the segment
  Partial merged;       // of all segments so far
};

// The part of a sequence that a token at `position` sees: from here to itself.
inline int64_t first_seen(const AttentionParams& params, int64_t position) {
  return params.window > 0 && position >= params.window ? position + 1 - params.window : 0;
}

// One segment of what a tile's queries see.
struct SegmentPart {
  QueryTile tile;
  int64_t segment;
};

// Attends the tile's queries, which `scratch.queries` holds, over the segment. `next`, or null, is what this thread
// will attend after it: its first keys are fetched meanwhile.
void attend_segment(const AttentionShape& shape, const SegmentPart& part, const SegmentPart* next,
                    const AttentionScratch& scratch, const Partial& result);

}  // namespace octavo
