// Who attends what: a step is cut into pieces that threads take.
#include "attention.h"

#include <algorithm>
#include <limits>

#include "attention_segment.h"
#include "attention_softmax.h"
#include "vec.h"

namespace octavo {

namespace {

// A step is also cut into segments where one of its pieces would be more than a thread's share over this.
constexpr int64_t kPiecesPerThread = 8;

int64_t divide_up(int64_t n, int64_t by) { return (n + by - 1) / by; }

// A query tile of one key/value head.
struct Piece {
  QueryTile tile;
  int64_t first_token;  // of the tile, in the flat token dimension
  int64_t segment;      // where the step is cut into them
  int64_t partials;     // number of the tile's first partial result, that of segment 0
};

// The pieces of a step. Every thread finds the same.
class Pieces {
 public:
  // cut: into segments.
  Pieces(const AttentionShape& shape, const StepRows& rows, bool cut) : shape_(shape), rows_(rows), cut_(cut) {}

  int64_t count() const {
    int64_t all = 0;
    for (int64_t row = 0; row < rows_.num_rows; ++row) all += in_row(row);
    return all;
  }

  int64_t in_row(int64_t row) const { return heads_of_tiles(row) * (cut_ ? segments(row) : 1); }
  int64_t partials_of(int64_t row) const { return heads_of_tiles(row) * segments(row); }

  // Piece `index` of a row, whose tokens and partial results begin at these. The row's last tile comes first: it sees
  // most.
  Piece piece(int64_t row, int64_t first_token, int64_t first_partial, int64_t index) const {
    const int64_t segment = cut_ ? index % segments(row) : 0;
    if (cut_) index /= segments(row);
    const int64_t first = (tiles(row) - 1 - index / shape_.cache.kv_heads) * shape_.tile_positions;
    const QueryTile tile{rows_.tables[row], index % shape_.cache.kv_heads,
                         rows_.contexts[row] - rows_.counts[row] + first,
                         std::min(shape_.tile_positions, rows_.counts[row] - first)};
    return {tile, first_token + first, segment, first_partial + index * segments(row)};
  }

 private:
  int64_t tiles(int64_t row) const { return divide_up(rows_.counts[row], shape_.tile_positions); }
  int64_t heads_of_tiles(int64_t row) const { return tiles(row) * shape_.cache.kv_heads; }
  int64_t segments(int64_t row) const { return divide_up(rows_.contexts[row], kSegment); }

  const AttentionShape& shape_;
  const StepRows& rows_;
  const bool cut_;
};

// Finds the pieces by their number in the step, for numbers that only grow.
class Cursor {
 public:
  Cursor(const Pieces& pieces, const StepRows& rows) : pieces_(pieces), rows_(rows) {}

  Piece piece(int64_t number) {
    while (number - first_piece_ >= pieces_.in_row(row_)) {
      first_piece_ += pieces_.in_row(row_);
      first_partial_ += pieces_.partials_of(row_);
      first_token_ += rows_.counts[row_];
      ++row_;
    }
    return pieces_.piece(row_, first_token_, first_partial_, number - first_piece_);
  }

 private:
  const Pieces& pieces_;
  const StepRows& rows_;
  // The row, and its first ones.
  int64_t row_ = 0, first_piece_ = 0, first_partial_ = 0, first_token_ = 0;
};

// Whether there is a piece of several segments that the others would have to wait for.
bool must_cut(const AttentionShape& shape, const StepRows& rows, int team_size) {
  int64_t all = 0, largest = 0;
  for (int64_t row = 0; row < rows.num_rows; ++row) {
    all += rows.counts[row] * rows.contexts[row] * shape.cache.kv_heads;
    if (rows.contexts[row] > kSegment)
      largest = std::max(largest, std::min(rows.counts[row], shape.tile_positions) * rows.contexts[row]);
  }
  return team_size > 1 && largest * kPiecesPerThread * team_size > all;
}

int64_t first_segment(const AttentionShape& shape, const QueryTile& tile) {
  return first_seen(shape.params, tile.first_position) / kSegment;
}
int64_t last_segment(const QueryTile& tile) { return (tile.first_position + tile.positions - 1) / kSegment; }

void load_queries(const AttentionShape& shape, const Piece& piece, const float* queries, int64_t stride, float* to) {
  const int64_t rows = piece.tile.positions * shape.group, head_dim = shape.cache.head_dim;
  const float scale = query_scale(shape.params);
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t head = piece.tile.kv_head * shape.group + row % shape.group;
    const float* query = queries + (piece.first_token + row / shape.group) * stride + head * head_dim;
    float* first = to + row / kRows * kRows * shape.width + row % kRows;
    for (int64_t d = 0; d < head_dim; ++d) first[d * kRows] = query[d] * scale;
    for (int64_t d = head_dim; d < shape.width; ++d) first[d * kRows] = 0;
  }
}

void clear(const AttentionShape& shape, int64_t rows, const Partial& merged) {
  std::fill_n(merged.tops, rows, -std::numeric_limits<float>::infinity());
  std::fill_n(merged.totals, rows, 0.0f);
  std::fill_n(merged.sums, rows * shape.width, 0.0f);
}

void merge(const AttentionShape& shape, int64_t rows, const Partial& next, const Partial& merged) {
  for (int64_t row = 0; row < rows; ++row) {
    if (next.totals[row] == 0) continue;
    const float top = std::max(merged.tops[row], next.tops[row]);
    const Vec keep = exp2_down(broadcast(merged.tops[row] - top)), add = exp2_down(broadcast(next.tops[row] - top));
    merged.tops[row] = top;
    merged.totals[row] = merged.totals[row] * keep[0] + next.totals[row] * add[0];
    float* sums = merged.sums + row * shape.width;
    const float* more = next.sums + row * shape.width;
    for (int64_t d = 0; d < shape.width; d += kLanes) store(sums + d, fma(load(more + d), add, load(sums + d) * keep));
  }
}

void store_result(const AttentionShape& shape, const Piece& piece, const Partial& merged, float* out, int64_t stride) {
  const int64_t rows = piece.tile.positions * shape.group, head_dim = shape.cache.head_dim;
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t head = piece.tile.kv_head * shape.group + row % shape.group;
    float* to = out + (piece.first_token + row / shape.group) * stride + head * head_dim;
    const float* sums = merged.sums + row * shape.width;
    for (int64_t d = 0; d < head_dim; ++d) to[d] = sums[d] / merged.totals[row];
  }
}

// One thread's part in a step.
class Worker {
 public:
  Worker(const AttentionShape& shape, const StepRows& rows, const float* queries, int64_t query_stride, float* out,
         int64_t out_stride, float* scratch, float* partials)
      : shape_(shape),
        rows_(rows),
        queries_(queries),
        query_stride_(query_stride),
        out_(out),
        out_stride_(out_stride),
        scratch_(AttentionScratch::at(shape, scratch)),
        partials_(partials) {}

  void attend(Team& team) {
    const Pieces pieces(shape_, rows_, false);
    Cursor cursor(pieces, rows_);
    const int64_t count = pieces.count();
    team.parallel_ahead(count, [&](int64_t number, int64_t next_number) {
      const Piece piece = cursor.piece(number);
      load_queries(shape_, piece, queries_, query_stride_, scratch_.queries);
      merge_segments(piece, [&](int64_t segment) {
        SegmentPart next{piece.tile, segment + 1};
        const bool ends = segment == last_segment(piece.tile), has_next = !ends || next_number < count;
        if (ends && has_next)
          next.tile = cursor.piece(next_number).tile, next.segment = first_segment(shape_, next.tile);
        attend_segment(shape_, {piece.tile, segment}, has_next ? &next : nullptr, scratch_, scratch_.partial);
        return scratch_.partial;
      });
    });
  }

  void attend_cut(Team& team) {
    const Pieces cut(shape_, rows_, true), whole(shape_, rows_, false);
    Cursor cut_cursor(cut, rows_), whole_cursor(whole, rows_);
    const int64_t count = cut.count();
    team.parallel_ahead(count, [&](int64_t number, int64_t next_number) {
      const Piece piece = cut_cursor.piece(number);
      if (!is_seen(piece)) return;
      load_queries(shape_, piece, queries_, query_stride_, scratch_.queries);
      const Piece following = next_number < count ? cut_cursor.piece(next_number) : piece;
      const SegmentPart next{following.tile, following.segment};
      const bool has_next = next_number < count && is_seen(following);
      attend_segment(shape_, {piece.tile, piece.segment}, has_next ? &next : nullptr, scratch_,
                     partial(piece, piece.segment));
    });
    team.parallel(whole.count(), [&](int64_t number) {
      const Piece piece = whole_cursor.piece(number);
      merge_segments(piece, [&](int64_t segment) { return partial(piece, segment); });
    });
  }

 private:
  Partial partial(const Piece& piece, int64_t segment) const {
    return Partial::at(shape_, partials_ + (piece.partials + segment) * Partial::floats(shape_));
  }

  bool is_seen(const Piece& piece) const {
    return piece.segment >= first_segment(shape_, piece.tile) && piece.segment <= last_segment(piece.tile);
  }

  template <typename F>
  void merge_segments(const Piece& piece, const F& partial_of) {
    const int64_t tile_rows = piece.tile.positions * shape_.group;
    clear(shape_, tile_rows, scratch_.merged);
    for (int64_t segment = first_segment(shape_, piece.tile); segment <= last_segment(piece.tile); ++segment)
      merge(shape_, tile_rows, partial_of(segment), scratch_.merged);
    store_result(shape_, piece, scratch_.merged, out_, out_stride_);
  }

  const AttentionShape& shape_;
  const StepRows& rows_;
  const float* queries_;
  const int64_t query_stride_;
  float* out_;
  const int64_t out_stride_;
  const AttentionScratch scratch_;
  float* partials_;
};

}  // namespace

// The workspace holds a scratch for each thread, then the partial results where the step is cut.
size_t attention_workspace_bytes(const KvCache& cache, const StepRows& rows, const AttentionParams& params,
                                 int team_size) {
  const AttentionShape shape(cache, rows, params);
  int64_t floats = team_size * AttentionScratch::floats(shape);
  if (must_cut(shape, rows, team_size)) floats += Pieces(shape, rows, true).count() * Partial::floats(shape);
  return floats * sizeof(float);
}

void attend(Team& team, const KvCache& cache, const StepRows& rows, const AttentionParams& params, const float* queries,
            int64_t query_stride, float* out, int64_t out_stride, void* workspace) {
  const AttentionShape shape(cache, rows, params);
  const int64_t floats = AttentionScratch::floats(shape);
  float* memory = static_cast<float*>(workspace);
  Worker worker(shape, rows, queries, query_stride, out, out_stride, memory + team.index() * floats,
                memory + team.size() * floats);
  if (must_cut(shape, rows, team.size()))
    worker.attend_cut(team);
  else
    worker.attend(team);
}

}  // namespace octavo
