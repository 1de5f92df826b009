// out = x W^T + b for bf16 and fp32 weights: one kernel for one row and for thousands.
//
// W [N, K] is packed in panels of 32 output features, zero-filled after the last, so that the kernel reads memory once
// and in order:
//
//   bf16   [N / 32][K / 2][32][2]       fp32   [N / 32][K][32]
//
//            panel: 32 outputs side by side
//        k   [w00 w10 w20 ... w31,0]  <- two vectors of 16 lanes
//        |   [w01 w11 w21 ... w31,1]
//        v
//
// For a tile of up to kDenseRows rows of x the kernel keeps rows x 2 accumulators in registers, walks down K once and
// meets each vector of W with one broadcast element (bf16: pair) of each row. An output is therefore one chain of
// multiply-adds in ascending k, whatever the number of rows, the tiling and the thread that computes it: its bits
// depend on x's row and W alone.
//
// Tasks are (block of rows) x (block of panels) of a size that stays in the L2 cache.
#pragma once
#include "ahead.hpp"
#include "rows.hpp"

namespace radixserve {
namespace RS_NAMESPACE {

constexpr int kPanel = 32;
// Bytes of weights between use and prefetch, by the rows of a tile: where memory is the bound, more only pushes out what
// is still to be used. What is prefetched after the last panel is the next linear's.
constexpr int ahead_bytes(int rows) { return rows < 4 ? 4096 : 6144; }

struct DenseBf16 {
  using Element = bf16;
  using Vector = W;
  static constexpr int kStep = 2;  // elements of K in one dot
  RS_INLINE W load_weights(const bf16* p) { return load_words(p); }
  RS_INLINE W broadcast(const bf16* p) { return broadcast_word(p); }
  RS_INLINE F dot(F acc, W x, W w) { return dot2(acc, x, w); }
};

struct DenseF32 {
  using Element = float;
  using Vector = F;
  static constexpr int kStep = 1;
  RS_INLINE F load_weights(const float* p) { return load(p); }
  RS_INLINE F broadcast(const float* p) { return set1(*p); }
  RS_INLINE F dot(F acc, F x, F w) { return fma(x, w, acc); }
};

struct DenseTile {
  const RsLinear* op;
  const int32_t* index;
  int64_t first_row, first_feature;
  Ahead* ahead;
};

template <class Out>
RS_INLINE void store_outputs(const RsLinear& op, int64_t row, int64_t feature, F value) {
  int64_t n = least<int64_t>(kLanes, op.out_features - feature);
  if (n <= 0) return;
  if (op.bias) value = add(value, load(op.bias + feature, int(n)));
  Out* out = static_cast<Out*>(op.out) + row * op.out_stride + feature;
  if (n == kLanes)
    store(out, value);
  else
    store(out, value, int(n));
}

// The part of a linear that gives `features` outputs from `first_feature` on of a tile's rows into `out` [rows, width].
// `panel` is where its weights begin.
RS_INLINE RsLinear piece_of(const RsLinear& op, const void* panel, int64_t first_feature, int64_t features, float* out,
                            int64_t width) {
  RsLinear piece = op;
  piece.weight = panel;
  piece.bias = op.bias ? op.bias + first_feature : nullptr;
  piece.out = out;
  piece.out_type = RS_F32;
  piece.out_features = features;
  piece.out_stride = width;
  return piece;
}

template <class D, int R>
__attribute__((noinline)) void dense_tile(const DenseTile& tile) {
  using E = typename D::Element;
  const RsLinear& op = *tile.op;
  const E* panel = static_cast<const E*>(op.weight) + tile.first_feature * op.in_features;
  const E* x[R];
  RS_UNROLL
  for (int r = 0; r < R; ++r) {
    int64_t row = tile.index ? tile.index[tile.first_row + r] : tile.first_row + r;
    x[r] = static_cast<const E*>(op.x) + row * op.x_stride;
  }
  constexpr int kAheadLines = R >= kAheadRows ? kAheadLinesAStep : 0;
  Ahead ahead = *tile.ahead;
  F acc[R][2];
  RS_UNROLL
  for (int r = 0; r < R; ++r) acc[r][0] = acc[r][1] = zero();
  for (int64_t k = 0; k < op.in_features; k += D::kStep) {
    typename D::Vector w0 = D::load_weights(panel), w1 = D::load_weights(panel + kLanes * D::kStep);
    RS_UNROLL
    for (int v = 0; v < 2; ++v) prefetch(reinterpret_cast<const char*>(panel + v * kLanes * D::kStep) + ahead_bytes(R));
    panel += kPanel * D::kStep;
    ahead.fetch<kAheadLines>();
    RS_UNROLL
    for (int r = 0; r < R; ++r) {
      typename D::Vector b = D::broadcast(x[r] + k);
      acc[r][0] = D::dot(acc[r][0], b, w0);
      acc[r][1] = D::dot(acc[r][1], b, w1);
    }
  }
  *tile.ahead = ahead;
  RS_UNROLL
  for (int r = 0; r < R; ++r) RS_UNROLL
  for (int v = 0; v < 2; ++v) {
    int64_t row = tile.first_row + r, feature = tile.first_feature + v * kLanes;
    if (op.out_type == RS_BF16)
      store_outputs<bf16>(op, row, feature, acc[r][v]);
    else
      store_outputs<float>(op, row, feature, acc[r][v]);
  }
}

template <class D, int R>
RS_INLINE void dense_tile_of(int rows, const DenseTile& tile) {
  if constexpr (R > 1) {
    if (rows < R) return dense_tile_of<D, R - 1>(rows, tile);
  }
  dense_tile<D, R>(tile);
}

// A rectangle of the output, cut into tasks of `row_step` x `panel_step`.
struct LinearGrid {
  int64_t rows, panels, row_step, panel_step, row_blocks, panel_blocks;
};

constexpr int64_t kLeastTask =
    16 << 10;  // bytes of weights that a task should meet: less is done before it is handed out

// `panel_bytes`: of the weights of one panel. Few rows: tasks small enough to share evenly, large enough to stream;
// many rows: weights of a task stay in half the L2 cache while all its rows pass.
RS_INLINE LinearGrid linear_grid(int64_t rows, int64_t panels, int64_t panel_bytes, int64_t tile_rows) {
  if (rows == 0) return {0, panels, 1, 1, 0, 0};
  int64_t row_step = divide_up(rows, divide_up(rows, tile_rows * 8));
  int64_t bytes = rows <= tile_rows ? 64 << 10 : 256 << 10;
  int64_t panel_step = most<int64_t>(1, least(panels, bytes / panel_bytes));
  // Leave at least a few tasks for each thread, where there is work for them.
  int64_t worth = panels * panel_bytes * divide_up(rows, tile_rows) / kLeastTask;
  int64_t wanted_tasks = thread_count() == 1 ? 1 : least<int64_t>(4 * thread_count(), worth);
  while (panel_step > 1 && divide_up(panels, panel_step) * divide_up(rows, row_step) < wanted_tasks)
    panel_step = (panel_step + 1) / 2;
  return {rows, panels, row_step, panel_step, divide_up(rows, row_step), divide_up(panels, panel_step)};
}

// Calls body(first row, rows, panel) for each tile of a task. Tiles are of even height: 16 rows are 8 + 8, not 12 + 4.
template <class Body>
RS_INLINE void for_tiles(const LinearGrid& grid, int64_t task, int64_t tile_rows, const Body& body) {
  int64_t first_row = task % grid.row_blocks * grid.row_step, rows = least(grid.rows - first_row, grid.row_step);
  int64_t first_panel = task / grid.row_blocks * grid.panel_step,
          end_panel = least(grid.panels, first_panel + grid.panel_step);
  int64_t tiles = divide_up(rows, tile_rows);
  for (int64_t t = 0; t < tiles; ++t) {
    int64_t low = rows * t / tiles, high = rows * (t + 1) / tiles;
    for (int64_t panel = first_panel; panel < end_panel; ++panel) body(first_row + low, int(high - low), panel);
  }
}

// A task's part of what is to be fetched while linears compute. `lines`: what a tile fetches; a tile of fewer than
// `least_rows` takes no longer than its weights take to come.
RS_INLINE Ahead ahead_of(const LinearGrid& grid, int worker, int64_t tile_rows, int64_t least_rows, int64_t lines) {
  int64_t rows = least(grid.rows, grid.row_step), tiles = divide_up(rows, tile_rows);
  return rows < least_rows ? Ahead() : Ahead(tiles * grid.panel_step * lines, worker);
}

// What a tile of a dense linear fetches. Weights of two bytes leave time for it only where they meet two tiles.
template <class D>
RS_INLINE Ahead dense_ahead(const LinearGrid& grid, int worker, const RsLinear& op, int64_t panels_a_step = 1) {
  int64_t lines = panels_a_step * op.in_features / D::kStep * kAheadLinesAStep;
  return ahead_of(grid, worker, kDenseRows, kDenseRows + 1, lines);
}

// Hands the grid's tasks to the pool: body(task, worker).
template <class Body>
RS_INLINE void for_tasks(const LinearGrid& grid, const Body& body) {
  parallel(
      grid.row_blocks * grid.panel_blocks,
      [](void* context, int64_t task, int worker) { (*static_cast<const Body*>(context))(task, worker); },
      const_cast<Body*>(&body));
}

template <class D>
LinearGrid dense_grid(const RsLinear& op, int64_t rows) {
  int64_t panel_bytes = op.in_features * kPanel * int64_t(sizeof(typename D::Element));
  return linear_grid(rows, divide_up(op.out_features, kPanel), panel_bytes, kDenseRows);
}

template <class D>
bool linear_dense_typed(const RsLinear& op, Rows rows) {
  LinearGrid grid = dense_grid<D>(op, rows.count);
  for_tasks(grid, [&](int64_t task, int worker) {
    Ahead ahead = dense_ahead<D>(grid, worker, op);
    for_tiles(grid, task, kDenseRows, [&](int64_t row, int count, int64_t panel) {
      dense_tile_of<D, kDenseRows>(count, {&op, rows.index, row, panel * kPanel, &ahead});
    });
  });
  return true;
}

bool linear_dense(const RsLinear& op, Rows rows) {
  return op.format == RS_DENSE_BF16 ? linear_dense_typed<DenseBf16>(op, rows) : linear_dense_typed<DenseF32>(op, rows);
}

}  // namespace RS_NAMESPACE
}  // namespace radixserve
