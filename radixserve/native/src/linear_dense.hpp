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
// meets each vector of W with one broadcast element (bf16: pair) of each row. Of more rows, up to kTallRows, it keeps
// one accumulator each and walks down K twice, for the left vectors and then for the right ones: so weights come from
// memory once for twice the rows, and evenly, not in a rush for the first rows of several. An output is one chain of
// multiply-adds in ascending k, whatever the number of rows, the tiling and the thread that computes it: its bits
// depend on x's row and W alone.
//
// Tasks are (block of rows) x (block of panels) of a size that stays in the L2 cache. The rows of a tile are packed
// first (packed_rows.hpp).
#pragma once
#include "packed_rows.hpp"

namespace radixserve {
namespace RS_NAMESPACE {

constexpr int kPanel = 32;
// Bytes of weights between use and prefetch, by the rows of a tile: where memory is the bound, more only pushes out what
// is still to be used. For many rows not near a multiple of 4096: there what is prefetched takes the places of what is in
// use. What is prefetched after the last panel is the next linear's.
constexpr int ahead_bytes(int rows) { return rows < 4 ? 4096 : rows <= kDenseRows ? 6144 : 10240; }

constexpr int vectors_at_once(int rows) { return rows > kDenseRows ? 1 : kPanel / kLanes; }

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
  const char* x;  // packed
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
  constexpr int V = vectors_at_once(R);
  const RsLinear& op = *tile.op;
  const E* panel = static_cast<const E*>(op.weight) + tile.first_feature * op.in_features;
  constexpr int kAheadLines = R >= kAheadRows ? kAheadLinesAStep : 0;
  Ahead ahead = *tile.ahead;
  for (int first = 0; first < kPanel / kLanes; first += V) {
    const E* weights = panel + first * kLanes * D::kStep;
    const E* x = reinterpret_cast<const E*>(tile.x);
    F acc[R][V];
    RS_UNROLL
    for (int r = 0; r < R; ++r) RS_UNROLL
    for (int v = 0; v < V; ++v) acc[r][v] = zero();
    for (int64_t k = 0; k < op.in_features; k += D::kStep) {
      typename D::Vector w[V];
      RS_UNROLL
      for (int v = 0; v < V; ++v) {
        const E* vector = weights + v * kLanes * D::kStep;
        w[v] = D::load_weights(vector);
        prefetch(reinterpret_cast<const char*>(vector) + ahead_bytes(R));
      }
      weights += kPanel * D::kStep;
      ahead.fetch<kAheadLines>();
      RS_UNROLL
      for (int r = 0; r < R; ++r) {
        typename D::Vector b = D::broadcast(x + r * D::kStep);
        RS_UNROLL
        for (int v = 0; v < V; ++v) acc[r][v] = D::dot(acc[r][v], b, w[v]);
      }
      x += R * D::kStep;
    }
    RS_UNROLL
    for (int r = 0; r < R; ++r) RS_UNROLL
    for (int v = 0; v < V; ++v) {
      int64_t row = tile.first_row + r, feature = tile.first_feature + (first + v) * kLanes;
      if (op.out_type == RS_BF16)
        store_outputs<bf16>(op, row, feature, acc[r][v]);
      else
        store_outputs<float>(op, row, feature, acc[r][v]);
    }
  }
  *tile.ahead = ahead;
}

template <class D, int R = kTallRows>
RS_INLINE void dense_tile_of(int rows, const DenseTile& tile) {
  if constexpr (R > 1) {
    if (rows < R) return dense_tile_of<D, R - 1>(rows, tile);
  }
  dense_tile<D, R>(tile);
}

// What a tile of a dense linear fetches. Weights of two bytes leave time for it only where they meet many rows.
template <class D>
RS_INLINE Ahead dense_ahead(const LinearGrid& grid, int worker, const RsLinear& op, int64_t panels_a_step = 1) {
  int64_t walks = kPanel / kLanes / vectors_at_once(int(least(grid.rows, grid.tile_rows)));
  int64_t lines = panels_a_step * walks * op.in_features / D::kStep * kAheadLinesAStep;
  return ahead_of(grid, worker, kDenseRows + 1, lines);
}

// The packed rows of a dense linear; a single row is packed as it is.
template <class D>
class DenseInput {
 public:
  DenseInput(const RsLinear& op, Rows rows, const LinearGrid& grid)
      : make_(op, rows, grid), prepared_(make_, rows.count), single_(nullptr) {
    if (rows.count == 1)
      single_ = reinterpret_cast<const char*>(static_cast<const typename D::Element*>(op.x) +
                                              source_row(rows, 0) * op.x_stride);
  }
  DenseInput(const DenseInput&) = delete;
  DenseInput& operator=(const DenseInput&) = delete;

  bool begin() { return single_ || prepared_.begin(); }
  const char* of(int worker) const { return single_ ? single_ : prepared_.of(worker); }
  const char* tile(const char* packed, int64_t first_row) const { return make_.tile(packed, first_row); }

 private:
  PackRows<typename D::Element> make_;
  PreparedRows<PackRows<typename D::Element>> prepared_;
  const char* single_;
};

template <class D>
LinearGrid dense_grid(const RsLinear& op, int64_t rows) {
  int64_t panel_bytes = op.in_features * kPanel * int64_t(sizeof(typename D::Element));
  return linear_grid(rows, divide_up(op.out_features, kPanel), panel_bytes, kTallRows);
}

template <class D>
bool linear_dense_typed(const RsLinear& op, Rows rows) {
  LinearGrid grid = dense_grid<D>(op, rows.count);
  DenseInput<D> x(op, rows, grid);
  if (!x.begin()) return false;
  for_tasks(grid, [&](int64_t task, int worker) {
    const char* packed = x.of(worker);
    Ahead ahead = dense_ahead<D>(grid, worker, op);
    for_tiles(grid, task, [&](int64_t row, int count, int64_t panel) {
      dense_tile_of<D>(count, {&op, x.tile(packed, row), row, panel * kPanel, &ahead});
    });
  });
  return true;
}

bool linear_dense(const RsLinear& op, Rows rows) {
  return op.format == RS_DENSE_BF16 ? linear_dense_typed<DenseBf16>(op, rows) : linear_dense_typed<DenseF32>(op, rows);
}

}  // namespace RS_NAMESPACE
}  // namespace radixserve
