// Sixteen lanes of fp32, whatever the instruction set: the vocabulary in which every kernel is written once.
//
// This header is compiled three times into three namespaces, so that no function built with one instruction set can be linked into
// another's path. Kernels use nothing of the standard library for the same reason.
//
//   F        16 fp32 lanes                     W   16 lanes of two bf16 (or, as int8, of four bytes)
//   dot2     acc + a.lo * b.lo + a.hi * b.hi   dot4   acc + four u8 * s8 products, exact in int32
//
// Within one instruction set every function gives the same bits wherever it is used; between them the last bits may differ (v4's
// dot2 rounds twice and flushes denormals, generic has no fused multiply-add). Compiled with -ffp-contract=off: only what says
// `fma` is fused.
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

#if defined(RS_ISA_V4)

struct F {
  __m512 v;
};
struct W {
  __m512i v;
};

constexpr int kDenseRows = 12;  // rows of x that one pass of a dense linear keeps in registers: 12 x 2 accumulators
constexpr int kQuantRows = 12;
constexpr int kAttentionRows = 6;

RS_INLINE F zero() { return {_mm512_setzero_ps()}; }
RS_INLINE F set1(float x) { return {_mm512_set1_ps(x)}; }
RS_INLINE F load(const float* p) { return {_mm512_loadu_ps(p)}; }
RS_INLINE F load(const bf16* p) {
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)p)), 16))};
}
RS_INLINE F load_half(const uint16_t* p) { return {_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)p))}; }
RS_INLINE F load_u8(const uint8_t* p) { return {_mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i*)p)))}; }
RS_INLINE F load_s8(const int8_t* p) { return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)p)))}; }
RS_INLINE void store(float* p, F x) { _mm512_storeu_ps(p, x.v); }
RS_INLINE void store(bf16* p, F x) { _mm256_storeu_si256((__m256i*)p, (__m256i)_mm512_cvtneps_pbh(x.v)); }
RS_INLINE void store(float* p, F x, int n) { _mm512_mask_storeu_ps(p, __mmask16((1u << n) - 1), x.v); }
RS_INLINE void store(bf16* p, F x, int n) { _mm256_mask_storeu_epi16(p, __mmask16((1u << n) - 1), (__m256i)_mm512_cvtneps_pbh(x.v)); }
RS_INLINE F load(const float* p, int n) { return {_mm512_maskz_loadu_ps(__mmask16((1u << n) - 1), p)}; }
RS_INLINE F add(F a, F b) { return {_mm512_add_ps(a.v, b.v)}; }
RS_INLINE F sub(F a, F b) { return {_mm512_sub_ps(a.v, b.v)}; }
RS_INLINE F mul(F a, F b) { return {_mm512_mul_ps(a.v, b.v)}; }
RS_INLINE F div(F a, F b) { return {_mm512_div_ps(a.v, b.v)}; }
RS_INLINE F fma(F a, F b, F c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
RS_INLINE F max(F a, F b) { return {_mm512_max_ps(a.v, b.v)}; }
RS_INLINE F min(F a, F b) { return {_mm512_min_ps(a.v, b.v)}; }
RS_INLINE F abs(F a) { return {_mm512_abs_ps(a.v)}; }
RS_INLINE F round_nearest(F a) { return {_mm512_roundscale_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)}; }
// a where lo <= lane < hi, else fill
RS_INLINE F keep_lanes(F a, int lo, int hi, F fill) {
  uint32_t below_hi = hi >= 16 ? 0xffffu : hi <= 0 ? 0u : (1u << hi) - 1;
  uint32_t below_lo = lo <= 0 ? 0u : lo >= 16 ? 0xffffu : (1u << lo) - 1;
  return {_mm512_mask_mov_ps(fill.v, __mmask16(below_hi & ~below_lo), a.v)};
}
// 2^n * a for whole n; zero below the smallest normal number
RS_INLINE F scale_by_power(F a, F n) { return {_mm512_scalef_ps(a.v, n.v)}; }
RS_INLINE F zero_where_below(F a, F x, F bound) { return {_mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x.v, bound.v, _CMP_NLT_UQ), a.v)}; }

RS_INLINE W load_words(const void* p) { return {_mm512_loadu_si512(p)}; }
RS_INLINE W broadcast_word(const void* p) {
  int32_t x;
  __builtin_memcpy(&x, p, 4);
  return {_mm512_set1_epi32(x)};
}
RS_INLINE F dot2(F acc, W a, W b) { return {_mm512_dpbf16_ps(acc.v, (__m512bh)a.v, (__m512bh)b.v)}; }
RS_INLINE W dot4(W acc, W unsigned_bytes, W signed_bytes) { return {_mm512_dpbusd_epi32(acc.v, unsigned_bytes.v, signed_bytes.v)}; }
RS_INLINE F to_floats(W ints) { return {_mm512_cvtepi32_ps(ints.v)}; }
RS_INLINE W low_nibbles(W x) { return {_mm512_and_si512(x.v, _mm512_set1_epi8(15))}; }
RS_INLINE W high_nibbles(W x) { return {_mm512_and_si512(_mm512_srli_epi16(x.v, 4), _mm512_set1_epi8(15))}; }
// bits [2 part, 2 part + 2) of each byte, moved to bits 4 and 5
template <int Part>
RS_INLINE W two_bits_high(W x) {
  __m512i moved = Part < 2 ? _mm512_slli_epi16(x.v, 4 - 2 * Part) : _mm512_srli_epi16(x.v, 2 * Part - 4);
  return {_mm512_and_si512(moved, _mm512_set1_epi8(0x30))};
}
RS_INLINE W either(W a, W b) { return {_mm512_or_si512(a.v, b.v)}; }
// Rounded to the nearest whole number, ties to even; |x| <= 127.
RS_INLINE void store_bytes(int8_t* p, F x) { _mm_storeu_si128((__m128i*)p, _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(x.v))); }

#elif defined(RS_ISA_V3)

struct F {
  __m256 lo, hi;
};
struct W {
  __m256i lo, hi;
};

constexpr int kDenseRows = 3;
constexpr int kQuantRows = 4;
constexpr int kAttentionRows = 3;

RS_INLINE F zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
RS_INLINE F set1(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
RS_INLINE F load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
RS_INLINE __m256 widen(__m128i halves) { return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16)); }
RS_INLINE F load(const bf16* p) { return {widen(_mm_loadu_si128((const __m128i*)p)), widen(_mm_loadu_si128((const __m128i*)(p + 8)))}; }
RS_INLINE F load_half(const uint16_t* p) {
  return {_mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)p)), _mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)(p + 8)))};
}
RS_INLINE F load_u8(const uint8_t* p) {
  __m128i x = _mm_loadu_si128((const __m128i*)p);
  return {_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(x)), _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_srli_si128(x, 8)))};
}
RS_INLINE F load_s8(const int8_t* p) {
  __m128i x = _mm_loadu_si128((const __m128i*)p);
  return {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(x)), _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(x, 8)))};
}
RS_INLINE void store(float* p, F x) {
  _mm256_storeu_ps(p, x.lo);
  _mm256_storeu_ps(p + 8, x.hi);
}
// Round to nearest even; a NaN stays one.
RS_INLINE __m256i round_bf16(__m256 x) {
  __m256i u = _mm256_castps_si256(x);
  __m256i odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
  __m256i rounded = _mm256_srli_epi32(_mm256_add_epi32(u, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff))), 16);
  __m256i quiet = _mm256_or_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(0x40));
  return _mm256_blendv_epi8(rounded, quiet, _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q)));
}
RS_INLINE void store(bf16* p, F x) {
  __m256i both = _mm256_packus_epi32(round_bf16(x.lo), round_bf16(x.hi));
  _mm256_storeu_si256((__m256i*)p, _mm256_permute4x64_epi64(both, 0xd8));
}
RS_INLINE void store(float* p, F x, int n) {
  float whole[16];
  store(whole, x);
  __builtin_memcpy(p, whole, size_t(n) * 4);
}
RS_INLINE void store(bf16* p, F x, int n) {
  bf16 whole[16];
  store(whole, x);
  __builtin_memcpy(p, whole, size_t(n) * 2);
}
RS_INLINE F load(const float* p, int n) {
  float whole[16] = {};
  __builtin_memcpy(whole, p, size_t(n) * 4);
  return load(whole);
}
RS_INLINE F add(F a, F b) { return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)}; }
RS_INLINE F sub(F a, F b) { return {_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)}; }
RS_INLINE F mul(F a, F b) { return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)}; }
RS_INLINE F div(F a, F b) { return {_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)}; }
RS_INLINE F fma(F a, F b, F c) { return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)}; }
RS_INLINE F max(F a, F b) { return {_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)}; }
RS_INLINE F min(F a, F b) { return {_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)}; }
RS_INLINE F abs(F a) {
  __m256 sign = _mm256_set1_ps(-0.0f);
  return {_mm256_andnot_ps(sign, a.lo), _mm256_andnot_ps(sign, a.hi)};
}
RS_INLINE F round_nearest(F a) {
  return {_mm256_round_ps(a.lo, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC), _mm256_round_ps(a.hi, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}
RS_INLINE __m256 in_range(__m256i lane, int lo, int hi) {
  return _mm256_castsi256_ps(_mm256_and_si256(_mm256_cmpgt_epi32(_mm256_set1_epi32(hi), lane), _mm256_cmpgt_epi32(lane, _mm256_set1_epi32(lo - 1))));
}
RS_INLINE F keep_lanes(F a, int lo, int hi, F fill) {
  __m256i first = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), second = _mm256_add_epi32(first, _mm256_set1_epi32(8));
  return {_mm256_blendv_ps(fill.lo, a.lo, in_range(first, lo, hi)), _mm256_blendv_ps(fill.hi, a.hi, in_range(second, lo, hi))};
}
RS_INLINE __m256 power_of_two(__m256 n) { return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23)); }
RS_INLINE F scale_by_power(F a, F n) { return {_mm256_mul_ps(a.lo, power_of_two(n.lo)), _mm256_mul_ps(a.hi, power_of_two(n.hi))}; }
RS_INLINE F zero_where_below(F a, F x, F bound) {
  return {_mm256_and_ps(a.lo, _mm256_cmp_ps(x.lo, bound.lo, _CMP_NLT_UQ)), _mm256_and_ps(a.hi, _mm256_cmp_ps(x.hi, bound.hi, _CMP_NLT_UQ))};
}

RS_INLINE W load_words(const void* p) { return {_mm256_loadu_si256((const __m256i*)p), _mm256_loadu_si256((const __m256i*)p + 1)}; }
RS_INLINE W broadcast_word(const void* p) {
  int32_t x;
  __builtin_memcpy(&x, p, 4);
  return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)};
}
RS_INLINE __m256 low_half(__m256i x) { return _mm256_castsi256_ps(_mm256_slli_epi32(x, 16)); }
RS_INLINE __m256 high_half(__m256i x) { return _mm256_castsi256_ps(_mm256_and_si256(x, _mm256_set1_epi32(int(0xffff0000)))); }
RS_INLINE __m256 dot2_half(__m256 acc, __m256i a, __m256i b) {
  return _mm256_fmadd_ps(high_half(a), high_half(b), _mm256_fmadd_ps(low_half(a), low_half(b), acc));
}
RS_INLINE F dot2(F acc, W a, W b) { return {dot2_half(acc.lo, a.lo, b.lo), dot2_half(acc.hi, a.hi, b.hi)}; }
// maddubs would saturate at int16; widening even and odd bytes first keeps the sum exact.
RS_INLINE __m256i dot4_half(__m256i acc, __m256i u, __m256i s) {
  __m256i even = _mm256_madd_epi16(_mm256_and_si256(u, _mm256_set1_epi16(255)), _mm256_srai_epi16(_mm256_slli_epi16(s, 8), 8));
  __m256i odd = _mm256_madd_epi16(_mm256_srli_epi16(u, 8), _mm256_srai_epi16(s, 8));
  return _mm256_add_epi32(acc, _mm256_add_epi32(even, odd));
}
RS_INLINE W dot4(W acc, W u, W s) { return {dot4_half(acc.lo, u.lo, s.lo), dot4_half(acc.hi, u.hi, s.hi)}; }
RS_INLINE F to_floats(W x) { return {_mm256_cvtepi32_ps(x.lo), _mm256_cvtepi32_ps(x.hi)}; }
RS_INLINE W low_nibbles(W x) {
  __m256i mask = _mm256_set1_epi8(15);
  return {_mm256_and_si256(x.lo, mask), _mm256_and_si256(x.hi, mask)};
}
RS_INLINE W high_nibbles(W x) { return low_nibbles({_mm256_srli_epi16(x.lo, 4), _mm256_srli_epi16(x.hi, 4)}); }
template <int Part>
RS_INLINE __m256i two_bits_half(__m256i x) {
  __m256i moved = Part < 2 ? _mm256_slli_epi16(x, 4 - 2 * Part) : _mm256_srli_epi16(x, 2 * Part - 4);
  return _mm256_and_si256(moved, _mm256_set1_epi8(0x30));
}
template <int Part>
RS_INLINE W two_bits_high(W x) {
  return {two_bits_half<Part>(x.lo), two_bits_half<Part>(x.hi)};
}
RS_INLINE W either(W a, W b) { return {_mm256_or_si256(a.lo, b.lo), _mm256_or_si256(a.hi, b.hi)}; }
RS_INLINE void store_bytes(int8_t* p, F x) {
  __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(_mm256_cvtps_epi32(x.lo), _mm256_cvtps_epi32(x.hi)), 0xd8);
  _mm_storeu_si128((__m128i*)p, _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1)));
}

#else

struct F {
  float v[16];
};
struct W {
  uint32_t v[16];
};

constexpr int kDenseRows = 2;
constexpr int kQuantRows = 2;
constexpr int kAttentionRows = 2;

#define RS_EACH for (int i = 0; i < 16; ++i)

RS_INLINE F set1(float x) {
  F r;
  RS_EACH r.v[i] = x;
  return r;
}
RS_INLINE F zero() { return set1(0.0f); }
RS_INLINE F load(const float* p) {
  F r;
  __builtin_memcpy(r.v, p, 64);
  return r;
}
RS_INLINE F load(const bf16* p) {
  F r;
  RS_EACH r.v[i] = to_float(p[i]);
  return r;
}
RS_INLINE F load_half(const uint16_t* p) {
  F r;
  RS_EACH r.v[i] = half_to_float(p[i]);
  return r;
}
RS_INLINE F load_u8(const uint8_t* p) {
  F r;
  RS_EACH r.v[i] = float(p[i]);
  return r;
}
RS_INLINE F load_s8(const int8_t* p) {
  F r;
  RS_EACH r.v[i] = float(p[i]);
  return r;
}
RS_INLINE bf16 to_bf16(float x) {
  uint32_t u = float_to_bits(x);
  if (x != x) return {uint16_t(u >> 16 | 0x40)};
  return {uint16_t((u + 0x7fff + (u >> 16 & 1)) >> 16)};
}
RS_INLINE void store(float* p, F x, int n) { __builtin_memcpy(p, x.v, size_t(n) * 4); }
RS_INLINE void store(float* p, F x) { store(p, x, 16); }
RS_INLINE void store(bf16* p, F x, int n) {
  for (int i = 0; i < n; ++i) p[i] = to_bf16(x.v[i]);
}
RS_INLINE void store(bf16* p, F x) { store(p, x, 16); }
RS_INLINE F load(const float* p, int n) {
  F r = zero();
  __builtin_memcpy(r.v, p, size_t(n) * 4);
  return r;
}
RS_INLINE F add(F a, F b) {
  RS_EACH a.v[i] += b.v[i];
  return a;
}
RS_INLINE F sub(F a, F b) {
  RS_EACH a.v[i] -= b.v[i];
  return a;
}
RS_INLINE F mul(F a, F b) {
  RS_EACH a.v[i] *= b.v[i];
  return a;
}
RS_INLINE F div(F a, F b) {
  RS_EACH a.v[i] /= b.v[i];
  return a;
}
RS_INLINE F fma(F a, F b, F c) {
  RS_EACH a.v[i] = a.v[i] * b.v[i] + c.v[i];
  return a;
}
RS_INLINE F max(F a, F b) {
  RS_EACH a.v[i] = a.v[i] > b.v[i] ? a.v[i] : b.v[i];
  return a;
}
RS_INLINE F min(F a, F b) {
  RS_EACH a.v[i] = a.v[i] < b.v[i] ? a.v[i] : b.v[i];
  return a;
}
RS_INLINE F abs(F a) {
  RS_EACH a.v[i] = __builtin_fabsf(a.v[i]);
  return a;
}
// Adding and taking away 1.5 * 2^23 rounds to the nearest whole number, ties to even, for |a| < 2^22.
RS_INLINE F round_nearest(F a) {
  RS_EACH a.v[i] = (a.v[i] + 12582912.0f) - 12582912.0f;
  return a;
}
RS_INLINE F keep_lanes(F a, int lo, int hi, F fill) {
  RS_EACH a.v[i] = i >= lo && i < hi ? a.v[i] : fill.v[i];
  return a;
}
RS_INLINE F scale_by_power(F a, F n) {
  RS_EACH a.v[i] *= bits_to_float(uint32_t(int32_t(n.v[i]) + 127) << 23);
  return a;
}
RS_INLINE F zero_where_below(F a, F x, F bound) {
  RS_EACH a.v[i] = x.v[i] < bound.v[i] ? 0.0f : a.v[i];
  return a;
}

RS_INLINE W load_words(const void* p) {
  W r;
  __builtin_memcpy(r.v, p, 64);
  return r;
}
RS_INLINE W broadcast_word(const void* p) {
  uint32_t x;
  __builtin_memcpy(&x, p, 4);
  W r;
  RS_EACH r.v[i] = x;
  return r;
}
RS_INLINE F dot2(F acc, W a, W b) {
  RS_EACH {
    float low = acc.v[i] + bits_to_float(a.v[i] << 16) * bits_to_float(b.v[i] << 16);
    acc.v[i] = low + bits_to_float(a.v[i] & 0xffff0000) * bits_to_float(b.v[i] & 0xffff0000);
  }
  return acc;
}
RS_INLINE W dot4(W acc, W u, W s) {
  RS_EACH {
    int32_t sum = int32_t(acc.v[i]);
    for (int b = 0; b < 4; ++b) sum += int32_t(uint8_t(u.v[i] >> 8 * b)) * int32_t(int8_t(s.v[i] >> 8 * b));
    acc.v[i] = uint32_t(sum);
  }
  return acc;
}
RS_INLINE F to_floats(W x) {
  F r;
  RS_EACH r.v[i] = float(int32_t(x.v[i]));
  return r;
}
RS_INLINE W low_nibbles(W x) {
  RS_EACH x.v[i] &= 0x0f0f0f0f;
  return x;
}
RS_INLINE W high_nibbles(W x) {
  RS_EACH x.v[i] = x.v[i] >> 4 & 0x0f0f0f0f;
  return x;
}
template <int Part>
RS_INLINE W two_bits_high(W x) {
  RS_EACH x.v[i] = (Part < 2 ? x.v[i] << (4 - 2 * (Part & 1)) : x.v[i] >> (2 * (Part & 1))) & 0x30303030;
  return x;
}
RS_INLINE W either(W a, W b) {
  RS_EACH a.v[i] |= b.v[i];
  return a;
}
RS_INLINE void store_bytes(int8_t* p, F x) {
  F whole = round_nearest(x);
  RS_EACH p[i] = int8_t(whole.v[i]);
}

#undef RS_EACH

#endif

// Sums in a fixed tree: lanes 8 apart, then 4, 2, 1.
#if defined(RS_ISA_V4) || defined(RS_ISA_V3)
#if defined(RS_ISA_V4)
RS_INLINE __m256 lower_half(F x) { return _mm512_castps512_ps256(x.v); }
RS_INLINE __m256 upper_half(F x) { return _mm512_extractf32x8_ps(x.v, 1); }
#else
RS_INLINE __m256 lower_half(F x) { return x.lo; }
RS_INLINE __m256 upper_half(F x) { return x.hi; }
#endif
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
#else
RS_INLINE float sum_lanes(F x) {
  for (int width = 8; width; width /= 2)
    for (int i = 0; i < width; ++i) x.v[i] += x.v[i + width];
  return x.v[0];
}
RS_INLINE float max_lanes(F x) {
  for (int width = 8; width; width /= 2)
    for (int i = 0; i < width; ++i) x.v[i] = x.v[i] > x.v[i + width] ? x.v[i] : x.v[i + width];
  return x.v[0];
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
// 2^x for x <= 127. Below -126, where the result would not be a normal number, and for -inf it is exactly 0; NaN stays NaN.
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
