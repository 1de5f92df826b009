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

// Rows of x that one pass of a dense linear keeps in registers: 12 x 2 accumulators, or 24 x 1.
constexpr int kDenseRows = 12;
constexpr int kTallRows = 24;
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
RS_INLINE F round_up(F a) { return {_mm512_roundscale_ps(a.v, _MM_FROUND_TO_POS_INF | _MM_FROUND_NO_EXC)}; }
template <int kBits>
RS_INLINE F up_to_bits(F a) {
  __m512i rest = _mm512_set1_epi32((1 << (24 - kBits)) - 1);
  return {_mm512_castsi512_ps(_mm512_andnot_si512(rest, _mm512_add_epi32(_mm512_castps_si512(a.v), rest)))};
}
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
RS_INLINE W to_words(F a) { return {_mm512_cvtps_epi32(a.v)}; }
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

// Vectors are merged in pairs, so that each step halves both their number and the lanes of each that are left.
RS_INLINE F largest_of_each(const F* x) {
  __m512 a[8], b[4], c[2];
  RS_UNROLL
  for (int i = 0; i < 8; ++i) {
    // In such an order that what is left of x[i] ends in lane i.
    int first = 8 * (i % 2) + i / 2, second = first + 4;
    a[i] = _mm512_max_ps(_mm512_shuffle_f32x4(x[first].v, x[second].v, 0x44),
                         _mm512_shuffle_f32x4(x[first].v, x[second].v, 0xee));
  }
  RS_UNROLL
  for (int i = 0; i < 4; ++i)
    b[i] = _mm512_max_ps(_mm512_shuffle_f32x4(a[2 * i], a[2 * i + 1], 0x88),
                         _mm512_shuffle_f32x4(a[2 * i], a[2 * i + 1], 0xdd));
  RS_UNROLL
  for (int i = 0; i < 2; ++i)
    c[i] = _mm512_max_ps(_mm512_shuffle_ps(b[2 * i], b[2 * i + 1], 0x44),
                         _mm512_shuffle_ps(b[2 * i], b[2 * i + 1], 0xee));
  return {_mm512_max_ps(_mm512_shuffle_ps(c[0], c[1], 0x88), _mm512_shuffle_ps(c[0], c[1], 0xdd))};
}
RS_INLINE void transpose(F* x) {
  __m512 a[16], b[16];
  // Fours of rows: lane l of a 128-bit part c of b[4g + j] becomes x[4g + l][4c + j].
  RS_UNROLL
  for (int g = 0; g < 16; g += 4) {
    __m512 low0 = _mm512_unpacklo_ps(x[g].v, x[g + 1].v), high0 = _mm512_unpackhi_ps(x[g].v, x[g + 1].v);
    __m512 low1 = _mm512_unpacklo_ps(x[g + 2].v, x[g + 3].v), high1 = _mm512_unpackhi_ps(x[g + 2].v, x[g + 3].v);
    b[g] = _mm512_shuffle_ps(low0, low1, 0x44);
    b[g + 1] = _mm512_shuffle_ps(low0, low1, 0xee);
    b[g + 2] = _mm512_shuffle_ps(high0, high1, 0x44);
    b[g + 3] = _mm512_shuffle_ps(high0, high1, 0xee);
  }
  // Then parts of 128 bits among b[j], b[4 + j], b[8 + j] and b[12 + j], in two steps.
  RS_UNROLL
  for (int j = 0; j < 4; ++j) {
    a[j] = _mm512_shuffle_f32x4(b[j], b[4 + j], 0x88);           // parts 0, 2
    a[4 + j] = _mm512_shuffle_f32x4(b[j], b[4 + j], 0xdd);       // parts 1, 3
    a[8 + j] = _mm512_shuffle_f32x4(b[8 + j], b[12 + j], 0x88);
    a[12 + j] = _mm512_shuffle_f32x4(b[8 + j], b[12 + j], 0xdd);
  }
  RS_UNROLL
  for (int j = 0; j < 4; ++j) {
    x[j].v = _mm512_shuffle_f32x4(a[j], a[8 + j], 0x88);
    x[4 + j].v = _mm512_shuffle_f32x4(a[4 + j], a[12 + j], 0x88);
    x[8 + j].v = _mm512_shuffle_f32x4(a[j], a[8 + j], 0xdd);
    x[12 + j].v = _mm512_shuffle_f32x4(a[4 + j], a[12 + j], 0xdd);
  }
}
RS_INLINE __m512i add_neighbours(__m512i a, __m512i b) {
  __m512 x = _mm512_castsi512_ps(a), y = _mm512_castsi512_ps(b);
  return _mm512_add_epi32(_mm512_castps_si512(_mm512_shuffle_ps(x, y, 0x88)),
                          _mm512_castps_si512(_mm512_shuffle_ps(x, y, 0xdd)));
}
RS_INLINE W sums_of_each(const int8_t* p) {
  __m512i fours[4];
  RS_UNROLL
  for (int i = 0; i < 4; ++i)
    fours[i] = _mm512_dpbusd_epi32(_mm512_setzero_si512(), _mm512_set1_epi8(1), _mm512_loadu_si512(p + 64 * i));
  __m512i sums = add_neighbours(add_neighbours(fours[0], fours[1]), add_neighbours(fours[2], fours[3]));
  const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  return {_mm512_permutexvar_epi32(order, sums)};
}

RS_INLINE __m256 lower_half(F x) { return _mm512_castps512_ps256(x.v); }
RS_INLINE __m256 upper_half(F x) { return _mm512_extractf32x8_ps(x.v, 1); }

}  // namespace RS_NAMESPACE
}  // namespace radixserve
