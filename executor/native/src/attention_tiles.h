// A group of tiles of a sequence's keys or values: where they lie, or a copy of them in float32.
#pragma once

#include "attention_segment.h"

namespace octavo {

// Whether tiles are read where they lie: a tile must not span blocks, and widening it must not be done more than a few
// times.
bool reads_in_place(const AttentionShape& shape, const QueryTile& tile);

// Positions [begin, end).
struct TokenRange {
  int64_t begin;
  int64_t end;
};

// Tiles of the group that holds the range's positions. What lies outside the range may be anything.
Tiles find_keys(const AttentionShape& shape, const QueryTile& tile, TokenRange range, bool in_place, float* expanded);
Tiles find_values(const AttentionShape& shape, const QueryTile& tile, TokenRange range, bool in_place, float* expanded);

// The same tiles, where they are read in place, to be fetched before they are needed.
Ahead ahead_keys(const AttentionShape& shape, const QueryTile& tile, TokenRange range);
Ahead ahead_values(const AttentionShape& shape, const QueryTile& tile, TokenRange range);

// For int8: the scales of the range's positions, at their place from the group's first position on.
void copy_scales(const AttentionShape& shape, const QueryTile& tile, TokenRange range, float* key_scales,
                 float* value_scales);

}  // namespace octavo
