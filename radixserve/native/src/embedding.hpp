// out[row] = W[token id], read from the packed weights of the head where both are one matrix.
#pragma once
#include "linear_quant.hpp"

namespace radixserve {
namespace RS_NAMESPACE {

// One output feature (`place` within its panel) of a group of 32, as fp32.
template <class Q>
void dequantize_group(const uint8_t* quants, const uint8_t* scales, int64_t group, int64_t place, float* out) {
  W w[8];
  F d[2], m = zero();
  int64_t in_super;
  const uint8_t* of_group = scales_of<Q>(scales, group, &in_super);
  Q::unpack(quants + group * Q::kQuantBytes, w);
  Q::scales(of_group, in_super, d, &m);
  uint8_t bytes[8][16][4];
  float scale[2][16], minimum[16];
  __builtin_memcpy(bytes, w, sizeof bytes);
  for (int half = 0; half < Q::kHalves; ++half) store(scale[half], d[half]);
  store(minimum, m);
  for (int i = 0; i < kGroup; ++i) {
    float s = scale[Q::kHalves == 2 ? i / 16 : 0][place];
    float value = s * float(int(bytes[i / 4][place][i % 4]) - Q::kZero);
    out[i] = Q::kMinimum ? value + minimum[place] : value;
  }
}

template <class Q>
RS_INLINE void quant_feature(const void* weight, int64_t width, int64_t feature, float* out) {
  const uint8_t* quants = static_cast<const uint8_t*>(weight) + feature / kQuantPanel * quant_panel_bytes<Q>(width);
  const uint8_t* scales = quants + width / kGroup * Q::kQuantBytes;
  for (int64_t g = 0; g < width / kGroup; ++g)
    dequantize_group<Q>(quants, scales, g, feature % kQuantPanel, out + g * kGroup);
}

template <class D>
RS_INLINE void dense_feature(const void* weight, int64_t width, int64_t feature, float* out) {
  using E = typename D::Element;
  const E* panel = static_cast<const E*>(weight) + feature / kPanel * kPanel * width;
  for (int64_t k = 0; k < width; ++k)
    out[k] = to_float(panel[k / D::kStep * kPanel * D::kStep + feature % kPanel * D::kStep + k % D::kStep]);
}

void weight_row(const RsEmbedding& op, int64_t feature, float* out) {
  switch (op.format) {
    case RS_DENSE_F32: return dense_feature<DenseF32>(op.table, op.width, feature, out);
    case RS_DENSE_BF16: return dense_feature<DenseBf16>(op.table, op.width, feature, out);
    case RS_Q8_0: return quant_feature<Q8_0>(op.table, op.width, feature, out);
    case RS_Q4_0: return quant_feature<Q4_0>(op.table, op.width, feature, out);
    case RS_Q4_1: return quant_feature<Q4_1>(op.table, op.width, feature, out);
    case RS_Q4_K: return quant_feature<Q4_K>(op.table, op.width, feature, out);
    default: return quant_feature<Q6_K>(op.table, op.width, feature, out);
  }
}

bool embedding(const RsEmbedding& op, const RsBatch& batch, Rows rows) {
  float* values = static_cast<float*>(shared_scratch(SCRATCH_ACTIVATIONS, size_t(rows.count * op.width) * 4));
  if (!values && rows.count) return false;
  for_rows(rows.count, op.width, [&](int64_t row) {
    float* whole = values + row * op.width;
    weight_row(op, batch.token_ids[source_row(rows, row)], whole);
    for (int64_t i = 0; i < op.width; i += kLanes) {
      if (op.out_type == RS_BF16)
        store(static_cast<bf16*>(op.out) + row * op.out_stride + i, load(whole + i));
      else
        store(static_cast<float*>(op.out) + row * op.out_stride + i, load(whole + i));
    }
  });
  return true;
}

}  // namespace RS_NAMESPACE
}  // namespace radixserve
