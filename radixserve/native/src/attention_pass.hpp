// The two products of an attention pass over blocks of K and V, and the memory it works in (attention.hpp says what a
// pass is).
#pragma once
#include "attention_plan.h"
#include "linear_dense.hpp"
#include "rope_append.hpp"

namespace radixserve {
namespace RS_NAMESPACE {

constexpr int kPassRows = 48;  // rows of a pass: their scores and probabilities stay in the L2 cache
constexpr float kNegativeInfinity = -__builtin_inff();

#if defined(RS_ISA_V4)
constexpr int kWide = 4;  // vectors of K or V that meet kAttentionRows rows at a time
#elif defined(RS_ISA_V3)
constexpr int kWide = 2;
#else
constexpr int kWide = 1;
#endif

constexpr int kAhead = 2;  // sub-blocks of V between use and prefetch
constexpr int kBehind = kWide > kAhead ? kWide : kAhead;  // sub-blocks behind a run that are prefetched at its end

// How a pass works on a cache of bf16 or fp32: queries and probabilities are of its type, sums are fp32.
template <class D>
struct PlainKv {
  using Activation = typename D::Element;  // of q and of the output
  using Cached = typename D::Element;
  using Operand = typename D::Element;  // what meets the cache: queries and probabilities
  using Vector = typename D::Vector;
  using Sum = F;
  static constexpr int kStep = D::kStep;
  static constexpr bool kScaled = false;
  RS_INLINE Vector load_cached(const Cached* p) { return D::load_weights(p); }
  RS_INLINE Vector broadcast(const Operand* p) { return D::broadcast(p); }
  RS_INLINE Sum dot(Sum acc, Vector a, Vector b) { return D::dot(acc, a, b); }
  RS_INLINE Sum no_sum() { return zero(); }
  RS_INLINE Sum load_sum(const float* p) { return load(p); }
};

// And on one of integers: what meets it is rounded to int16, sums are exact int32 (kept in the places of the fp32 ones
// until they are scaled). `Integer` is int8_t as in the cache, or int16_t where many rows are to meet it.
template <class Q, class Integer>
struct IntegerKv {
  using Activation = Q;
  using Cached = Integer;
  using Operand = int16_t;
  using Vector = W;
  using Sum = W;
  static constexpr int kStep = 2;
  static constexpr bool kScaled = true;
  RS_INLINE Vector load_cached(const int8_t* p) { return load_byte_pairs(p); }
  RS_INLINE Vector load_cached(const int16_t* p) { return load_words(p); }
  RS_INLINE Vector broadcast(const Operand* p) { return broadcast_word(p); }
  RS_INLINE Sum dot(Sum acc, Vector a, Vector b) { return dot2_words(acc, a, b); }
  RS_INLINE Sum no_sum() { return zero_words(); }
  RS_INLINE Sum load_sum(const float* p) { return load_words(p); }
};
template <class Q>
using Int8Kv = IntegerKv<Q, int8_t>;
template <class Q>
using Int16Kv = IntegerKv<Q, int16_t>;

// The memory of one pass; `rows` of everything.
template <class A>
struct PassMemory {
  using Operand = typename A::Operand;
  using Cached = typename A::Cached;
  float* scores;               // [rows][256]
  float* partial;              // [rows][head_dim]
  float* state;                // [rows][head_dim], merged partials of a tile
  Operand* probabilities;      // [rows][256]
  Operand* q;                  // [rows][head_dim]
  Cached* tail;                // [16][head_dim], a V sub-block without what was not written
  int16_t* wide;               // [16][head_dim * 16], of an int8 cache: sub-blocks of a run for many rows
  float *k_scales, *v_scales;  // [256], of an int8 cache: scales of the request at work
  float *q_scale, *p_scale;    // of an int8 cache: what takes integers of q and of the weights of V back
  float *maximum, *sum, *state_maximum, *state_sum;
  int32_t *low, *high;  // tokens of the chunk that a row sees

  static size_t bytes(int64_t rows, int64_t d) {
    return size_t(rows) * (kChunk * (4 + sizeof(Operand)) + size_t(d) * (8 + sizeof(Operand)) + 8 * 4) +
           size_t(kSub * d) * sizeof(Cached) + wide_bytes(d) + kChunk * 8 + 16 * 64;
  }
  static size_t wide_bytes(int64_t d) { return A::kScaled ? size_t(kChunk * d) * sizeof(int16_t) : 0; }

  PassMemory(void* memory, int64_t rows, int64_t d) {
    char* next = static_cast<char*>(memory);
    auto take = [&](size_t size) {
      char* here = next;
      next += (size + 63) / 64 * 64;
      return here;
    };
    scores = (float*)take(size_t(rows * kChunk) * 4);
    partial = (float*)take(size_t(rows * d) * 4);
    state = (float*)take(size_t(rows * d) * 4);
    probabilities = (Operand*)take(size_t(rows * kChunk) * sizeof(Operand));
    q = (Operand*)take(size_t(rows * d) * sizeof(Operand));
    tail = (Cached*)take(size_t(kSub * d) * sizeof(Cached));
    wide = (int16_t*)take(wide_bytes(d));
    k_scales = (float*)take(kChunk * 4);
    v_scales = (float*)take(kChunk * 4);
    q_scale = (float*)take(size_t(rows) * 4);
    p_scale = (float*)take(size_t(rows) * 4);
    maximum = (float*)take(size_t(rows) * 4);
    sum = (float*)take(size_t(rows) * 4);
    state_maximum = (float*)take(size_t(rows) * 4);
    state_sum = (float*)take(size_t(rows) * 4);
    low = (int32_t*)take(size_t(rows) * 4);
    high = (int32_t*)take(size_t(rows) * 4);
  }
};

// scores[r][16 v + lane] for R rows and V sub-blocks; meanwhile `next`, the V sub-blocks that come after them, are on
// their way from memory.
template <class A, int R, int V>
__attribute__((noinline)) void score_block(const typename A::Operand* q, const typename A::Cached* const* k,
                                           const typename A::Cached* const* next, int64_t d, float* scores) {
  typename A::Sum acc[R][V];
  RS_UNROLL
  for (int r = 0; r < R; ++r) RS_UNROLL
  for (int v = 0; v < V; ++v) acc[r][v] = A::no_sum();
  for (int64_t i = 0; i < d; i += A::kStep) {
    typename A::Vector w[V];
    RS_UNROLL
    for (int v = 0; v < V; ++v) {
      w[v] = A::load_cached(k[v] + i * kSub);
      prefetch(next[v] + i * kSub);
    }
    RS_UNROLL
    for (int r = 0; r < R; ++r) {
      typename A::Vector b = A::broadcast(q + r * d + i);
      RS_UNROLL
      for (int v = 0; v < V; ++v) acc[r][v] = A::dot(acc[r][v], b, w[v]);
    }
  }
  RS_UNROLL
  for (int r = 0; r < R; ++r) RS_UNROLL
  for (int v = 0; v < V; ++v) store(scores + r * kChunk + v * kSub, acc[r][v]);
}

// partial[r][16 v + lane] += p v for R rows and V vectors of dims, over the sub-blocks of a run; meanwhile the kAhead
// that come after each are on their way from memory.
template <class A, int R, int V>
__attribute__((noinline)) void weigh_block(const typename A::Operand* p, const typename A::Cached* const* v_subs,
                                           int subs, int64_t dim, int64_t d, float* partial) {
  typename A::Sum acc[R][V];
  RS_UNROLL
  for (int r = 0; r < R; ++r) RS_UNROLL
  for (int v = 0; v < V; ++v) acc[r][v] = A::load_sum(partial + r * d + v * kLanes);
  for (int s = 0; s < subs; ++s) {
    const typename A::Cached* values = v_subs[s] + dim * A::kStep;
    const typename A::Cached* next = v_subs[s + kAhead] + dim * A::kStep;
    for (int t = 0; t < kSub; t += A::kStep) {
      typename A::Vector w[V];
      RS_UNROLL
      for (int v = 0; v < V; ++v) {
        w[v] = A::load_cached(values + t * d + v * kLanes * A::kStep);
        prefetch(next + t * d + v * kLanes * A::kStep);
      }
      RS_UNROLL
      for (int r = 0; r < R; ++r) {
        typename A::Vector b = A::broadcast(p + r * kChunk + s * kSub + t);
        RS_UNROLL
        for (int v = 0; v < V; ++v) acc[r][v] = A::dot(acc[r][v], b, w[v]);
      }
    }
  }
  RS_UNROLL
  for (int r = 0; r < R; ++r) RS_UNROLL
  for (int v = 0; v < V; ++v) store(partial + r * d + v * kLanes, acc[r][v]);
}

template <class A, int R>
RS_INLINE void score_rows(int rows, const typename A::Operand* q, const typename A::Cached* const* k, int subs,
                          int64_t d, float* scores) {
  if constexpr (R > 1) {
    if (rows < R) return score_rows<A, R - 1>(rows, q, k, subs, d, scores);
  }
  int s = 0;
  for (; s + kWide <= subs; s += kWide) score_block<A, R, kWide>(q, k + s, k + s + kWide, d, scores + s * kSub);
  for (; s < subs; ++s) score_block<A, R, 1>(q, k + s, k + s + 1, d, scores + s * kSub);
}

template <class A, int R>
RS_INLINE void weigh_rows(int rows, const typename A::Operand* p, const typename A::Cached* const* v, int subs,
                          int64_t d, float* partial) {
  if constexpr (R > 1) {
    if (rows < R) return weigh_rows<A, R - 1>(rows, p, v, subs, d, partial);
  }
  int64_t dim = 0;
  for (; dim + kWide * kLanes <= d; dim += kWide * kLanes) weigh_block<A, R, kWide>(p, v, subs, dim, d, partial + dim);
  for (; dim < d; dim += kLanes) weigh_block<A, R, 1>(p, v, subs, dim, d, partial + dim);
}

}  // namespace RS_NAMESPACE
}  // namespace radixserve
