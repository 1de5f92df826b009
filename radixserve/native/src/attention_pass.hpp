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

// The memory of one pass; `rows` of everything.
template <class E>
struct PassMemory {
  float* scores;     // [rows][256]
  float* partial;    // [rows][head_dim]
  float* state;      // [rows][head_dim], merged partials of a tile
  E* probabilities;  // [rows][256]
  E* q;              // [rows][head_dim]
  E* tail;           // [16][head_dim], a V sub-block without what was not written
  float *maximum, *sum, *state_maximum, *state_sum;
  int32_t *low, *high;  // tokens of the chunk that a row sees

  static size_t bytes(int64_t rows, int64_t d) {
    return size_t(rows) * size_t(kChunk * (4 + sizeof(E)) + d * (8 + sizeof(E)) + 6 * 4) + size_t(16 * d) * sizeof(E) +
           1024;
  }

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
    probabilities = (E*)take(size_t(rows * kChunk) * sizeof(E));
    q = (E*)take(size_t(rows * d) * sizeof(E));
    tail = (E*)take(size_t(16 * d) * sizeof(E));
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
__attribute__((noinline)) void score_block(const typename A::Element* q, const typename A::Element* const* k,
                                           const typename A::Element* const* next, int64_t d, float* scores) {
  F acc[R][V];
  RS_UNROLL
  for (int r = 0; r < R; ++r) RS_UNROLL
  for (int v = 0; v < V; ++v) acc[r][v] = zero();
  for (int64_t i = 0; i < d; i += A::kStep) {
    typename A::Vector w[V];
    RS_UNROLL
    for (int v = 0; v < V; ++v) {
      w[v] = A::load_weights(k[v] + i * kSub);
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

// partial[r][16 v + lane] += p v for R rows and V vectors of dims, over the sub-blocks of a run.
template <class A, int R, int V>
__attribute__((noinline)) void weigh_block(const typename A::Element* p, const typename A::Element* const* v_subs,
                                           int subs, int64_t dim, int64_t d, float* partial) {
  F acc[R][V];
  RS_UNROLL
  for (int r = 0; r < R; ++r) RS_UNROLL
  for (int v = 0; v < V; ++v) acc[r][v] = load(partial + r * d + v * kLanes);
  for (int s = 0; s < subs; ++s) {
    const typename A::Element* values = v_subs[s] + dim * A::kStep;
    const typename A::Element* next = v_subs[least(s + kAhead, subs - 1)] + dim * A::kStep;
    for (int t = 0; t < kSub; t += A::kStep) {
      typename A::Vector w[V];
      RS_UNROLL
      for (int v = 0; v < V; ++v) {
        w[v] = A::load_weights(values + t * d + v * kLanes * A::kStep);
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
RS_INLINE void score_rows(int rows, const typename A::Element* q, const typename A::Element* const* k, int subs,
                          int64_t d, float* scores) {
  if constexpr (R > 1) {
    if (rows < R) return score_rows<A, R - 1>(rows, q, k, subs, d, scores);
  }
  int s = 0;
  for (; s + kWide <= subs; s += kWide) score_block<A, R, kWide>(q, k + s, k + s + kWide, d, scores + s * kSub);
  for (; s < subs; ++s) score_block<A, R, 1>(q, k + s, k + s + 1, d, scores + s * kSub);
}

template <class A, int R>
RS_INLINE void weigh_rows(int rows, const typename A::Element* p, const typename A::Element* const* v, int subs,
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
