#include "by_rows.h"

#include <algorithm>
#include <type_traits>

#include "pool.h"

namespace radixserve {
namespace {

// Rows that a thread must have: the more bytes a weight has, the more rows must meet it in the time that it takes to
// come. And with fewer than these all rows of a step may be one tile, which unpacks its weights once; cut by rows they
// would be a tile for each thread.
int64_t least_rows(int32_t format) {
  switch (format) {
    case RS_DENSE_F32:
    case RS_DENSE_BF16: return 32;
    case RS_Q8_0:
    case RS_Q6_K: return 16;
    default: return 8;
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

}  // namespace

int64_t ops_by_rows(const RsOp* ops, int64_t count, const RsBatch& batch) {
  int64_t run = 0, least = 0;
  for (; run < count && is_row_wise(ops[run]); ++run) {
    if (ops[run].kind != RS_LINEAR) continue;
    least = std::max(least, least_rows(static_cast<const RsLinear*>(ops[run].params)->format));
  }
  bool worth_it = run > 1 && least && thread_count() > 1 && batch.tokens >= least * thread_count();
  return worth_it ? run : 0;
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
  switch (op.kind) {
    case RS_EMBEDDING:
      embedding_ = *static_cast<const RsEmbedding*>(op.params);
      skip(embedding_.out, first, embedding_.out_stride, embedding_.out_type);
      op_.params = &embedding_;
      break;
    case RS_NORM:
      norm_ = *static_cast<const RsNorm*>(op.params);
      skip(norm_.x, first, norm_.x_stride, norm_.x_type);
      skip(norm_.delta, first, norm_.delta_stride, norm_.x_type);
      skip(norm_.residual, first, norm_.residual_stride, norm_.x_type);
      skip(norm_.out, first, norm_.out_stride, norm_.out_type);
      op_.params = &norm_;
      break;
    case RS_LINEAR:
      linear_ = *static_cast<const RsLinear*>(op.params);
      skip(linear_.x, first, linear_.x_stride, linear_.x_type);
      skip(linear_.out, first, linear_.out_stride, linear_.out_type);
      op_.params = &linear_;
      break;
    case RS_ROPE_APPEND:
      rope_append_ = *static_cast<const RsRopeAppend*>(op.params);
      skip(rope_append_.qkv, first, rope_append_.qkv_stride, rope_append_.qkv_type);
      skip(rope_append_.q_out, first, rope_append_.q_stride, rope_append_.q_type);
      op_.params = &rope_append_;
      break;
    default:
      silu_mul_ = *static_cast<const RsSiluMul*>(op.params);
      skip(silu_mul_.x, first, silu_mul_.x_stride, silu_mul_.x_type);
      skip(silu_mul_.out, first, silu_mul_.out_stride, silu_mul_.out_type);
      op_.params = &silu_mul_;
  }
}

}  // namespace radixserve
