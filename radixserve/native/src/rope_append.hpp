// Rotary position embedding (Su et al. 2021, rotation by halves as in Llama's checkpoints), RMSNorm over the heads of q
// and k where the model has it, and writing K and V of the step's tokens into the paged cache.
//
// The cache of one layer is an array of sub-blocks of 16 tokens; a block of a larger block_size is several sub-blocks
// in a row, so slot s lives in sub-block s / 16 at place t = s % 16. One sub-block, bf16 (pairs, because dot2 takes two
// products at a time):
//
//   K  [kv_head][head_dim / 2][16 tokens][2]     for dims 2i, 2i+1: 16 tokens side by side, ready to meet a broadcast
//   pair of q V  [kv_head][8 token pairs][head_dim][2]     for tokens 2j, 2j+1: all dims side by side, ready to meet a
//   broadcast pair of p
//
// and fp32:
//
//   K  [kv_head][head_dim][16 tokens]            V  [kv_head][16 tokens][head_dim]
#pragma once
#include "norm.hpp"
#include "rows.hpp"

namespace radixserve {
namespace RS_NAMESPACE {

RS_INLINE int64_t k_offset(bf16, int64_t dim, int64_t token) { return (dim / 2 * 16 + token) * 2 + dim % 2; }
RS_INLINE int64_t v_offset(bf16, int64_t dim, int64_t token, int64_t head_dim) {
  return (token / 2 * head_dim + dim) * 2 + token % 2;
}
RS_INLINE int64_t k_offset(float, int64_t dim, int64_t token) { return dim * 16 + token; }
RS_INLINE int64_t v_offset(float, int64_t dim, int64_t token, int64_t head_dim) { return token * head_dim + dim; }

constexpr int kMaxHeadDim = 256;

// Rotates one head from `in` to `out`; head_dim / 2 a multiple of 8.
template <class T, class Out>
RS_INLINE void rotate(const T* in, Out* out, int64_t head_dim, const float* cosines, const float* sines,
                      const float* weight, float eps) {
  int64_t half = head_dim / 2;
  F factor = weight ? set1(inverse_rms(in, head_dim, eps)) : zero();
  float values[kMaxHeadDim];
  for (int64_t i = 0; i < head_dim; i += kLanes) {
    F x = load(in + i);
    store(values + i, weight ? mul(mul(x, factor), load(weight + i)) : x);
  }
  for (int64_t i = 0; i < half; i += kLanes) {
    int n = int(least<int64_t>(kLanes, half - i));
    F c = load(cosines + i, n), s = load(sines + i, n), x0 = load(values + i, n), x1 = load(values + half + i, n);
    store(out + i, sub(mul(x0, c), mul(x1, s)), n);
    store(out + half + i, fma(x0, s, mul(x1, c)), n);
  }
}

template <class T, class Kv>
bool rope_append_typed(const RsRopeAppend& op, const RsBatch& batch) {
  int64_t d = op.head_dim, half = d / 2, per_block = int64_t(op.kv_heads) * d * 16;
  for_rows(batch.tokens, op.heads * d, [&](int64_t row) {
    const T* q = static_cast<const T*>(op.qkv) + row * op.qkv_stride;
    const T* k = q + op.heads * d;
    const T* v = k + op.kv_heads * d;
    const float* cosines = op.cos_table + batch.positions[row] * half;
    const float* sines = op.sin_table + batch.positions[row] * half;
    Kv* q_out = static_cast<Kv*>(op.q_out) + row * op.q_stride;
    for (int64_t h = 0; h < op.heads; ++h) rotate(q + h * d, q_out + h * d, d, cosines, sines, op.q_norm, op.eps);

    int64_t slot = batch.slots[row], token = slot % 16;
    Kv* k_block = static_cast<Kv*>(op.k_cache) + slot / 16 * per_block;
    Kv* v_block = static_cast<Kv*>(op.v_cache) + slot / 16 * per_block;
    Kv rotated[kMaxHeadDim];
    for (int64_t h = 0; h < op.kv_heads; ++h) {
      rotate(k + h * d, rotated, d, cosines, sines, op.k_norm, op.eps);
      for (int64_t i = 0; i < d; ++i) k_block[h * d * 16 + k_offset(Kv{}, i, token)] = rotated[i];
      for (int64_t i = 0; i < d; i += kLanes) store(rotated + i, load(v + h * d + i));
      for (int64_t i = 0; i < d; ++i) v_block[h * d * 16 + v_offset(Kv{}, i, token, d)] = rotated[i];
    }
  });
  return true;
}

bool rope_append(const RsRopeAppend& op, const RsBatch& batch) {
  if (op.qkv_type == RS_BF16)
    return op.kv_type == RS_BF16 ? rope_append_typed<bf16, bf16>(op, batch) : rope_append_typed<bf16, float>(op, batch);
  return op.kv_type == RS_BF16 ? rope_append_typed<float, bf16>(op, batch) : rope_append_typed<float, float>(op, batch);
}

}  // namespace RS_NAMESPACE
}  // namespace radixserve
