// Rounding for the int8 cache.
//
// K and V are rounded head by head: x = s q with s = max |x| / 127, kept as bf16. s is rounded up before it is used, so
// q never leaves [-127, 127] and the error is at most half of the s that is kept. A head that is not finite gets a NaN
// for scale, whatever is in its q: every score or sum that it enters becomes NaN, and no other.
//
// What meets them in attention, the query and the weights of V, is rounded to int16 (one scale for each row, and for
// V's weights each chunk), with far less error than int8 makes. The products are then exact sums of integers: 256 of
// them, of 32,767 and 127 at most, stay below 2^31.
#pragma once
#include "attention_plan.h"
#include "rows.hpp"

namespace radixserve {
namespace RS_NAMESPACE {

// The smallest number that keeps its accuracy under division; what would need a smaller scale is rounded to zero.
constexpr float kSmallestScale = 1.17549435e-38f;  // 2^-126
constexpr float kWordMost = 32767.0f;

// The next bf16 at or above x, for x >= 0 far from the largest number; NaN stays NaN.
RS_INLINE bf16 round_up(float x) { return x == x ? bf16{uint16_t((float_to_bits(x) + 0xffff) >> 16)} : bf16{0x7fc0}; }

// The scales of 16 tokens behind the integers of a head's sub-block.
RS_INLINE const bf16* kv_scales(const int8_t* head, int64_t d) {
  return reinterpret_cast<const bf16*>(head + d * kSub);
}
RS_INLINE bf16* kv_scales(int8_t* head, int64_t d) { return reinterpret_cast<bf16*>(head + d * kSub); }

// Largest |x|, NaN where a number is not finite.
template <class T>
RS_INLINE float magnitude(const T* x, int64_t d) {
  F largest = zero(), poison = zero();
  for (int64_t i = 0; i < d; i += kLanes) {
    F values = load(x + i);
    largest = max(abs(values), largest);
    poison = add(poison, mul(values, zero()));
  }
  return max_lanes(largest) + sum_lanes(poison);
}

// Rounds x[d] to q[d] and returns the scale.
RS_INLINE bf16 quantize_head(const float* x, int64_t d, int8_t* q) {
  bf16 scale = round_up(magnitude(x, d) / 127.0f);
  F divisor = set1(to_float(scale) >= kSmallestScale ? to_float(scale) : 1.0f);
  // The order of the operands takes a NaN to a number: converting it would be undefined.
  for (int64_t i = 0; i < d; i += kLanes)
    store_bytes(q + i, min(max(div(load(x + i), divisor), set1(-127.0f)), set1(127.0f)));
  return scale;
}

// What takes |x| <= magnitude to int16; 0 where there is nothing to take.
RS_INLINE F to_words(float magnitude) { return set1(magnitude > 1e-30f ? kWordMost / magnitude : 0.0f); }

// Rounds x[d] to q[d] and returns the scale.
template <class T>
RS_INLINE float quantize_query(const T* x, int64_t d, int16_t* q) {
  float largest = magnitude(x, d);
  F factor = to_words(largest);
  for (int64_t i = 0; i < d; i += kLanes) store_words(q + i, mul(load(x + i), factor));
  return largest / kWordMost;
}

// The integers of a head's sub-block as int16.
RS_INLINE void widen(const int8_t* head, int64_t d, int16_t* wide) {
  for (int64_t i = 0; i < d * kSub; i += 2 * kLanes) store(wide + i, load_byte_pairs(head + i));
}

}  // namespace RS_NAMESPACE
}  // namespace radixserve
