// simd.hpp for AVX2 and FMA: sixteen lanes are two registers. What each function does is said in simd.hpp.
#pragma once

namespace radixserve {
namespace RS_NAMESPACE {

struct F {
  __m256 lo, hi;
};
struct W {
  __m256i lo, hi;
};

constexpr int kDenseRows = 3;
constexpr int kTallRows = 6;
constexpr int kQuantRows = 4;
constexpr int kAttentionRows = 3;

RS_INLINE F zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
RS_INLINE F set1(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
RS_INLINE F load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
RS_INLINE __m256 widen(__m128i halves) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
}
RS_INLINE F load(const bf16* p) {
  return {widen(_mm_loadu_si128((const __m128i*)p)), widen(_mm_loadu_si128((const __m128i*)(p + 8)))};
}
RS_INLINE F load_half(const uint16_t* p) {
  return {_mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)p)),
          _mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)(p + 8)))};
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
  return {_mm256_round_ps(a.lo, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC),
          _mm256_round_ps(a.hi, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}
RS_INLINE F round_up(F a) {
  return {_mm256_round_ps(a.lo, _MM_FROUND_TO_POS_INF | _MM_FROUND_NO_EXC),
          _mm256_round_ps(a.hi, _MM_FROUND_TO_POS_INF | _MM_FROUND_NO_EXC)};
}
template <int kBits>
RS_INLINE __m256 up_to_bits(__m256 a) {
  __m256i rest = _mm256_set1_epi32((1 << (24 - kBits)) - 1);
  return _mm256_castsi256_ps(_mm256_andnot_si256(rest, _mm256_add_epi32(_mm256_castps_si256(a), rest)));
}
template <int kBits>
RS_INLINE F up_to_bits(F a) {
  return {up_to_bits<kBits>(a.lo), up_to_bits<kBits>(a.hi)};
}
RS_INLINE __m256 in_range(__m256i lane, int lo, int hi) {
  return _mm256_castsi256_ps(_mm256_and_si256(_mm256_cmpgt_epi32(_mm256_set1_epi32(hi), lane),
                                              _mm256_cmpgt_epi32(lane, _mm256_set1_epi32(lo - 1))));
}
RS_INLINE F keep_lanes(F a, int lo, int hi, F fill) {
  __m256i first = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), second = _mm256_add_epi32(first, _mm256_set1_epi32(8));
  return {_mm256_blendv_ps(fill.lo, a.lo, in_range(first, lo, hi)),
          _mm256_blendv_ps(fill.hi, a.hi, in_range(second, lo, hi))};
}
RS_INLINE __m256 power_of_two(__m256 n) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23));
}
RS_INLINE F scale_by_power(F a, F n) {
  return {_mm256_mul_ps(a.lo, power_of_two(n.lo)), _mm256_mul_ps(a.hi, power_of_two(n.hi))};
}
RS_INLINE F zero_where_below(F a, F x, F bound) {
  return {_mm256_and_ps(a.lo, _mm256_cmp_ps(x.lo, bound.lo, _CMP_NLT_UQ)),
          _mm256_and_ps(a.hi, _mm256_cmp_ps(x.hi, bound.hi, _CMP_NLT_UQ))};
}

RS_INLINE W load_words(const void* p) {
  return {_mm256_loadu_si256((const __m256i*)p), _mm256_loadu_si256((const __m256i*)p + 1)};
}
RS_INLINE W no_words() { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
RS_INLINE W broadcast_word(const void* p) {
  int32_t x;
  __builtin_memcpy(&x, p, 4);
  return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)};
}
RS_INLINE __m256 low_half(__m256i x) { return _mm256_castsi256_ps(_mm256_slli_epi32(x, 16)); }
RS_INLINE __m256 high_half(__m256i x) {
  return _mm256_castsi256_ps(_mm256_and_si256(x, _mm256_set1_epi32(int(0xffff0000))));
}
RS_INLINE __m256 dot2_half(__m256 acc, __m256i a, __m256i b) {
  return _mm256_fmadd_ps(high_half(a), high_half(b), _mm256_fmadd_ps(low_half(a), low_half(b), acc));
}
RS_INLINE F dot2(F acc, W a, W b) { return {dot2_half(acc.lo, a.lo, b.lo), dot2_half(acc.hi, a.hi, b.hi)}; }
// maddubs would saturate at int16; widening even and odd bytes first keeps the sum exact.
RS_INLINE __m256i dot4_half(__m256i acc, __m256i u, __m256i s) {
  __m256i even =
      _mm256_madd_epi16(_mm256_and_si256(u, _mm256_set1_epi16(255)), _mm256_srai_epi16(_mm256_slli_epi16(s, 8), 8));
  __m256i odd = _mm256_madd_epi16(_mm256_srli_epi16(u, 8), _mm256_srai_epi16(s, 8));
  return _mm256_add_epi32(acc, _mm256_add_epi32(even, odd));
}
RS_INLINE W dot4(W acc, W u, W s) { return {dot4_half(acc.lo, u.lo, s.lo), dot4_half(acc.hi, u.hi, s.hi)}; }
RS_INLINE W dot2_words(W acc, W a, W b) {
  return {_mm256_add_epi32(acc.lo, _mm256_madd_epi16(a.lo, b.lo)),
          _mm256_add_epi32(acc.hi, _mm256_madd_epi16(a.hi, b.hi))};
}
RS_INLINE W words_of(W low, W high) {
  return {_mm256_blend_epi16(low.lo, _mm256_slli_epi32(high.lo, 16), 0xaa),
          _mm256_blend_epi16(low.hi, _mm256_slli_epi32(high.hi, 16), 0xaa)};
}
RS_INLINE W load_byte_pairs(const int8_t* p) {
  return {_mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i*)p)),
          _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i*)(p + 16)))};
}
RS_INLINE W zero_words() { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
RS_INLINE void store(void* p, W x) {
  _mm256_storeu_si256((__m256i*)p, x.lo);
  _mm256_storeu_si256((__m256i*)p + 1, x.hi);
}
RS_INLINE W to_words(F a) { return {_mm256_cvtps_epi32(a.lo), _mm256_cvtps_epi32(a.hi)}; }
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
RS_INLINE __m256i round_words(F x) {
  return _mm256_permute4x64_epi64(_mm256_packs_epi32(_mm256_cvtps_epi32(x.lo), _mm256_cvtps_epi32(x.hi)), 0xd8);
}
RS_INLINE void store_words(int16_t* p, F x) { _mm256_storeu_si256((__m256i*)p, round_words(x)); }
RS_INLINE void store_bytes(int8_t* p, F x) {
  __m256i words = round_words(x);
  _mm_storeu_si128((__m128i*)p, _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1)));
}

RS_INLINE __m256 lower_half(F x) { return x.lo; }
RS_INLINE __m256 upper_half(F x) { return x.hi; }

}  // namespace RS_NAMESPACE
}  // namespace radixserve
