#include "by_rows.h"

#include <algorithm>
#include <type_traits>

#include "pool.h"

namespace radixserve {
namespace {

// Weights between two attentions that are unpacked in less time than the threads would wait for one another.
constexpr int64_t kFewWeights = 8 << 20;

// Rows that a thread must have: the more bytes a weight has, the more rows must meet it in the time that it takes to
// come. And with fewer than these all rows of a step may be one tile, which unpacks its weights once; cut by rows they
// would be a tile for each thread.
int64_t least_rows(int32_t format, bool few_weights) {
  switch (format) {
    case RS_DENSE_F32:
    case RS_DENSE_BF16:
    case RS_Q8_0:
    case RS_Q6_K: return 16;
    default: return few_weights ? 3 : 8;
  }
}

// Rows of a part: the activations of so many stay in the core's own cache, and at the end of a run no thread waits long
// for another.
constexpr int64_t kMostRows = 24;

bool is_row_wise(const RsOp& op) {
  if (op.rows != RS_ALL_TOKENS) return false;
  return op.kind == RS_EMBEDDING || op.kind == RS_NORM || op.kind == RS_LINEAR || op.kind == RS_ROPE_APPEND ||
         op.kind == RS_SILU_MUL;
}

int64_t size_of(int32_t type) { return type == RS_BF16 ? sizeof(uint16_t) : sizeof(float); }

// Lets `data` begin `rows` rows later; null stays null.
template <class T>
void skip(T*& data, int64_t rows, int64_t stride, int32_t type) {
  using Byte = std::conditional_t<std::is_const_v<T>, const char, char>;
  if (data) data = static_cast<Byte*>(data) + rows * stride * size_of(type);
}

template <class Params>
void skip_input(Params& params, int64_t rows) {
  skip(params.x, rows, params.x_stride, params.x_type);
}
template <class Params>
void skip_output(Params& params, int64_t rows) {
  skip(params.out, rows, params.out_stride, params.out_type);
}

}  // namespace

RowWiseRun row_wise_run(const RsOp* ops, int64_t count, const RsBatch& batch) {
  int64_t run = 0, weights = 0, least = 0;
  for (; run < count && is_row_wise(ops[run]); ++run) {
    if (ops[run].kind != RS_LINEAR) continue;
    const RsLinear& linear = *static_cast<const RsLinear*>(ops[run].params);
    weights += linear.in_features * linear.out_features * (linear.gated ? 2 : 1);
  }
  for (int64_t i = 0; i < run; ++i) {
    if (ops[i].kind != RS_LINEAR) continue;
    int32_t format = static_cast<const RsLinear*>(ops[i].params)->format;
    least = std::max(least, least_rows(format, weights <= kFewWeights));
  }
  return {run, run > 1 && least && thread_count() > 1 && batch.tokens >= least * thread_count()};
}

int64_t row_parts(const RsBatch& batch) {
  int64_t threads = thread_count(), most = threads * kMostRows;
  return threads * ((batch.tokens + most - 1) / most);
}

RowsOfOp::RowsOfOp(const RsOp& op, const RsBatch& batch, int64_t first, int64_t rows)
    : op_{op.kind, op.rows, nullptr}, batch_(batch) {
  batch_.tokens = rows;
  batch_.token_ids += first;
  batch_.positions += first;
  batch_.slots += first;
  auto copy = [&](auto& params) {
    params = *static_cast<const std::remove_reference_t<decltype(params)>*>(op.params);
    op_.params = &params;
  };
  switch (op.kind) {
    case RS_EMBEDDING:
      copy(embedding_);
      skip_output(embedding_, first);
      break;
    case RS_NORM:
      copy(norm_);
      skip_input(norm_, first);
      skip(norm_.delta, first, norm_.delta_stride, norm_.x_type);
      skip(norm_.residual, first, norm_.residual_stride, norm_.x_type);
      skip_output(norm_, first);
      break;
    case RS_LINEAR:
      copy(linear_);
      skip_input(linear_, first);
      skip_output(linear_, first);
      break;
    case RS_ROPE_APPEND:
      copy(rope_append_);
      skip(rope_append_.qkv, first, rope_append_.qkv_stride, rope_append_.qkv_type);
      skip(rope_append_.q_out, first, rope_append_.q_stride, rope_append_.q_type);
      break;
    default:
      copy(silu_mul_);
      skip_input(silu_mul_, first);
      skip_output(silu_mul_, first);
  }
}

}  // namespace radixserve
