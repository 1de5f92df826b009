// What this machine can do at most, in loops that do nothing else. Compiled for the machine it runs on, at the moment it is used.
//
// Every function is one thread's share: the caller runs it on as many threads as it wants to know about. Nothing here is shared with
// the kernels that are judged by these numbers.

#include <cstddef>
#include <cstdint>

#if defined(__AVX512BF16__) || defined(__AVX512VNNI__)
#include <immintrin.h>
#endif

#if defined(__AVX512F__)
#define VECTOR_BYTES 64
#elif defined(__AVX__)
#define VECTOR_BYTES 32
#else
#define VECTOR_BYTES 16
#endif

typedef uint64_t Words __attribute__((vector_size(VECTOR_BYTES)));
typedef float Floats __attribute__((vector_size(VECTOR_BYTES)));

namespace {

// More chains than the latency of a multiply-add times the units that start one each cycle.
constexpr int CHAINS = 16;

// What the compiler must take for unknown: it would merge chains that start alike, and drop what nobody reads.
volatile uint64_t word_sink;
volatile float float_sink;
volatile float half = 0.5f;
volatile int16_t bf16_half = 0x3f00;
volatile int8_t three = 3;

}  // namespace

extern "C" {

// Reads `bytes` (a multiple of 8 vectors) from `data`, `times` over.
void rs_read(const void* data, size_t bytes, int times) {
  const Words* from = static_cast<const Words*>(data);
  const size_t vectors = bytes / sizeof(Words);
  Words sum[8] = {};
  for (int pass = 0; pass < times; pass++) {
    for (size_t i = 0; i + 8 <= vectors; i += 8) {
      for (int j = 0; j < 8; j++) sum[j] |= from[i + j];
    }
    // The next pass is not the same work to the compiler.
    asm volatile("" ::: "memory");
  }
  uint64_t all = 0;
  for (int j = 0; j < 8; j++) {
    for (size_t lane = 0; lane < sizeof(Words) / 8; lane++) all |= sum[j][lane];
  }
  word_sink = all;
}

// The functions below return the operations done (a multiply-add is two); 0 where the CPU has no instruction for it.

double rs_fp32(long rounds) {
  Floats sum[CHAINS] = {};
  for (int j = 0; j < CHAINS; j++) sum[j] += half;
  const Floats a = Floats{} + half, b = Floats{} + half;
  for (long round = 0; round < rounds; round++) {
    for (int j = 0; j < CHAINS; j++) sum[j] = sum[j] * a + b;
  }
  float all = 0;
  for (int j = 0; j < CHAINS; j++) all += sum[j][0];
  float_sink = all;
  return 2.0 * (sizeof(Floats) / 4) * CHAINS * rounds;
}

double rs_bf16(long rounds) {
#if defined(__AVX512BF16__)
  __m512 sum[CHAINS];
  for (int j = 0; j < CHAINS; j++) sum[j] = _mm512_set1_ps(half);
  const __m512i a = _mm512_set1_epi16(bf16_half), b = _mm512_set1_epi16(bf16_half);
  for (long round = 0; round < rounds; round++) {
    for (int j = 0; j < CHAINS; j++) sum[j] = _mm512_dpbf16_ps(sum[j], (__m512bh)a, (__m512bh)b);
  }
  float all = 0;
  for (int j = 0; j < CHAINS; j++) all += _mm512_cvtss_f32(sum[j]);
  float_sink = all;
  return 2.0 * 32 * CHAINS * rounds;
#else
  (void)rounds;
  return 0;
#endif
}

double rs_int8(long rounds) {
#if defined(__AVX512VNNI__)
  __m512i sum[CHAINS];
  for (int j = 0; j < CHAINS; j++) sum[j] = _mm512_set1_epi32(three);
  const __m512i a = _mm512_set1_epi8(three), b = _mm512_set1_epi8(three);
  for (long round = 0; round < rounds; round++) {
    for (int j = 0; j < CHAINS; j++) sum[j] = _mm512_dpbusd_epi32(sum[j], a, b);
  }
  int all = 0;
  for (int j = 0; j < CHAINS; j++) all += _mm_cvtsi128_si32(_mm512_castsi512_si128(sum[j]));
  word_sink = all;
  return 2.0 * 64 * CHAINS * rounds;
#else
  (void)rounds;
  return 0;
#endif
}

}  // extern "C"
