// What attention does with the scores and the partial results of single rows (attention.hpp says what a pass is): the
// softmax of a row over a chunk, with the running maximum and sum of Milakov & Gimelshein 2018.
#pragma once
#include "attention_pass.hpp"

namespace radixserve {
namespace RS_NAMESPACE {

// Turns a row's scores of sub-blocks [begin, end) into probabilities, in powers of two: p = 2^(c s - m) with c =
// scale log2 e; for an int8 cache, into weights of its integers. Only the vectors at the ends of what the row sees are
// masked: for the others the mask would change nothing.
template <class A>
void softmax_row(const RsAttention& op, PassMemory<A>& memory, int64_t row, int32_t begin, int32_t end) {
  float* scores = memory.scores + row * kChunk;
  typename A::Operand* probabilities = memory.probabilities + row * kChunk;
  int32_t low = memory.low[row], high = memory.high[row], from = begin * kSub, to = end * kSub;
  float unit = op.scale;
  if constexpr (A::kScaled) {
    unit *= memory.q_scale[row];
    for (int32_t t = from; t < to; t += kLanes)
      store(scores + t, mul(to_floats(load_words(scores + t)), load(memory.k_scales + t)));
  }
  if (op.softcap > 0) {
    F cap = set1(op.softcap), to_cap = set1(unit / op.softcap);
    for (int32_t t = from; t < to; t += kLanes) store(scores + t, mul(cap, tanh(mul(load(scores + t), to_cap))));
  }
  float c = op.softcap > 0 ? kLog2E : unit * kLog2E;
  F largest = set1(kNegativeInfinity), largest_v = zero();
  for (int32_t t = from; t < to; t += kLanes) {
    F s = load(scores + t);
    bool cut = t < low || t + kLanes > high;
    if (cut) s = keep_lanes(s, low - t, high - t, set1(kNegativeInfinity));
    largest = max(largest, s);
    if constexpr (A::kScaled) {
      F v = load(memory.v_scales + t);
      largest_v = max(largest_v, cut ? keep_lanes(v, low - t, high - t, zero()) : v);
    }
  }
  bool blind = most(low, from) >= least(high, to);  // sees nothing of this chunk
  float maximum = blind ? 0.0f : max_lanes(largest) * c;
  // p is at most 1, but for the rounding of m, so that no weight p s_v is above the largest s_v.
  float most_weight = max_lanes(largest_v);
  F sum = zero(), factor = set1(c), shift = set1(-maximum), to_integers = to_words(most_weight);
  memory.p_scale[row] = most_weight / kWordMost;
  for (int32_t t = from; t < to; t += kLanes) {
    F p = exp2(fma(load(scores + t), factor, shift));
    bool cut = t < low || t + kLanes > high;
    if (cut) p = keep_lanes(p, low - t, high - t, zero());
    sum = add(sum, p);
    if constexpr (A::kScaled) {
      F weight = mul(mul(p, load(memory.v_scales + t)), to_integers);
      store_words(probabilities + t, cut ? keep_lanes(weight, low - t, high - t, zero()) : weight);
    } else {
      store(probabilities + t, p);
    }
  }
  memory.maximum[row] = maximum;
  memory.sum[row] = blind ? 0.0f : sum_lanes(sum);
}

// Makes numbers of the sums of integers of an int8 cache.
template <class A>
void scale_partials(PassMemory<A>& memory, int64_t rows, int64_t d) {
  if constexpr (A::kScaled)
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t i = 0; i < d; i += kLanes) {
        float* place = memory.partial + r * d + i;
        store(place, mul(to_floats(load_words(place)), set1(memory.p_scale[r])));
      }
}

// Adds a partial to a state. Sum 0 means nothing was seen (a visible maximum gives about 1).
RS_INLINE void merge(float* state, float* state_maximum, float* state_sum, const float* partial, float maximum,
                     float sum, int64_t d) {
  if (sum == 0) return;
  if (*state_sum == 0) {
    for (int64_t i = 0; i < d; i += kLanes) store(state + i, load(partial + i));
    *state_maximum = maximum;
    *state_sum = sum;
    return;
  }
  float both = most(*state_maximum, maximum);
  float old_factor = exp2_scalar(*state_maximum - both), new_factor = exp2_scalar(maximum - both);
  F a = set1(old_factor), b = set1(new_factor);
  for (int64_t i = 0; i < d; i += kLanes) store(state + i, fma(load(state + i), a, mul(load(partial + i), b)));
  *state_maximum = both;
  *state_sum = *state_sum * old_factor + sum * new_factor;
}

}  // namespace RS_NAMESPACE
}  // namespace radixserve
