// simd.hpp in plain C++. What each function does is said in simd.hpp.
#pragma once

namespace radixserve {
namespace RS_NAMESPACE {

struct F {
  float v[16];
};
struct W {
  uint32_t v[16];
};

constexpr int kDenseRows = 2;
constexpr int kTallRows = 4;
constexpr int kQuantRows = 2;
constexpr int kAttentionRows = 2;

#define RS_EACH for (int i = 0; i < 16; ++i)

RS_INLINE F set1(float x) {
  F r;
  RS_EACH
  r.v[i] = x;
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
  RS_EACH
  r.v[i] = to_float(p[i]);
  return r;
}
RS_INLINE F load_half(const uint16_t* p) {
  F r;
  RS_EACH
  r.v[i] = half_to_float(p[i]);
  return r;
}
RS_INLINE F load_u8(const uint8_t* p) {
  F r;
  RS_EACH
  r.v[i] = float(p[i]);
  return r;
}
RS_INLINE F load_s8(const int8_t* p) {
  F r;
  RS_EACH
  r.v[i] = float(p[i]);
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
  RS_EACH
  a.v[i] += b.v[i];
  return a;
}
RS_INLINE F sub(F a, F b) {
  RS_EACH
  a.v[i] -= b.v[i];
  return a;
}
RS_INLINE F mul(F a, F b) {
  RS_EACH
  a.v[i] *= b.v[i];
  return a;
}
RS_INLINE F div(F a, F b) {
  RS_EACH
  a.v[i] /= b.v[i];
  return a;
}
RS_INLINE F fma(F a, F b, F c) {
  RS_EACH
  a.v[i] = a.v[i] * b.v[i] + c.v[i];
  return a;
}
RS_INLINE F max(F a, F b) {
  RS_EACH
  a.v[i] = a.v[i] > b.v[i] ? a.v[i] : b.v[i];
  return a;
}
RS_INLINE F min(F a, F b) {
  RS_EACH
  a.v[i] = a.v[i] < b.v[i] ? a.v[i] : b.v[i];
  return a;
}
RS_INLINE F abs(F a) {
  RS_EACH
  a.v[i] = __builtin_fabsf(a.v[i]);
  return a;
}
// Adding and taking away 1.5 * 2^23 rounds to the nearest whole number, ties to even, for |a| < 2^22.
RS_INLINE F round_nearest(F a) {
  RS_EACH
  a.v[i] = (a.v[i] + 12582912.0f) - 12582912.0f;
  return a;
}
RS_INLINE F round_up(F a) {
  RS_EACH
  a.v[i] = __builtin_ceilf(a.v[i]);
  return a;
}
template <int kBits>
RS_INLINE F up_to_bits(F a) {
  uint32_t rest = (1u << (24 - kBits)) - 1;
  RS_EACH
  a.v[i] = bits_to_float((float_to_bits(a.v[i]) + rest) & ~rest);
  return a;
}
RS_INLINE F keep_lanes(F a, int lo, int hi, F fill) {
  RS_EACH
  a.v[i] = i >= lo && i < hi ? a.v[i] : fill.v[i];
  return a;
}
RS_INLINE F scale_by_power(F a, F n) {
  RS_EACH
  a.v[i] *= bits_to_float(uint32_t(int32_t(n.v[i]) + 127) << 23);
  return a;
}
RS_INLINE F zero_where_below(F a, F x, F bound) {
  RS_EACH
  a.v[i] = x.v[i] < bound.v[i] ? 0.0f : a.v[i];
  return a;
}

RS_INLINE W load_words(const void* p) {
  W r;
  __builtin_memcpy(r.v, p, 64);
  return r;
}
RS_INLINE W no_words() { return {}; }
RS_INLINE W broadcast_word(const void* p) {
  uint32_t x;
  __builtin_memcpy(&x, p, 4);
  W r;
  RS_EACH
  r.v[i] = x;
  return r;
}
RS_INLINE F dot2(F acc, W a, W b) {
  RS_EACH
  {
    float low = acc.v[i] + bits_to_float(a.v[i] << 16) * bits_to_float(b.v[i] << 16);
    acc.v[i] = low + bits_to_float(a.v[i] & 0xffff0000) * bits_to_float(b.v[i] & 0xffff0000);
  }
  return acc;
}
RS_INLINE W dot4(W acc, W u, W s) {
  RS_EACH
  {
    int32_t sum = int32_t(acc.v[i]);
    for (int b = 0; b < 4; ++b) sum += int32_t(uint8_t(u.v[i] >> 8 * b)) * int32_t(int8_t(s.v[i] >> 8 * b));
    acc.v[i] = uint32_t(sum);
  }
  return acc;
}
RS_INLINE W dot2_words(W acc, W a, W b) {
  RS_EACH
  {
    int32_t low = int32_t(int16_t(a.v[i])) * int16_t(b.v[i]);
    int32_t high = int32_t(int16_t(a.v[i] >> 16)) * int16_t(b.v[i] >> 16);
    acc.v[i] = uint32_t(int32_t(acc.v[i]) + low + high);
  }
  return acc;
}
RS_INLINE W words_of(W low, W high) {
  RS_EACH
  low.v[i] = (low.v[i] & 0xffff) | high.v[i] << 16;
  return low;
}
RS_INLINE W load_byte_pairs(const int8_t* p) {
  W r;
  RS_EACH
  r.v[i] = uint32_t(uint16_t(int16_t(p[2 * i]))) | uint32_t(uint16_t(int16_t(p[2 * i + 1]))) << 16;
  return r;
}
RS_INLINE W zero_words() { return {}; }
RS_INLINE void store(void* p, W x) { __builtin_memcpy(p, x.v, 64); }
RS_INLINE W to_words(F a) {
  W r;
  F whole = round_nearest(a);
  RS_EACH
  r.v[i] = uint32_t(int32_t(whole.v[i]));
  return r;
}
RS_INLINE F to_floats(W x) {
  F r;
  RS_EACH
  r.v[i] = float(int32_t(x.v[i]));
  return r;
}
RS_INLINE W low_nibbles(W x) {
  RS_EACH
  x.v[i] &= 0x0f0f0f0f;
  return x;
}
RS_INLINE W high_nibbles(W x) {
  RS_EACH
  x.v[i] = x.v[i] >> 4 & 0x0f0f0f0f;
  return x;
}
template <int Part>
RS_INLINE W two_bits_high(W x) {
  RS_EACH
  x.v[i] = (Part < 2 ? x.v[i] << (4 - 2 * (Part & 1)) : x.v[i] >> (2 * (Part & 1))) & 0x30303030;
  return x;
}
RS_INLINE W either(W a, W b) {
  RS_EACH
  a.v[i] |= b.v[i];
  return a;
}
RS_INLINE void store_bytes(int8_t* p, F x) {
  F whole = round_nearest(x);
  RS_EACH
  p[i] = int8_t(whole.v[i]);
}
RS_INLINE void store_words(int16_t* p, F x) {
  F whole = round_nearest(min(max(x, set1(-32768.0f)), set1(32767.0f)));  // NaN becomes the first
  RS_EACH
  p[i] = int16_t(whole.v[i]);
}

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

#undef RS_EACH

}  // namespace RS_NAMESPACE
}  // namespace radixserve
