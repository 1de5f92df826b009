// Rotary position embedding (Su et al. 2021, rotation by halves as in Llama's checkpoints), RMSNorm over the heads of q
// and k where the model has it, and writing K and V of the step's tokens into the paged cache.
//
// The cache of one layer is an array of sub-blocks of 16 tokens; a block of a larger block_size is several sub-blocks
// in a row, so slot s lives in sub-block s / 16 at place t = s % 16. One sub-block, bf16 (pairs, because dot2 takes two
// products at a time):
//
//   K  [kv_head][head_dim / 2][16 tokens][2]
//          for dims 2i, 2i+1: 16 tokens side by side, ready to meet a broadcast pair of q
//   V  [kv_head][8 token pairs][head_dim][2]
//          for tokens 2j, 2j+1: all dims side by side, ready to meet a broadcast pair of p
//
// fp32:
//
//   K  [kv_head][head_dim][16 tokens]            V  [kv_head][16 tokens][head_dim]
//
// and int8, the pairs of bf16 with the scales of the 16 tokens behind them, where a number is int8 times its token's
// scale:
//
//   K  [kv_head]{ [head_dim / 2][16 tokens][2] int8, [16 tokens] bf16 }
//   V  [kv_head]{ [8 token pairs][head_dim][2] int8, [16 tokens] bf16 }
//
// A head of a token is rounded by itself (kv_quant.hpp), so what is stored depends on that token alone.
#pragma once
#include "kv_quant.hpp"
#include "norm.hpp"
#include "rows.hpp"

namespace radixserve {
namespace RS_NAMESPACE {

RS_INLINE int64_t k_offset(bf16, int64_t dim, int64_t token) { return (dim / 2 * 16 + token) * 2 + dim % 2; }
RS_INLINE int64_t v_offset(bf16, int64_t dim, int64_t token, int64_t head_dim) {
  return (token / 2 * head_dim + dim) * 2 + token % 2;
}
RS_INLINE int64_t k_offset(int8_t, int64_t dim, int64_t token) { return k_offset(bf16{}, dim, token); }
RS_INLINE int64_t v_offset(int8_t, int64_t dim, int64_t token, int64_t head_dim) {
  return v_offset(bf16{}, dim, token, head_dim);
}
RS_INLINE int64_t k_offset(float, int64_t dim, int64_t token) { return dim * 16 + token; }
RS_INLINE int64_t v_offset(float, int64_t dim, int64_t token, int64_t head_dim) { return token * head_dim + dim; }

constexpr int kMaxHeadDim = 256;
// Elements of q that a thread rotates at once: the cache that goes with so few is worth sharing out, for it misses.
constexpr int64_t kRotatedAtOnce = 2560;

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

// Makes what the cache keeps of one head of K or V, [head_dim] in order; the scale, where there is one, goes to its
// token's place behind the head's sub-block.
template <class Kv>
RS_INLINE void convert_head(const float* x, int64_t d, int64_t, Kv*, Kv* out) {
  for (int64_t i = 0; i < d; i += kLanes) store(out + i, load(x + i));
}
RS_INLINE void convert_head(const float* x, int64_t d, int64_t token, int8_t* head, int8_t* out) {
  kv_scales(head, d)[token] = quantize_head(x, d, out);
}

template <class T, class Q, class Kv>
bool rope_append_typed(const RsRopeAppend& op, const RsBatch& batch) {
  int64_t d = op.head_dim, half = d / 2, head_bytes = kv_head_bytes(op.kv_type, d);
  auto rotate_row = [&](int64_t row) {
    const T* q = static_cast<const T*>(op.qkv) + row * op.qkv_stride;
    const T* k = q + op.heads * d;
    const T* v = k + op.kv_heads * d;
    const float* cosines = op.cos_table + batch.positions[row] * half;
    const float* sines = op.sin_table + batch.positions[row] * half;
    Q* q_out = static_cast<Q*>(op.q_out) + row * op.q_stride;
    for (int64_t h = 0; h < op.heads; ++h) rotate(q + h * d, q_out + h * d, d, cosines, sines, op.q_norm, op.eps);

    int64_t slot = batch.slots[row], token = slot % 16;
    for (int64_t h = 0; h < op.kv_heads; ++h) {
      int64_t place = (slot / 16 * op.kv_heads + h) * head_bytes;
      Kv* k_head = reinterpret_cast<Kv*>(static_cast<char*>(op.k_cache) + place);
      Kv* v_head = reinterpret_cast<Kv*>(static_cast<char*>(op.v_cache) + place);
      float values[kMaxHeadDim];
      Kv kept[kMaxHeadDim];
      rotate(k + h * d, values, d, cosines, sines, op.k_norm, op.eps);
      convert_head(values, d, token, k_head, kept);
      for (int64_t i = 0; i < d; ++i) k_head[k_offset(Kv{}, i, token)] = kept[i];
      for (int64_t i = 0; i < d; i += kLanes) store(values + i, load(v + h * d + i));
      convert_head(values, d, token, v_head, kept);
      for (int64_t i = 0; i < d; ++i) v_head[v_offset(Kv{}, i, token, d)] = kept[i];
    }
  };
  for_rows(batch.tokens, op.heads * d, rotate_row, kRotatedAtOnce);
  return true;
}

template <class Q, class Kv>
bool rope_append_to(const RsRopeAppend& op, const RsBatch& batch) {
  return op.qkv_type == RS_BF16 ? rope_append_typed<bf16, Q, Kv>(op, batch)
                                : rope_append_typed<float, Q, Kv>(op, batch);
}

bool rope_append(const RsRopeAppend& op, const RsBatch& batch) {
  if (op.kv_type == RS_INT8)
    return op.q_type == RS_BF16 ? rope_append_to<bf16, int8_t>(op, batch) : rope_append_to<float, int8_t>(op, batch);
  return op.q_type == RS_BF16 ? rope_append_to<bf16, bf16>(op, batch) : rope_append_to<float, float>(op, batch);
}

}  // namespace RS_NAMESPACE
}  // namespace radixserve
