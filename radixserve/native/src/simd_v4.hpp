// simd.hpp for AVX-512 with BF16 and VNNI: one register is sixteen lanes. What each function does is said in simd.hpp.
#pragma once

namespace radixserve {
namespace RS_NAMESPACE {

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
RS_INLINE F load_u8(const uint8_t* p) {
  return {_mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i*)p)))};
}
RS_INLINE F load_s8(const int8_t* p) {
  return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)p)))};
}
RS_INLINE void store(float* p, F x) { _mm512_storeu_ps(p, x.v); }
RS_INLINE void store(bf16* p, F x) { _mm256_storeu_si256((__m256i*)p, (__m256i)_mm512_cvtneps_pbh(x.v)); }
RS_INLINE void store(float* p, F x, int n) { _mm512_mask_storeu_ps(p, __mmask16((1u << n) - 1), x.v); }
RS_INLINE void store(bf16* p, F x, int n) {
  _mm256_mask_storeu_epi16(p, __mmask16((1u << n) - 1), (__m256i)_mm512_cvtneps_pbh(x.v));
}
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
RS_INLINE F keep_lanes(F a, int lo, int hi, F fill) {
  uint32_t below_hi = hi >= 16 ? 0xffffu : hi <= 0 ? 0u : (1u << hi) - 1;
  uint32_t below_lo = lo <= 0 ? 0u : lo >= 16 ? 0xffffu : (1u << lo) - 1;
  return {_mm512_mask_mov_ps(fill.v, __mmask16(below_hi & ~below_lo), a.v)};
}
RS_INLINE F scale_by_power(F a, F n) { return {_mm512_scalef_ps(a.v, n.v)}; }
RS_INLINE F zero_where_below(F a, F x, F bound) {
  return {_mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x.v, bound.v, _CMP_NLT_UQ), a.v)};
}

RS_INLINE W load_words(const void* p) { return {_mm512_loadu_si512(p)}; }
RS_INLINE W no_words() { return {_mm512_setzero_si512()}; }
RS_INLINE W broadcast_word(const void* p) {
  int32_t x;
  __builtin_memcpy(&x, p, 4);
  return {_mm512_set1_epi32(x)};
}
RS_INLINE F dot2(F acc, W a, W b) { return {_mm512_dpbf16_ps(acc.v, (__m512bh)a.v, (__m512bh)b.v)}; }
RS_INLINE W dot4(W acc, W unsigned_bytes, W signed_bytes) {
  return {_mm512_dpbusd_epi32(acc.v, unsigned_bytes.v, signed_bytes.v)};
}
RS_INLINE W dot2_words(W acc, W a, W b) { return {_mm512_dpwssd_epi32(acc.v, a.v, b.v)}; }
RS_INLINE W words_of(W low, W high) {
  return {_mm512_mask_blend_epi16(0xaaaaaaaa, low.v, _mm512_slli_epi32(high.v, 16))};
}
RS_INLINE W load_byte_pairs(const int8_t* p) { return {_mm512_cvtepi8_epi16(_mm256_loadu_si256((const __m256i*)p))}; }
RS_INLINE W zero_words() { return {_mm512_setzero_si512()}; }
RS_INLINE void store(void* p, W x) { _mm512_storeu_si512(p, x.v); }
RS_INLINE F to_floats(W ints) { return {_mm512_cvtepi32_ps(ints.v)}; }
RS_INLINE W low_nibbles(W x) { return {_mm512_and_si512(x.v, _mm512_set1_epi8(15))}; }
RS_INLINE W high_nibbles(W x) { return {_mm512_and_si512(_mm512_srli_epi16(x.v, 4), _mm512_set1_epi8(15))}; }
template <int Part>
RS_INLINE W two_bits_high(W x) {
  __m512i moved = Part < 2 ? _mm512_slli_epi16(x.v, 4 - 2 * Part) : _mm512_srli_epi16(x.v, 2 * Part - 4);
  return {_mm512_and_si512(moved, _mm512_set1_epi8(0x30))};
}
RS_INLINE W either(W a, W b) { return {_mm512_or_si512(a.v, b.v)}; }
RS_INLINE void store_bytes(int8_t* p, F x) {
  _mm_storeu_si128((__m128i*)p, _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(x.v)));
}
RS_INLINE void store_words(int16_t* p, F x) {
  _mm256_storeu_si256((__m256i*)p, _mm512_cvtsepi32_epi16(_mm512_cvtps_epi32(x.v)));
}

RS_INLINE __m256 lower_half(F x) { return _mm512_castps512_ps256(x.v); }
RS_INLINE __m256 upper_half(F x) { return _mm512_extractf32x8_ps(x.v, 1); }

}  // namespace RS_NAMESPACE
}  // namespace radixserve
