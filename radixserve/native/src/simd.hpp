// Sixteen lanes of fp32, whatever the instruction set: the vocabulary in which every kernel is written once.
//
// This header is compiled three times into three namespaces, so that no function built with one instruction set can be
// linked into another's path. Kernels use nothing of the standard library for the same reason.
//
//   F            16 fp32 lanes                         W      16 lanes of two bf16, two int16, four bytes or one int32
//   dot2         acc + a.lo * b.lo + a.hi * b.hi       dot4   acc + four u8 * s8 products, exact in int32
//   load, store  fp32 or bf16 (rounded to nearest even, NaN stays NaN), 16 or the first n lanes
//   dot2_words   acc + two int16 * int16 products, exact in int32
//   words_of     two int16 of the low halves of two int32
//   load_half, load_u8, load_s8   16 numbers of that type; load_byte_pairs widens 16 x 2 int8 to int16
//   store_bytes, store_words   round |x| <= 127 to int8, x to int16 (the nearest it has), ties to even; NaN gives any
//   keep_lanes   a where lo <= lane < hi, else fill    zero_where_below   0 where x < bound, else a (also for NaN)
//   max, min     the second operand where one is NaN   scale_by_power     2^n a for whole n within the normal numbers
//   low_nibbles, high_nibbles   of each byte           two_bits_high<i>   bits 2i, 2i + 1 of each byte, as bits 4 and 5
//   round_up     to whole numbers                      up_to_bits<n>      x >= 0 to n significant bits, upwards
//   largest_of_each   lane i = the largest lane of vector i of 16   sums_of_each   lane i = the sum of bytes 16i to
//   16i + 15 (s8)     transpose   16 vectors as rows of a matrix; moves bits as they are
//
// Within one instruction set every function gives the same bits wherever it is used; between them the last bits may
// differ (v4's dot2 rounds twice and flushes denormals, generic has no fused multiply-add). Compiled with
// -ffp-contract=off: only what says `fma` is fused.
#pragma once
#include <stddef.h>
#include <stdint.h>

#if defined(RS_ISA_V4)
#include <immintrin.h>
#define RS_NAMESPACE isa_v4
#elif defined(RS_ISA_V3)
#include <immintrin.h>
#define RS_NAMESPACE isa_v3
#else
#define RS_NAMESPACE isa_generic
#endif

#define RS_INLINE static inline __attribute__((always_inline))
#define RS_UNROLL _Pragma("GCC unroll 32")

namespace radixserve {
namespace RS_NAMESPACE {

struct bf16 {
  uint16_t bits;
};

constexpr int kLanes = 16;

RS_INLINE float bits_to_float(uint32_t u) {
  float f;
  __builtin_memcpy(&f, &u, 4);
  return f;
}
RS_INLINE uint32_t float_to_bits(float f) {
  uint32_t u;
  __builtin_memcpy(&u, &f, 4);
  return u;
}
RS_INLINE float to_float(bf16 x) { return bits_to_float(uint32_t(x.bits) << 16); }
RS_INLINE float to_float(float x) { return x; }
RS_INLINE float half_to_float(uint16_t h) {
  uint32_t sign = uint32_t(h & 0x8000) << 16, exponent = (h >> 10) & 31, mantissa = h & 1023;
  if (exponent == 31) return bits_to_float(sign | 0x7f800000 | mantissa << 13);
  if (exponent) return bits_to_float(sign | (exponent + 112) << 23 | mantissa << 13);
  float f = float(mantissa) * bits_to_float(0x33800000);  // 2^-24
  return sign ? -f : f;
}
template <class T>
RS_INLINE T least(T a, T b) {
  return a < b ? a : b;
}
template <class T>
RS_INLINE T most(T a, T b) {
  return a > b ? a : b;
}
// Asks for a cache line that will be needed soon.
RS_INLINE void prefetch(const void* p) { __builtin_prefetch(p, 0, 2); }
RS_INLINE int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace RS_NAMESPACE
}  // namespace radixserve

#if defined(RS_ISA_V4)
#include "simd_v4.hpp"
#elif defined(RS_ISA_V3)
#include "simd_v3.hpp"
#else
#include "simd_generic.hpp"
#endif

namespace radixserve {
namespace RS_NAMESPACE {

// Sums in a fixed tree: lanes 8 apart, then 4, 2, 1.
#if defined(RS_ISA_V4) || defined(RS_ISA_V3)
RS_INLINE float sum_lanes(F x) {
  __m256 eight = _mm256_add_ps(lower_half(x), upper_half(x));
  __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}
RS_INLINE float max_lanes(F x) {
  __m256 eight = _mm256_max_ps(lower_half(x), upper_half(x));
  __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}
#endif

#if !defined(RS_ISA_V4)
RS_INLINE F largest_of_each(const F* x) {
  float each[kLanes];
  for (int i = 0; i < kLanes; ++i) each[i] = max_lanes(x[i]);
  return load(each);
}
RS_INLINE void transpose(F* x) {
  float square[kLanes][kLanes], column[kLanes];
  for (int i = 0; i < kLanes; ++i) store(square[i], x[i]);
  for (int i = 0; i < kLanes; ++i) {
    for (int j = 0; j < kLanes; ++j) column[j] = square[j][i];
    x[i] = load(column);
  }
}
RS_INLINE W sums_of_each(const int8_t* p) {
  const uint32_t ones = 0x01010101;
  int32_t fours[4 * kLanes], each[kLanes];
  for (int i = 0; i < 4; ++i)
    store(fours + kLanes * i, dot4(no_words(), broadcast_word(&ones), load_words(p + 4 * kLanes * i)));
  for (int i = 0; i < kLanes; ++i) each[i] = fours[4 * i] + fours[4 * i + 1] + fours[4 * i + 2] + fours[4 * i + 3];
  return load_words(each);
}
#endif

// 2^r for |r| <= 1/2: e^(r ln 2) by its Taylor polynomial of degree 6 (relative error below 2^-23).
RS_INLINE F exp2_fraction(F r) {
  F p = set1(1.5403530e-4f);
  p = fma(p, r, set1(1.3333558e-3f));
  p = fma(p, r, set1(9.6181291e-3f));
  p = fma(p, r, set1(5.5504109e-2f));
  p = fma(p, r, set1(2.4022651e-1f));
  p = fma(p, r, set1(6.9314718e-1f));
  return fma(p, r, set1(1.0f));
}
// 2^x for x <= 127. Below -126, where the result would not be a normal number, and for -inf it is exactly 0; NaN stays
// NaN.
RS_INLINE F exp2(F x) {
  F bound = set1(-126.0f), y = max(bound, x);  // the order of the operands lets a NaN in x through
  F n = round_nearest(y);
  return zero_where_below(scale_by_power(exp2_fraction(sub(y, n)), n), x, bound);
}
RS_INLINE float exp2_scalar(float x) {
  float v[16];
  store(v, exp2(set1(x)));
  return v[0];
}
constexpr float kLog2E = 1.44269504088896341f;
// e^x for x <= 88. x = n ln 2 + r with n taken away in two parts, so that a large |x| costs no accuracy.
RS_INLINE F exp(F x) {
  F bound = set1(-87.3f), y = max(bound, x);
  F n = round_nearest(mul(y, set1(kLog2E)));
  F r = fma(n, set1(2.12194440e-4f), fma(n, set1(-0.693359375f), y));
  return zero_where_below(scale_by_power(exp2_fraction(mul(r, set1(kLog2E))), n), x, bound);
}
// tanh x = 1 - 2 / (e^2x + 1)
RS_INLINE F tanh(F x) {
  F e = exp(min(max(mul(set1(2.0f), x), set1(-80.0f)), set1(80.0f)));
  return sub(set1(1.0f), div(set1(2.0f), add(e, set1(1.0f))));
}

}  // namespace RS_NAMESPACE
}  // namespace radixserve
