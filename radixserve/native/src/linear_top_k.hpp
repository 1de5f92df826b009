// The k largest outputs of each row of a linear (k = 1: greedy decoding from the LM head), without writing the outputs
// to memory.
//
// Tiles are computed by the kernels of RS_LINEAR into a few vectors of the worker's own and looked through at once:
//
//   task (rows x panels) -> tile (rows x 1 panel) -> lists [worker][row] of the k largest so far -> merged by row
//
// Larger first, ties by the lowest feature, is a total order over outputs, so the result does not depend on which
// worker saw which of them, or when.
#pragma once
#include "linear_quant.hpp"
#include "top_k.hpp"

namespace radixserve {
namespace RS_NAMESPACE {

// What one worker has seen of one row: `kept` entries in order, and whether there was a NaN.
struct TopList {
  int32_t kept;
  int32_t has_nan;
  int32_t* ids;   // [k]
  float* values;  // [k]
};

RS_INLINE void offer(TopList& list, int64_t k, float value, int32_t id) {
  if (list.kept == k && !comes_before(value, id, list.values[k - 1], list.ids[k - 1])) return;
  int64_t place = list.kept < k ? list.kept++ : k - 1;
  for (; place > 0 && comes_before(value, id, list.values[place - 1], list.ids[place - 1]); --place) {
    list.values[place] = list.values[place - 1];
    list.ids[place] = list.ids[place - 1];
  }
  list.values[place] = value;
  list.ids[place] = id;
}

// Takes up to 16 outputs, those of features `first` on. Most vectors fail the first comparison, with the smallest kept.
RS_INLINE void look_through(TopList& list, int64_t k, const float* outputs, int64_t count, int64_t first) {
  if (list.kept == k && count == kLanes) {
    F all = load(outputs);
    // 0 unless an output is NaN or infinite; then they are looked at one by one.
    if (sum_lanes(mul(all, zero())) == 0.0f && !(max_lanes(all) >= list.values[k - 1])) return;
  }
  for (int64_t i = 0; i < count; ++i) {
    if (outputs[i] != outputs[i])
      list.has_nan = 1;
    else
      offer(list, k, outputs[i], int32_t(first + i));
  }
}

// All workers' lists: ids and values of [worker][row][k], then the heads of [worker][row].
struct TopLists {
  int32_t* ids;
  float* values;
  TopList* lists;
  int64_t rows, k;

  TopList& of(int worker, int64_t row) const { return lists[worker * rows + row]; }
};

bool make_top_lists(int64_t rows, int64_t k, TopLists* out) {
  int64_t lists = rows * thread_count();
  size_t bytes = size_t(lists) * (sizeof(TopList) + size_t(k) * (sizeof(int32_t) + sizeof(float)));
  char* scratch = static_cast<char*>(shared_scratch(SCRATCH_PARTIALS, bytes));
  if (!scratch) return false;
  TopList* heads = reinterpret_cast<TopList*>(scratch);
  int32_t* ids = reinterpret_cast<int32_t*>(heads + lists);
  float* values = reinterpret_cast<float*>(ids + lists * k);
  for (int64_t i = 0; i < lists; ++i) heads[i] = {0, 0, ids + i * k, values + i * k};
  *out = {ids, values, heads, rows, k};
  return true;
}

void merge_top_lists(const RsLinearTopK& op, const TopLists& lists) {
  for (int64_t row = 0; row < lists.rows; ++row) {
    TopList all{0, 0, op.ids + row * op.k, op.values + row * op.k};
    for (int worker = 0; worker < thread_count(); ++worker) {
      const TopList& part = lists.of(worker, row);
      all.has_nan |= part.has_nan;
      for (int32_t i = 0; i < part.kept; ++i) offer(all, op.k, part.values[i], part.ids[i]);
    }
    for (int64_t i = 0; all.has_nan && i < op.k; ++i) {
      all.ids[i] = -1;
      all.values[i] = bits_to_float(0x7fc00000);
    }
  }
}

RS_INLINE void look_through_tile(const TopLists& lists, int worker, int64_t first_row, int rows, const float* outputs,
                                 int64_t width, int64_t first_feature, int64_t features) {
  for (int r = 0; r < rows; ++r)
    for (int64_t i = 0; i < least(width, features - first_feature); i += kLanes)
      look_through(lists.of(worker, first_row + r), lists.k, outputs + r * width + i,
                   least<int64_t>(kLanes, features - first_feature - i), first_feature + i);
}

template <class Q>
bool linear_top_k_quant(const RsLinearTopK& op, Rows rows) {
  const RsLinear& linear = op.linear;
  LinearGrid grid = quant_grid<Q>(linear, rows.count);
  RoundRows<Q> round(linear, rows);
  PreparedRows<RoundRows<Q>> rounded(round, rows.count);
  TopLists lists;
  if (!rounded.begin() || !make_top_lists(rows.count, op.k, &lists)) return false;
  for_tasks(grid, [&](int64_t task, int worker) {
    QuantizedRows<Q> x = round.all(rounded.of(worker));
    Ahead nothing;
    for_tiles(grid, task, [&](int64_t row, int count, int64_t panel) {
      float outputs[kQuantRows * kQuantPanel];
      int64_t feature = panel * kQuantPanel;
      const void* weights =
          static_cast<const uint8_t*>(linear.weight) + panel * quant_panel_bytes<Q>(linear.in_features);
      RsLinear piece = piece_of(linear, weights, feature, linear.out_features - feature, outputs, kQuantPanel);
      quant_tile_of<Q, kQuantRows>(count, quant_tile_at(x, &piece, row, 0, 0, &nothing));
      look_through_tile(lists, worker, row, count, outputs, kQuantPanel, feature, linear.out_features);
    });
  });
  merge_top_lists(op, lists);
  return true;
}

template <class D>
bool linear_top_k_dense(const RsLinearTopK& op, Rows rows) {
  using E = typename D::Element;
  const RsLinear& linear = op.linear;
  LinearGrid grid = dense_grid<D>(linear, rows.count);
  DenseInput<D> x(linear, rows, grid);
  TopLists lists;
  if (!x.begin() || !make_top_lists(rows.count, op.k, &lists)) return false;
  for_tasks(grid, [&](int64_t task, int worker) {
    const char* packed = x.of(worker);
    Ahead nothing;
    for_tiles(grid, task, [&](int64_t row, int count, int64_t panel) {
      float outputs[kTallRows * kPanel];
      int64_t feature = panel * kPanel;
      const E* weights = static_cast<const E*>(linear.weight) + feature * linear.in_features;
      RsLinear piece = piece_of(linear, weights, feature, linear.out_features - feature, outputs, kPanel);
      dense_tile_of<D>(count, {&piece, x.tile(packed, row), 0, 0, &nothing});
      look_through_tile(lists, worker, row, count, outputs, kPanel, feature, linear.out_features);
    });
  });
  merge_top_lists(op, lists);
  return true;
}

bool linear_top_k(const RsLinearTopK& op, Rows rows) {
  switch (op.linear.format) {
    case RS_DENSE_F32: return linear_top_k_dense<DenseF32>(op, rows);
    case RS_DENSE_BF16: return linear_top_k_dense<DenseBf16>(op, rows);
    case RS_Q8_0: return linear_top_k_quant<Q8_0>(op, rows);
    case RS_Q4_0: return linear_top_k_quant<Q4_0>(op, rows);
    case RS_Q4_1: return linear_top_k_quant<Q4_1>(op, rows);
    case RS_Q4_K: return linear_top_k_quant<Q4_K>(op, rows);
    default: return linear_top_k_quant<Q6_K>(op, rows);
  }
}

}  // namespace RS_NAMESPACE
}  // namespace radixserve
