#include "attention_tiles.h"

#include <algorithm>
#include <cstring>

#include "vec.h"

namespace octavo {

namespace {

// Rows that share a tile read in place; for more it pays to widen the tile once.
constexpr int64_t kRowsInPlace = 2 * kRows;

// Where a sequence's tokens of one head lie.
class HeadMemory {
 public:
  HeadMemory(const AttentionShape& shape, const QueryTile& tile)
      : shape_(shape),
        table_(tile.table),
        data_(shape.cache.data + tile.kv_head * shape.layout.size),
        block_size_(static_cast<uint32_t>(shape.cache.block_size)) {}

  const uint8_t* block_of(int64_t position) const {
    return data_ + table_[static_cast<uint32_t>(position) / block_size_] * shape_.cache.block_stride;
  }
  int64_t slot_of(int64_t position) const { return static_cast<uint32_t>(position) % block_size_; }

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
  uint32_t block_size_;  // positions fit as well, and 32 bits are divided in half the time
};

int64_t key_stride(const AttentionShape& shape) {
  return shape.cache.block_size * (shape.cache.kind == KvKind::kInt8 ? 1 : 4);
}

int64_t value_stride(const AttentionShape& shape) { return shape.width * (shape.cache.kind == KvKind::kInt8 ? 1 : 4); }

// The range's tiles; before and after them the first and the last one again.
template <typename Find>
void find_tiles(TokenRange range, const Find& find, const uint8_t* (&start)[kGroupTiles]) {
  const int64_t group = range.begin / kGroup * kGroup;
  const int64_t first = range.begin / kTile * kTile, last = (range.end - 1) / kTile * kTile;
  for (int i = 0; i < kGroupTiles; ++i) start[i] = find(std::clamp(group + i * kTile, first, last));
}

Tiles expanded_tiles(const float* expanded, int64_t tile_floats, int64_t step_floats) {
  Tiles tiles{{}, step_floats * 4};
  for (int i = 0; i < kGroupTiles; ++i) tiles.start[i] = reinterpret_cast<const uint8_t*>(expanded + i * tile_floats);
  return tiles;
}

template <KvKind kind>
float number_at(const uint8_t* p, int64_t index) {
  if (kind == KvKind::kFloat32) return reinterpret_cast<const float*>(p)[index];
  if (kind == KvKind::kBfloat16) return bf16_to_float(reinterpret_cast<const uint16_t*>(p)[index]);
  return reinterpret_cast<const int8_t*>(p)[index];
}

// Calls f(position, memory) for each tile of the range; blocks hold whole tiles.
template <typename F>
void each_tile(TokenRange range, const F& f) {
  for (int64_t tile = range.begin / kTile * kTile; tile < range.end; tile += kTile) f(tile);
}

template <KvKind kind>
void expand_keys(const AttentionShape& shape, const HeadMemory& memory, TokenRange range, float* to) {
  using Format = Stored<kind>;
  const int64_t block_size = shape.cache.block_size, head_dim = shape.cache.head_dim, stride = key_stride(shape);
  if (block_size % kTile == 0) {
    each_tile(range, [&](int64_t tile) {
      const uint8_t* from = memory.keys(tile);
      float* first = to + tile % kGroup;
      for (int64_t d = 0; d < head_dim; d += Format::kSteps, from += stride, first += Format::kSteps * kGroup)
        OCTAVO_UNROLL
      for (int64_t lane = 0; lane < kTile; lane += kLanes) {
        Vec numbers[Format::kSteps];
        Format::load(from + lane * Format::kBytes, numbers);
        for (int step = 0; step < Format::kSteps; ++step) store(first + step * kGroup + lane, numbers[step]);
      }
    });
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
  const int64_t width = shape.width, stride = value_stride(shape);
  if (shape.cache.block_size % kTile == 0) {
    each_tile(range, [&](int64_t tile) {
      const uint8_t* from = memory.values(tile);
      float* first = to + tile % kGroup * width;
      for (int64_t t = 0; t < kTile; t += Format::kSteps, from += stride, first += Format::kSteps * width)
        for (int64_t d = 0; d < width; d += kLanes) {
          Vec numbers[Format::kSteps];
          Format::load(from + d * Format::kBytes, numbers);
          for (int step = 0; step < Format::kSteps; ++step) store(first + step * width + d, numbers[step]);
        }
    });
    return;
  }
  for (int64_t position = range.begin; position < range.end; ++position) {
    const int64_t slot = memory.slot_of(position);
    const uint8_t* from = memory.block_of(position) + shape.layout.values + slot / Format::kSteps * stride;
    for (int64_t d = 0; d < width; d += kLanes) {
      Vec numbers[Format::kSteps];
      Format::load(from + d * Format::kBytes, numbers);
      store(to + position % kGroup * width + d, numbers[slot % Format::kSteps]);
    }
  }
}

}  // namespace

bool reads_in_place(const AttentionShape& shape, const QueryTile& tile) {
  if (shape.cache.block_size % kTile != 0) return false;
  return shape.cache.kind == KvKind::kFloat32 || tile.positions * shape.group <= kRowsInPlace;
}

Tiles find_keys(const AttentionShape& shape, const QueryTile& tile, TokenRange range, bool in_place, float* expanded) {
  const HeadMemory memory(shape, tile);
  if (in_place) {
    Tiles tiles{{}, key_stride(shape)};
    find_tiles(range, [&](int64_t position) { return memory.keys(position); }, tiles.start);
    return tiles;
  }
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

Tiles find_values(const AttentionShape& shape, const QueryTile& tile, TokenRange range, bool in_place,
                  float* expanded) {
  const HeadMemory memory(shape, tile);
  if (in_place) {
    Tiles tiles{{}, value_stride(shape)};
    find_tiles(range, [&](int64_t position) { return memory.values(position); }, tiles.start);
    return tiles;
  }
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

Ahead ahead_keys(const AttentionShape& shape, const QueryTile& tile, TokenRange range) {
  const HeadMemory memory(shape, tile);
  Ahead ahead{{}, key_stride(shape)};
  find_tiles(range, [&](int64_t position) { return memory.keys(position); }, ahead.start);
  return ahead;
}

Ahead ahead_values(const AttentionShape& shape, const QueryTile& tile, TokenRange range) {
  const HeadMemory memory(shape, tile);
  Ahead ahead{{}, kTile * (shape.cache.kind == KvKind::kInt8 ? 1 : 4)};
  find_tiles(range, [&](int64_t position) { return memory.values(position); }, ahead.start);
  return ahead;
}

void copy_scales(const AttentionShape& shape, const QueryTile& tile, TokenRange range, float* key_scales,
                 float* value_scales) {
  const HeadMemory memory(shape, tile);
  for (int64_t position = range.begin, count; position < range.end; position += count) {
    const uint8_t* block = memory.block_of(position);
    const int64_t slot = memory.slot_of(position);
    count = std::min(shape.cache.block_size - slot, range.end - position);
    const auto copy = [&](int64_t scales, float* to) {
      std::memcpy(to + position % kGroup, block + scales + slot * sizeof(float), count * sizeof(float));
    };
    copy(shape.layout.key_scales, key_scales);
    copy(shape.layout.value_scales, value_scales);
  }
}

}  // namespace octavo
