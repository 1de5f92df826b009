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
// Rows of x are rounded to int8 with a scale for each half of a group, a unit of the row times a whole number t
// (rounded_rows.hpp). So within a group, with h over its halves,
//
//   sum_k x w = unit (d sum_h t_h (sum q u - zero sum q) + m sum_h t_h sum q)
//
// where the inner sums are exact integers. Those of four-bit formats fit into 16 bits, and one instruction multiplies
// both with their t and adds them, exactly; for the others it is done in fp32. Groups are added in ascending order by
// fused multiply-adds: like the dense kernel, the bits of an output depend on x's row and W alone.
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
#include "ahead.hpp"
#include "linear_dense.hpp"
#include "rounded_rows.hpp"

namespace radixserve {
namespace RS_NAMESPACE {

constexpr int kSuper = 256;
constexpr int kQuantPanel = 16;
// Between use and prefetch: few rows are done with less before memory has answered.
constexpr int kQuantAheadBytes = 16384;

RS_INLINE void unpack_nibbles(const uint8_t* p, W* w) {
  RS_UNROLL
  for (int i = 0; i < 4; ++i) {
    W both = load_words(p + 64 * i);
    w[i] = low_nibbles(both);
    w[i + 4] = high_nibbles(both);
  }
}

// Each format says how many bytes its integers and scales take, how to unpack a group, and what (scale, minimum) a
// group has. `Times`: int16_t where the sum over half a group fits that, else float; `kHalves`: scales a group;
// `kMinimum`: whether there is a minimum.
struct Q8_0 {
  using Times = float;
  static constexpr int kQuantBytes = 512, kScaleBytes = 32, kScaleGroup = kGroup, kZero = 128, kHalves = 1;
  static constexpr bool kMinimum = false;
  RS_INLINE void unpack(const uint8_t* p, W* w) {
    RS_UNROLL
    for (int i = 0; i < 8; ++i) w[i] = load_words(p + 64 * i);
  }
  RS_INLINE void scales(const uint8_t* p, int64_t, F* d, F*) { d[0] = load_half((const uint16_t*)p); }
};

struct Q4_0 {
  using Times = int16_t;
  static constexpr int kQuantBytes = 256, kScaleBytes = 32, kScaleGroup = kGroup, kZero = 8, kHalves = 1;
  static constexpr bool kMinimum = false;
  RS_INLINE void unpack(const uint8_t* p, W* w) { unpack_nibbles(p, w); }
  RS_INLINE void scales(const uint8_t* p, int64_t, F* d, F*) { d[0] = load_half((const uint16_t*)p); }
};

struct Q4_1 {
  using Times = int16_t;
  static constexpr int kQuantBytes = 256, kScaleBytes = 64, kScaleGroup = kGroup, kZero = 0, kHalves = 1;
  static constexpr bool kMinimum = true;
  RS_INLINE void unpack(const uint8_t* p, W* w) { unpack_nibbles(p, w); }
  RS_INLINE void scales(const uint8_t* p, int64_t, F* d, F* m) {
    d[0] = load_half((const uint16_t*)p);
    *m = load_half((const uint16_t*)p + 16);
  }
};

struct Q4_K {
  using Times = int16_t;
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
  using Times = float;
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

template <class Q>
struct QuantTile {
  const RsLinear* op;
  const int8_t* x;  // of the tile's first row
  const GroupInfo<Q>* info;
  const float* units;
  int64_t first_row, first_feature;
  Ahead* ahead;
};

// total + sum over halves of d t sum.
template <class Q>
RS_INLINE F add_halves(F total, const W* sum, const int16_t* times, const F* d) {
  W both = dot2_words(no_words(), words_of(sum[0], sum[1]), broadcast_word(times));
  return fma(to_floats(both), d[0], total);
}
template <class Q>
RS_INLINE F add_halves(F total, const W* sum, const float* times, const F* d) {
  F first = mul(to_floats(sum[0]), set1(times[0])), second = to_floats(sum[1]), t = set1(times[1]);
  if constexpr (Q::kHalves == 2) return fma(mul(second, t), d[1], fma(first, d[0], total));
  return fma(fma(second, t, first), d[0], total);
}

template <class Q, int R>
__attribute__((noinline)) void quant_tile(const QuantTile<Q>& tile) {
  const RsLinear& op = *tile.op;
  int64_t width = op.in_features, groups = width / kGroup;
  const uint8_t* quants =
      static_cast<const uint8_t*>(op.weight) + tile.first_feature / kQuantPanel * quant_panel_bytes<Q>(width);
  const uint8_t* scales = quants + groups * Q::kQuantBytes;
  // Walks over integers and scales alike, so that no line of the panels to come is left out.
  const uint8_t* to_come = quants + kQuantAheadBytes;
  constexpr int kGroupBytes = Q::kQuantBytes + Q::kScaleBytes * kGroup / Q::kScaleGroup;
  constexpr int kAheadLines = R >= kAheadRows ? kAheadLinesAGroup : 0;
  Ahead ahead = *tile.ahead;
  F acc[R];
  RS_UNROLL
  for (int r = 0; r < R; ++r) acc[r] = zero();
  for (int64_t g = 0; g < groups; ++g, quants += Q::kQuantBytes, to_come += kGroupBytes) {
    W w[8];
    F d[2], m;
    int64_t place;
    const uint8_t* of_group = scales_of<Q>(scales, g, &place);
    RS_UNROLL
    for (int i = 0; i < kGroupBytes; i += 64) prefetch(to_come + i);
    ahead.fetch<kAheadLines>();
    Q::unpack(quants, w);
    Q::scales(of_group, place, d, &m);
    // Rows go four at a time: their chains of integer sums interleave and hide one another's latency.
    constexpr int kTogether = 4;
    RS_UNROLL
    for (int r0 = 0; r0 < R; r0 += kTogether) {
      const GroupInfo<Q>* info[kTogether];
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
        F& total = acc[r0 + j];
        if constexpr (Q::kMinimum) total = fma(m, set1(info[j]->sum), total);
        total = add_halves<Q>(total, sum[j], info[j]->times, d);
      }
    }
  }
  *tile.ahead = ahead;
  RS_UNROLL
  for (int r = 0; r < R; ++r) {
    F value = mul(acc[r], set1(tile.units[r]));
    if (op.out_type == RS_BF16)
      store_outputs<bf16>(op, tile.first_row + r, tile.first_feature, value);
    else
      store_outputs<float>(op, tile.first_row + r, tile.first_feature, value);
  }
}

template <class Q, int R>
RS_INLINE void quant_tile_of(int rows, const QuantTile<Q>& tile) {
  if constexpr (R > 1) {
    if (rows < R) return quant_tile_of<Q, R - 1>(rows, tile);
  }
  quant_tile<Q, R>(tile);
}

// The tile of rounded rows from `first_row` on, whose outputs are rows from `out_row` on and features from
// `first_feature` on of `op`; meanwhile something of `ahead` is fetched.
template <class Q>
QuantTile<Q> quant_tile_at(const QuantizedRows<Q>& x, const RsLinear* op, int64_t first_row, int64_t out_row,
                           int64_t first_feature, Ahead* ahead) {
  int64_t groups = x.width / kGroup;
  return {op,      x.x + first_row * x.width, x.info + first_row * groups, x.units + first_row, out_row,
          first_feature, ahead};
}

RS_INLINE Ahead quant_ahead(const LinearGrid& grid, int worker, const RsLinear& op, int64_t panels_a_step = 1) {
  return ahead_of(grid, worker, kAheadRows, panels_a_step * op.in_features / kGroup * kAheadLinesAGroup);
}

template <class Q>
LinearGrid quant_grid(const RsLinear& op, int64_t rows) {
  return linear_grid(rows, divide_up(op.out_features, kQuantPanel), quant_panel_bytes<Q>(op.in_features), kQuantRows);
}

template <class Q>
bool linear_quant_typed(const RsLinear& op, Rows rows) {
  LinearGrid grid = quant_grid<Q>(op, rows.count);
  RoundRows<Q> round(op, rows);
  PreparedRows<RoundRows<Q>> rounded(round, rows.count);
  if (!rounded.begin()) return false;
  for_tasks(grid, [&](int64_t task, int worker) {
    QuantizedRows<Q> x = round.all(rounded.of(worker));
    Ahead ahead = quant_ahead(grid, worker, op);
    for_tiles(grid, task, [&](int64_t row, int count, int64_t panel) {
      quant_tile_of<Q, kQuantRows>(count, quant_tile_at(x, &op, row, row, panel * kQuantPanel, &ahead));
    });
  });
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
