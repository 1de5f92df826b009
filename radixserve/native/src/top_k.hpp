// The k largest logits of each row. k = 1 is greedy decoding.
#pragma once
#include "rows.hpp"

namespace radixserve {
namespace RS_NAMESPACE {

// Whether (value a, id i) comes before (value b, id j): larger first, ties by the lowest id.
RS_INLINE bool comes_before(float a, int32_t i, float b, int32_t j) { return a > b || (a == b && i < j); }

// Whether a row is free of NaN and +inf; -inf is a masked token.
RS_INLINE bool is_sound(const float* x, int64_t n) {
  bool sound = true;
  for (int64_t i = 0; i < n; ++i) sound &= x[i] <= 3.4028234663852886e38f;
  return sound;
}

// Insertion into a sorted list of k: most logits fail the first comparison, with the smallest kept.
RS_INLINE void top_k_row(const float* logits, int64_t vocab, int64_t k, int32_t* ids, float* values) {
  int64_t kept = 0;
  for (int64_t start = 0; start < vocab; start += kLanes) {
    int64_t end = least<int64_t>(vocab, start + kLanes);
    if (kept == k && end - start == kLanes && !(max_lanes(load(logits + start)) > values[k - 1])) continue;
    for (int64_t i = start; i < end; ++i) {
      float value = logits[i];
      if (kept == k && !comes_before(value, int32_t(i), values[k - 1], ids[k - 1])) continue;
      int64_t place = kept < k ? kept++ : k - 1;
      for (; place > 0 && comes_before(value, int32_t(i), values[place - 1], ids[place - 1]); --place) {
        values[place] = values[place - 1];
        ids[place] = ids[place - 1];
      }
      values[place] = value;
      ids[place] = int32_t(i);
    }
  }
}

bool top_k(const RsTopK& op, Rows rows) {
  for_rows(rows.count, op.vocab, [&](int64_t row) {
    const float* logits = op.logits + row * op.stride;
    int32_t* ids = op.ids + row * op.k;
    float* values = op.values + row * op.k;
    if (is_sound(logits, op.vocab)) return top_k_row(logits, op.vocab, op.k, ids, values);
    for (int64_t i = 0; i < op.k; ++i) {
      ids[i] = -1;
      values[i] = bits_to_float(0x7fc00000);
    }
  });
  return true;
}

}  // namespace RS_NAMESPACE
}  // namespace radixserve
