#include "attention_tiles.h"

#include <algorithm>

#include "vec.h"

namespace octavo {

namespace {

// Where a sequence's tokens of one head lie.
class HeadMemory {
 public:
  HeadMemory(const AttentionShape& shape, const QueryTile& tile)
      : shape_(shape),
        table_(tile.table),
        data_(shape.cache.data + tile.kv_head * shape.layout.size),
        block_size_(shape.cache.block_size) {}

  const uint8_t* block_of(int64_t position) const {
    return data_ + table_[position / block_size_] * shape_.cache.block_stride;
  }
  int64_t slot_of(int64_t position) const { return position % block_size_; }

  // Of the tile whose first token is at that position; blocks hold whole tiles.
  const uint8_t* keys(int64_t position) const {
    const int64_t slot = slot_of(position);
    return block_of(position) + slot * (shape_.cache.kind == KvKind::kInt8 ? 1 : 4);
  }
  const uint8_t* values(int64_t position) const {
    const int64_t slot = slot_of(position) * shape_.width;
    constexpr int64_t kBytes[] = {4, 2, 1};
    return block_of(position) + shape_.layout.values + slot * kBytes[static_cast<int>(shape_.cache.kind)];
  }

 private:
  const AttentionShape& shape_;
  const int64_t* table_;
  const uint8_t* data_;
  int64_t block_size_;
};

int64_t key_stride(const AttentionShape& shape) {
  return shape.cache.block_size * (shape.cache.kind == KvKind::kInt8 ? 1 : 4);
}

int64_t value_stride(const AttentionShape& shape) { return shape.width * (shape.cache.kind == KvKind::kInt8 ? 1 : 4); }

// The tiles from the range's first one on; past its end its last one again. Fetched ahead are the tiles as many
// further.
template <typename Find>
Tiles in_place_tiles(TokenRange range, int64_t ahead, int64_t stride, const Find& find) {
  Tiles tiles{{}, {}, stride};
  const int64_t group = range.begin / kGroup * kGroup;
  const int64_t first = range.begin / kTile * kTile, last = (range.end - 1) / kTile * kTile;
  const int64_t end = (ahead - 1) / kTile * kTile;
  for (int i = 0; i < kGroupTiles; ++i) {
    const int64_t position = std::clamp(group + i * kTile, first, last);
    tiles.start[i] = find(position);
    tiles.ahead[i] = group + kGroup + i * kTile <= end ? find(group + kGroup + i * kTile) : tiles.start[i];
  }
  return tiles;
}

Tiles expanded_tiles(const float* expanded, int64_t tile_floats, int64_t step_floats) {
  Tiles tiles{{}, {}, step_floats * 4};
  for (int i = 0; i < kGroupTiles; ++i)
    tiles.start[i] = tiles.ahead[i] = reinterpret_cast<const uint8_t*>(expanded + i * tile_floats);
  return tiles;
}

template <KvKind kind>
float number_at(const uint8_t* p, int64_t index) {
  if (kind == KvKind::kFloat32) return reinterpret_cast<const float*>(p)[index];
  if (kind == KvKind::kBfloat16) return bf16_to_float(reinterpret_cast<const uint16_t*>(p)[index]);
  return reinterpret_cast<const int8_t*>(p)[index];
}

template <KvKind kind>
void expand_keys(const AttentionShape& shape, const HeadMemory& memory, TokenRange range, float* to) {
  using Format = Stored<kind>;
  const int64_t block_size = shape.cache.block_size, head_dim = shape.cache.head_dim;
  if (block_size % kTile == 0) {
    for (int64_t tile = range.begin / kTile * kTile; tile < range.end; tile += kTile) {
      const uint8_t* from = memory.keys(tile);
      for (int64_t d = 0; d < head_dim; d += Format::kSteps, from += key_stride(shape))
        for (int64_t lane = 0; lane < kTile; lane += kLanes) {
          Vec numbers[Format::kSteps];
          Format::load(from + lane * Format::kBytes, numbers);
          for (int step = 0; step < Format::kSteps; ++step)
            store(to + (d + step) * kGroup + tile % kGroup + lane, numbers[step]);
        }
    }
    return;
  }
  for (int64_t position = range.begin; position < range.end; ++position) {
    const uint8_t* from = memory.block_of(position);
    const int64_t slot = memory.slot_of(position);
    for (int64_t d = 0; d < head_dim; ++d)
      to[d * kGroup + position % kGroup] =
          number_at<kind>(from, (d / Format::kSteps * block_size + slot) * Format::kSteps + d % Format::kSteps);
  }
}

template <KvKind kind>
void expand_values(const AttentionShape& shape, const HeadMemory& memory, TokenRange range, float* to) {
  using Format = Stored<kind>;
  for (int64_t position = range.begin; position < range.end; ++position) {
    const uint8_t* from = memory.block_of(position) + shape.layout.values;
    const int64_t slot = memory.slot_of(position), step = slot % Format::kSteps;
    from += slot / Format::kSteps * value_stride(shape);
    for (int64_t d = 0; d < shape.width; d += kLanes) {
      Vec numbers[Format::kSteps];
      Format::load(from + d * Format::kBytes, numbers);
      store(to + position % kGroup * shape.width + d, numbers[step]);
    }
  }
}

}  // namespace

bool reads_in_place(const AttentionShape& shape, const QueryTile& tile) {
  if (shape.cache.block_size % kTile != 0) return false;
  return shape.cache.kind == KvKind::kFloat32 || tile.positions * shape.group <= kRows;
}

Tiles find_keys(const AttentionShape& shape, const QueryTile& tile, TokenRange range, int64_t ahead, bool in_place,
                float* expanded) {
  const HeadMemory memory(shape, tile);
  if (in_place)
    return in_place_tiles(range, ahead, key_stride(shape), [&](int64_t position) { return memory.keys(position); });
  switch (shape.cache.kind) {
    case KvKind::kFloat32:
      expand_keys<KvKind::kFloat32>(shape, memory, range, expanded);
      break;
    case KvKind::kBfloat16:
      expand_keys<KvKind::kBfloat16>(shape, memory, range, expanded);
      break;
    case KvKind::kInt8:
      expand_keys<KvKind::kInt8>(shape, memory, range, expanded);
      break;
  }
  return expanded_tiles(expanded, kTile, kGroup);
}

Tiles find_values(const AttentionShape& shape, const QueryTile& tile, TokenRange range, int64_t ahead, bool in_place,
                  float* expanded) {
  const HeadMemory memory(shape, tile);
  if (in_place)
    return in_place_tiles(range, ahead, value_stride(shape), [&](int64_t position) { return memory.values(position); });
  switch (shape.cache.kind) {
    case KvKind::kFloat32:
      expand_values<KvKind::kFloat32>(shape, memory, range, expanded);
      break;
    case KvKind::kBfloat16:
      expand_values<KvKind::kBfloat16>(shape, memory, range, expanded);
      break;
    case KvKind::kInt8:
      expand_values<KvKind::kInt8>(shape, memory, range, expanded);
      break;
  }
  return expanded_tiles(expanded, kTile * shape.width, shape.width);
}

void copy_scales(const AttentionShape& shape, const QueryTile& tile, TokenRange range, float* key_scales,
                 float* value_scales) {
  const HeadMemory memory(shape, tile);
  for (int64_t position = range.begin; position < range.end; ++position) {
    const uint8_t* block = memory.block_of(position);
    const int64_t slot = memory.slot_of(position);
    key_scales[position % kGroup] = reinterpret_cast<const float*>(block + shape.layout.key_scales)[slot];
    value_scales[position % kGroup] = reinterpret_cast<const float*>(block + shape.layout.value_scales)[slot];
  }
}

}  // namespace octavo
