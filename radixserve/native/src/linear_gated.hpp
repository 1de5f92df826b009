// The gated unit of a feed-forward block as one operation (Shazeer 2020): out = silu(x W^T + b) * (x V^T + c). What
// stands between the linears and the activation is never written to memory:
//
//   task (rows x panels of W) -> tile of W, the same tile of V [rows x 1 panel] -> out
//
// Panels of W and V stand in turns, so that a task reads one stretch of memory, ahead of which is prefetched what it
// needs next.
//
// Tiles are computed by the kernels of RS_LINEAR into a few vectors on the stack.
#pragma once
#include "linear_quant.hpp"
#include "silu_mul.hpp"

namespace radixserve {
namespace RS_NAMESPACE {

template <int kFeatures>
RS_INLINE void store_gated(const RsLinear& op, int64_t row, int rows, int64_t feature, const float* gate,
                           const float* up) {
  for (int r = 0; r < rows; ++r)
    for (int i = 0; i < kFeatures; i += kLanes) {
      F value = silu_times(load(gate + r * kFeatures + i), load(up + r * kFeatures + i));
      int64_t place = (row + r) * op.out_stride + feature + i;
      if (op.out_type == RS_BF16)
        store(static_cast<bf16*>(op.out) + place, value);
      else
        store(static_cast<float*>(op.out) + place, value);
    }
}

template <class Q>
bool linear_gated_quant(const RsLinear& op, Rows rows) {
  int64_t bytes = quant_panel_bytes<Q>(op.in_features);
  LinearGrid grid = linear_grid(rows.count, op.out_features / kQuantPanel, 2 * bytes, kQuantRows);
  RoundRows<Q> round(op, rows);
  PreparedRows<RoundRows<Q>> rounded(round, rows.count);
  if (!rounded.begin()) return false;
  for_tasks(grid, [&](int64_t task, int worker) {
    QuantizedRows<Q> x = round.all(rounded.of(worker));
    Ahead ahead = quant_ahead(grid, worker, op, 2);
    for_tiles(grid, task, [&](int64_t row, int count, int64_t panel) {
      float outputs[2][kQuantRows * kQuantPanel];
      for (int half = 0; half < 2; ++half) {
        int64_t feature = half * op.out_features + panel * kQuantPanel;
        const void* weights = static_cast<const uint8_t*>(op.weight) + (2 * panel + half) * bytes;
        RsLinear piece = piece_of(op, weights, feature, kQuantPanel, outputs[half], kQuantPanel);
        quant_tile_of<Q, kQuantRows>(count, quant_tile_at(x, &piece, row, 0, 0, &ahead));
      }
      store_gated<kQuantPanel>(op, row, count, panel * kQuantPanel, outputs[0], outputs[1]);
    });
  });
  return true;
}

template <class D>
bool linear_gated_dense(const RsLinear& op, Rows rows) {
  using E = typename D::Element;
  int64_t bytes = 2 * op.in_features * kPanel * int64_t(sizeof(E));
  LinearGrid grid = linear_grid(rows.count, op.out_features / kPanel, bytes, kTallRows);
  DenseInput<D> x(op, rows, grid);
  if (!x.begin()) return false;
  for_tasks(grid, [&](int64_t task, int worker) {
    const char* packed = x.of(worker);
    Ahead ahead = dense_ahead<D>(grid, worker, op, 2);
    for_tiles(grid, task, [&](int64_t row, int count, int64_t panel) {
      float outputs[2][kTallRows * kPanel];
      for (int half = 0; half < 2; ++half) {
        int64_t feature = half * op.out_features + panel * kPanel;
        const E* weights = static_cast<const E*>(op.weight) + (2 * panel + half) * kPanel * op.in_features;
        RsLinear piece = piece_of(op, weights, feature, kPanel, outputs[half], kPanel);
        dense_tile_of<D>(count, {&piece, x.tile(packed, row), 0, 0, &ahead});
      }
      store_gated<kPanel>(op, row, count, panel * kPanel, outputs[0], outputs[1]);
    });
  });
  return true;
}

bool linear_gated(const RsLinear& op, Rows rows) {
  switch (op.format) {
    case RS_DENSE_F32: return linear_gated_dense<DenseF32>(op, rows);
    case RS_DENSE_BF16: return linear_gated_dense<DenseBf16>(op, rows);
    case RS_Q8_0: return linear_gated_quant<Q8_0>(op, rows);
    case RS_Q4_0: return linear_gated_quant<Q4_0>(op, rows);
    case RS_Q4_1: return linear_gated_quant<Q4_1>(op, rows);
    case RS_Q4_K: return linear_gated_quant<Q4_K>(op, rows);
    default: return linear_gated_quant<Q6_K>(op, rows);
  }
}

}  // namespace RS_NAMESPACE
}  // namespace radixserve
