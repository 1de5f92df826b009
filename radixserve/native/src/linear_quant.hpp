// out = x W^T + b with W in the block formats of GGUF files, kept as they are in the file: the numbers are only put in
// another order.
//
// A format stores, for each output feature and each group of 32 along K, small unsigned integers u and a scale (d),
// sometimes a minimum (m):
//
//   Q8_0  w = d (u - 128)          Q4_0  w = d (u - 8)          Q4_1  w = d u + m
//   Q4_K  w = d sc u - dmin mn     (sc, mn: 6 bits a group; d, dmin: one a super-block of 256)
//   Q6_K  w = d sc (u - 32)        (sc: 8 bits for each half of a group; d: one a super-block)
//
// Rows of x are rounded to int8 with one scale for each row and half a group (x = s q; halves, because activations have
// outliers, and 16 numbers beside one lose half as much as 32), so that within a group, with h over its halves,
//
//   sum_k x w = d sum_h s_h (sum q u - zero sum q) + m sum_h s_h sum q
//
// where the inner sums are exact integers. Groups are added in ascending order by fused multiply-adds: like the dense
// kernel, the bits of an output depend on x's row and W alone.
//
// Panels of 16 outputs; a panel is all its integers, then all its scales. Integers of one group (a vector = 16 outputs
// x 4 bytes, because dot4 adds four products at a time; quad i = places 4i .. 4i+3 of the group):
//
//   Q8_0           [8 quads][16][4] bytes
//   Q4_0 Q4_1 Q4_K [4][16][4] bytes, low nibble = quad i, high nibble = quad i + 4
//   Q6_K           the low four bits as above, then [2][16][4] bytes with two high bits each of quads i, i + 2, i + 4,
//   i + 6
//
// Scales:  Q8_0 Q4_0  group: d half[16]     Q4_1  group: d half[16], m half[16]
//          Q4_K  super-block: d half[16], dmin half[16], then 8 groups: sc u8[16], mn u8[16]
//          Q6_K  super-block: d half[16], then 8 groups: sc s8[2][16]
#pragma once
#include "linear_dense.hpp"

namespace radixserve {
namespace RS_NAMESPACE {

constexpr int kGroup = 32;
constexpr int kSuper = 256;
constexpr int kQuantPanel = 16;
// Between use and prefetch: the next panel. A few rows take less time over one than memory takes to answer.
constexpr int kQuantAheadBytes = 8192;
constexpr int kRoundedAtOnce = 2048;  // numbers: rounding takes a tenth of the time of few rows, too much for one thread

RS_INLINE void unpack_nibbles(const uint8_t* p, W* w) {
  RS_UNROLL
  for (int i = 0; i < 4; ++i) {
    W both = load_words(p + 64 * i);
    w[i] = low_nibbles(both);
    w[i + 4] = high_nibbles(both);
  }
}

// Each format says how many bytes its integers and scales take, how to unpack a group, and what (scale, minimum) a
// group has. `kHalves`: scales a group; `kMinimum`: whether there is a minimum.
struct Q8_0 {
  static constexpr int kQuantBytes = 512, kScaleBytes = 32, kScaleGroup = kGroup, kZero = 128, kHalves = 1;
  static constexpr bool kMinimum = false;
  RS_INLINE void unpack(const uint8_t* p, W* w) {
    RS_UNROLL
    for (int i = 0; i < 8; ++i) w[i] = load_words(p + 64 * i);
  }
  RS_INLINE void scales(const uint8_t* p, int64_t, F* d, F*) { d[0] = load_half((const uint16_t*)p); }
};

struct Q4_0 {
  static constexpr int kQuantBytes = 256, kScaleBytes = 32, kScaleGroup = kGroup, kZero = 8, kHalves = 1;
  static constexpr bool kMinimum = false;
  RS_INLINE void unpack(const uint8_t* p, W* w) { unpack_nibbles(p, w); }
  RS_INLINE void scales(const uint8_t* p, int64_t, F* d, F*) { d[0] = load_half((const uint16_t*)p); }
};

struct Q4_1 {
  static constexpr int kQuantBytes = 256, kScaleBytes = 64, kScaleGroup = kGroup, kZero = 0, kHalves = 1;
  static constexpr bool kMinimum = true;
  RS_INLINE void unpack(const uint8_t* p, W* w) { unpack_nibbles(p, w); }
  RS_INLINE void scales(const uint8_t* p, int64_t, F* d, F* m) {
    d[0] = load_half((const uint16_t*)p);
    *m = load_half((const uint16_t*)p + 16);
  }
};

struct Q4_K {
  static constexpr int kQuantBytes = 256, kScaleBytes = 320, kScaleGroup = kSuper, kZero = 0, kHalves = 1;
  static constexpr bool kMinimum = true;
  RS_INLINE void unpack(const uint8_t* p, W* w) { unpack_nibbles(p, w); }
  RS_INLINE void scales(const uint8_t* p, int64_t group, F* d, F* m) {
    const uint8_t* of_group = p + 64 + group * 32;
    d[0] = mul(load_half((const uint16_t*)p), load_u8(of_group));
    *m = sub(zero(), mul(load_half((const uint16_t*)p + 16), load_u8(of_group + 16)));
  }
};

struct Q6_K {
  static constexpr int kQuantBytes = 384, kScaleBytes = 288, kScaleGroup = kSuper, kZero = 32, kHalves = 2;
  static constexpr bool kMinimum = false;
  RS_INLINE void unpack(const uint8_t* p, W* w) {
    unpack_nibbles(p, w);
    RS_UNROLL
    for (int i = 0; i < 2; ++i) {
      W high = load_words(p + 256 + 64 * i);
      w[i] = either(w[i], two_bits_high<0>(high));
      w[i + 2] = either(w[i + 2], two_bits_high<1>(high));
      w[i + 4] = either(w[i + 4], two_bits_high<2>(high));
      w[i + 6] = either(w[i + 6], two_bits_high<3>(high));
    }
  }
  RS_INLINE void scales(const uint8_t* p, int64_t group, F* d, F*) {
    const int8_t* of_group = (const int8_t*)p + 32 + group * 32;
    F whole = load_half((const uint16_t*)p);
    d[0] = mul(whole, load_s8(of_group));
    d[1] = mul(whole, load_s8(of_group + 16));
  }
};

// A group of a row of x after rounding.
struct GroupInfo {
  float scale[2];     // of each half
  float scaled_sum;   // sum over halves of scale * sum of the int8
  int32_t offset[2];  // -zero * sum of the int8, of each half
};

template <class Q>
RS_INLINE int64_t quant_panel_bytes(int64_t in_features) {
  return in_features / kGroup * Q::kQuantBytes + in_features / Q::kScaleGroup * Q::kScaleBytes;
}

template <class Q>
RS_INLINE const uint8_t* scales_of(const uint8_t* scales, int64_t group, int64_t* place) {
  constexpr int64_t kGroups = Q::kScaleGroup / kGroup;
  *place = group % kGroups;
  return scales + group / kGroups * Q::kScaleBytes;
}

template <class Q, class T>
void quantize_row(const T* x, int64_t width, int8_t* q, GroupInfo* info) {
  for (int64_t g = 0; g < width / kGroup; ++g) {
    float scaled_sum = 0.0f;
    for (int half = 0; half < 2; ++half, x += kLanes, q += kLanes) {
      F all = load(x);
      float largest = max_lanes(abs(all));
      // 0 for finite numbers, else NaN: it must reach the outputs.
      float poison = sum_lanes(mul(all, zero()));
      F inverse = set1(largest > 1e-30f ? 127.0f / largest : 0.0f);
      F whole = round_nearest(min(max(mul(all, inverse), set1(-127.0f)), set1(127.0f)));
      store_bytes(q, whole);
      float sum = sum_lanes(whole);  // exact: a whole number below 2^24
      float scale = largest / 127.0f + poison;
      info[g].scale[half] = scale;
      info[g].offset[half] = -Q::kZero * int32_t(sum);
      scaled_sum += scale * sum;
    }
    info[g].scaled_sum = scaled_sum;
  }
}

struct QuantTile {
  const RsLinear* op;
  const int8_t* x;  // of the tile's first row
  const GroupInfo* info;
  int64_t first_row, first_feature;
};

template <class Q, int R>
__attribute__((noinline)) void quant_tile(const QuantTile& tile) {
  const RsLinear& op = *tile.op;
  int64_t width = op.in_features, groups = width / kGroup;
  const uint8_t* quants =
      static_cast<const uint8_t*>(op.weight) + tile.first_feature / kQuantPanel * quant_panel_bytes<Q>(width);
  const uint8_t* scales = quants + groups * Q::kQuantBytes;
  // Walks over integers and scales alike, so that no line of the panels ahead is left out.
  const uint8_t* ahead = quants + kQuantAheadBytes;
  constexpr int kGroupBytes = Q::kQuantBytes + Q::kScaleBytes * kGroup / Q::kScaleGroup;
  F acc[R];
  RS_UNROLL
  for (int r = 0; r < R; ++r) acc[r] = zero();
  for (int64_t g = 0; g < groups; ++g, quants += Q::kQuantBytes, ahead += kGroupBytes) {
    W w[8];
    F d[2], m;
    int64_t place;
    const uint8_t* of_group = scales_of<Q>(scales, g, &place);
    RS_UNROLL
    for (int i = 0; i < kGroupBytes; i += 64) prefetch(ahead + i);
    Q::unpack(quants, w);
    Q::scales(of_group, place, d, &m);
    // Rows go three at a time: their chains of integer sums interleave and hide one another's latency.
    RS_UNROLL
    for (int r0 = 0; r0 < R; r0 += 3) {
      constexpr int kTogether = 3;
      const GroupInfo* info[kTogether];
      W sum[kTogether][2];
      RS_UNROLL
      for (int j = 0; j < least(kTogether, R - r0); ++j) {
        info[j] = tile.info + (r0 + j) * groups + g;
        RS_UNROLL
        for (int half = 0; half < 2; ++half)
          sum[j][half] = Q::kZero ? broadcast_word(&info[j]->offset[half]) : no_words();
      }
      RS_UNROLL
      for (int i = 0; i < 8; ++i) RS_UNROLL
      for (int j = 0; j < least(kTogether, R - r0); ++j) {
        W& part = sum[j][i / 4];
        part = dot4(part, w[i], broadcast_word(tile.x + (r0 + j) * width + g * kGroup + 4 * i));
      }
      RS_UNROLL
      for (int j = 0; j < least(kTogether, R - r0); ++j) {
        F first = mul(to_floats(sum[j][0]), set1(info[j]->scale[0]));
        F second = to_floats(sum[j][1]), scale = set1(info[j]->scale[1]);
        if constexpr (Q::kHalves == 2)
          acc[r0 + j] = fma(mul(second, scale), d[1], fma(first, d[0], acc[r0 + j]));
        else
          acc[r0 + j] = fma(fma(second, scale, first), d[0], acc[r0 + j]);
        if constexpr (Q::kMinimum) acc[r0 + j] = fma(m, set1(info[j]->scaled_sum), acc[r0 + j]);
      }
    }
  }
  RS_UNROLL
  for (int r = 0; r < R; ++r) {
    if (op.out_type == RS_BF16)
      store_outputs<bf16>(op, tile.first_row + r, tile.first_feature, acc[r]);
    else
      store_outputs<float>(op, tile.first_row + r, tile.first_feature, acc[r]);
  }
}

template <class Q, int R>
RS_INLINE void quant_tile_of(int rows, const QuantTile& tile) {
  if constexpr (R > 1) {
    if (rows < R) return quant_tile_of<Q, R - 1>(rows, tile);
  }
  quant_tile<Q, R>(tile);
}

// The rows of x after rounding: int8 [rows, in_features] and one GroupInfo for each row and group.
struct QuantizedRows {
  const int8_t* x;
  const GroupInfo* info;
};

// Rounds all rows into shared scratch; false where there is no memory for it.
template <class Q>
bool quantize_rows(const RsLinear& op, Rows rows, QuantizedRows* out) {
  int64_t width = op.in_features, groups = width / kGroup;
  size_t info_bytes = size_t(rows.count * groups) * sizeof(GroupInfo);
  char* scratch = static_cast<char*>(shared_scratch(SCRATCH_ACTIVATIONS, info_bytes + size_t(rows.count * width)));
  if (!scratch) return false;
  GroupInfo* info = reinterpret_cast<GroupInfo*>(scratch);
  int8_t* quantized = reinterpret_cast<int8_t*>(scratch + info_bytes);
  auto round_row = [&](int64_t row) {
    int64_t source = source_row(rows, row) * op.x_stride;
    if (op.x_type == RS_BF16)
      quantize_row<Q>(static_cast<const bf16*>(op.x) + source, width, quantized + row * width, info + row * groups);
    else
      quantize_row<Q>(static_cast<const float*>(op.x) + source, width, quantized + row * width, info + row * groups);
  };
  for_rows(rows.count, width, round_row, kRoundedAtOnce);
  *out = {quantized, info};
  return true;
}

template <class Q>
LinearGrid quant_grid(const RsLinear& op, int64_t rows) {
  return linear_grid(rows, divide_up(op.out_features, kQuantPanel), quant_panel_bytes<Q>(op.in_features), kQuantRows);
}

template <class Q>
bool linear_quant_typed(const RsLinear& op, Rows rows) {
  struct Job {
    const RsLinear* op;
    QuantizedRows rows;
    LinearGrid grid;
  };
  Job job{&op, {}, quant_grid<Q>(op, rows.count)};
  if (!quantize_rows<Q>(op, rows, &job.rows)) return false;
  parallel(
      job.grid.row_blocks * job.grid.panel_blocks,
      [](void* context, int64_t chunk, int) {
        const Job& job = *static_cast<const Job*>(context);
        int64_t width = job.op->in_features;
        for_tiles(job.grid, chunk, kQuantRows, [&](int64_t row, int rows, int64_t panel) {
          QuantTile tile{job.op, job.rows.x + row * width, job.rows.info + row * (width / kGroup), row,
                         panel * kQuantPanel};
          quant_tile_of<Q, kQuantRows>(rows, tile);
        });
      },
      &job);
  return true;
}

bool linear_quant(const RsLinear& op, Rows rows) {
  switch (op.format) {
    case RS_Q8_0: return linear_quant_typed<Q8_0>(op, rows);
    case RS_Q4_0: return linear_quant_typed<Q4_0>(op, rows);
    case RS_Q4_1: return linear_quant_typed<Q4_1>(op, rows);
    case RS_Q4_K: return linear_quant_typed<Q4_K>(op, rows);
    default: return linear_quant_typed<Q6_K>(op, rows);
  }
}

}  // namespace RS_NAMESPACE
}  // namespace radixserve
