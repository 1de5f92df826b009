// The gated activation of SwiGLU (Shazeer 2020): silu(gate) * up, silu(x) = x / (1 + e^-x).
#pragma once
#include "rows.hpp"

namespace radixserve {
namespace RS_NAMESPACE {

RS_INLINE F silu_times(F gate, F up) {
  // Below -87 the result is under 1e-35 and taken as 0; e^-x stays finite.
  F bound = set1(-87.0f), e = exp(sub(zero(), max(bound, gate)));
  return mul(zero_where_below(div(gate, add(set1(1.0f), e)), gate, bound), up);
}

template <class T, class Out>
bool silu_mul_typed(const RsSiluMul& op, Rows rows) {
  for_rows(rows.count, 2 * op.width, [&](int64_t row) {
    const T* gate = static_cast<const T*>(op.x) + source_row(rows, row) * op.x_stride;
    const T* up = gate + op.width;
    Out* out = static_cast<Out*>(op.out) + row * op.out_stride;
    for (int64_t i = 0; i < op.width; i += kLanes) store(out + i, silu_times(load(gate + i), load(up + i)));
  });
  return true;
}

bool silu_mul(const RsSiluMul& op, Rows rows) {
  if (op.x_type == RS_BF16)
    return op.out_type == RS_BF16 ? silu_mul_typed<bf16, bf16>(op, rows) : silu_mul_typed<bf16, float>(op, rows);
  return op.out_type == RS_BF16 ? silu_mul_typed<float, bf16>(op, rows) : silu_mul_typed<float, float>(op, rows);
}

}  // namespace RS_NAMESPACE
}  // namespace radixserve
