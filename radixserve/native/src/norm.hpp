// RMSNorm (Zhang & Sennrich 2019), with the residual addition before it.
#pragma once
#include "rows.hpp"

namespace radixserve {
namespace RS_NAMESPACE {

constexpr int64_t kNormedAtOnce = 2304;  // numbers: four rows of a small model, which is worth a second thread

// 1 / sqrt(mean(x^2) + eps) over `width` elements, a multiple of 16.
template <class T>
RS_INLINE float inverse_rms(const T* x, int64_t width, float eps) {
  F squares = zero();
  for (int64_t i = 0; i < width; i += kLanes) {
    F value = load(x + i);
    squares = fma(value, value, squares);
  }
  return 1.0f / __builtin_sqrtf(sum_lanes(squares) / float(width) + eps);
}

template <class T, class Out>
void norm_row(const RsNorm& op, const T* x, const T* delta, T* residual, Out* out) {
  const T* h = x;
  if (delta) {
    for (int64_t i = 0; i < op.width; i += kLanes) store(residual + i, add(load(x + i), load(delta + i)));
    h = residual;
  }
  F factor = set1(inverse_rms(h, op.width, op.eps));
  for (int64_t i = 0; i < op.width; i += kLanes) store(out + i, mul(mul(load(h + i), factor), load(op.weight + i)));
}

template <class T, class Out>
bool norm_typed(const RsNorm& op, Rows rows) {
  // A row needs a place for its rounded sum also where the caller keeps none.
  T* spare = nullptr;
  if (op.delta && !op.residual) {
    spare = static_cast<T*>(shared_scratch(SCRATCH_ACTIVATIONS, size_t(rows.count * op.width) * sizeof(T)));
    if (!spare) return false;
  }
  auto norm_one = [&](int64_t row) {
    int64_t source = source_row(rows, row);
    const T* x = static_cast<const T*>(op.x) + source * op.x_stride;
    const T* delta = op.delta ? static_cast<const T*>(op.delta) + source * op.delta_stride : nullptr;
    T* residual = op.residual ? static_cast<T*>(op.residual) + row * op.residual_stride
                  : spare     ? spare + row * op.width
                              : nullptr;
    norm_row(op, x, delta, residual, static_cast<Out*>(op.out) + row * op.out_stride);
  };
  for_rows(rows.count, op.width, norm_one, kNormedAtOnce);
  return true;
}

bool norm(const RsNorm& op, Rows rows) {
  if (op.x_type == RS_BF16)
    return op.out_type == RS_BF16 ? norm_typed<bf16, bf16>(op, rows) : norm_typed<bf16, float>(op, rows);
  return op.out_type == RS_BF16 ? norm_typed<float, bf16>(op, rows) : norm_typed<float, float>(op, rows);
}

}  // namespace RS_NAMESPACE
}  // namespace radixserve
