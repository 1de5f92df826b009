// Rows of x as the quantized linears want them: int8 with scales.
//
// There is a scale for each half of a group of 32 numbers: halves, because activations have outliers, and 16 numbers
// beside one lose half as much as 32. A scale is a unit, the same for the whole row, times a whole number t up to 2^14
// (x = unit t q), of six significant bits: with more, a last bit of x would more often move a scale and with it whole
// numbers q.
//
// A row is rounded in two passes, 16 halves at once, so that what there is one of for each half stands in the lanes of
// a vector:
//
//   x  [h0][h1] ... [h15]  ->  largest |x| of each  ->  t of each  ->  q  [h0][h1] ... [h15]  ->  sum of each
#pragma once
#include "prepared_rows.hpp"
#include "rows.hpp"

namespace radixserve {
namespace RS_NAMESPACE {

constexpr int kGroup = 32;
constexpr int kHalf = kGroup / 2;
constexpr int kBlock = kLanes * kHalf;  // numbers that are rounded at once
static_assert(kHalf == kLanes, "a half of a group is a vector");

constexpr int64_t kRoundedAtOnce = 8192;  // numbers of a part, where threads share them

constexpr float kMostTimes = 1 << 14;  // a power of two, so that a row whose scales are alike has them exactly

// A group of a row of x after rounding, for weights of format Q (linear_quant.hpp).
template <class Q>
struct GroupInfo {
  typename Q::Times times[2];  // t of each half
  float sum;                   // sum over halves of t * sum of the int8
  int32_t offset[2];           // -zero * sum of the int8, of each half
};

// The least whole numbers of six significant bits, at least 1, that are not below x.
RS_INLINE F times_above(F x) { return max(round_up(up_to_bits<6>(x)), set1(1.0f)); }

// Rounds a row of a multiple of kGroup numbers. Returns its unit, NaN where a number is not finite: it must reach the
// outputs.
template <class Q, class T>
float round_row(const T* x, int64_t width, int8_t* q, GroupInfo<Q>* info) {
  // Between the passes the largest of each half stands where its block of q will be.
  auto largest_at = [&](int64_t first) { return reinterpret_cast<float*>(q + first); };
  auto halves_at = [&](int64_t first) { return int(least<int64_t>(kLanes, (width - first) / kHalf)); };
  F largest_lanes = zero(), poison_lanes = zero();
  for (int64_t first = 0; first < width; first += kBlock) {
    int halves = halves_at(first);
    F sizes[kLanes];
    RS_UNROLL
    for (int i = 0; i < kLanes; ++i) {
      F all = i < halves ? load(x + first + i * kHalf) : zero();
      poison_lanes = fma(all, zero(), poison_lanes);  // 0 for finite numbers, else NaN
      sizes[i] = abs(all);
    }
    F of_each = largest_of_each(sizes);
    store(largest_at(first), of_each, halves);
    largest_lanes = max(of_each, largest_lanes);
  }
  float poison = sum_lanes(poison_lanes), largest_of_row = max_lanes(largest_lanes);
  bool nothing = poison != 0.0f || largest_of_row < 1e-30f;
  float unit = nothing ? 0.0f : largest_of_row / 127.0f / kMostTimes;
  float to_times = nothing ? 0.0f : kMostTimes / largest_of_row;
  for (int64_t first = 0; first < width; first += kBlock) {
    int halves = halves_at(first);
    F of_each = nothing ? zero() : load(largest_at(first), halves);
    F times_of_each = times_above(min(mul(of_each, set1(to_times)), set1(kMostTimes)));
    float inverse[kLanes];
    store(inverse, nothing ? zero() : div(set1(1.0f), mul(set1(unit), times_of_each)));
    int8_t block[kBlock] = {};
    for (int i = 0; i < halves; ++i) {
      F whole = mul(load(x + first + i * kHalf), set1(inverse[i]));
      whole = min(max(whole, set1(-127.0f)), set1(127.0f));
      store_bytes(q + first + i * kHalf, whole);
      store_bytes(block + i * kHalf, whole);
    }
    int32_t times[kLanes], sums[kLanes];
    store(times, to_words(times_of_each));
    store(sums, sums_of_each(block));
    for (int i = 0; i < halves; i += 2) {
      GroupInfo<Q>& group = info[(first / kHalf + i) / 2];
      for (int half = 0; half < 2; ++half) {
        group.times[half] = typename Q::Times(times[i + half]);
        group.offset[half] = -Q::kZero * sums[i + half];
      }
      group.sum = float(times[i] * sums[i] + times[i + 1] * sums[i + 1]);
    }
  }
  return unit + poison;
}

// Rounded rows: int8 [rows, width], one GroupInfo for each row and group, and the rows' units.
template <class Q>
struct QuantizedRows {
  int8_t* x;
  GroupInfo<Q>* info;
  float* units;
  int64_t width;

  QuantizedRows(const char* memory, int64_t rows, int64_t width) : width(width) {
    info = reinterpret_cast<GroupInfo<Q>*>(const_cast<char*>(memory));
    units = reinterpret_cast<float*>(info + rows * (width / kGroup));
    x = reinterpret_cast<int8_t*>(units + rows);
  }
};

template <class Q>
struct RoundRows {
  const RsLinear& op;
  Rows rows;
  int64_t bytes, parts;

  RoundRows(const RsLinear& op, Rows rows) : op(op), rows(rows) {
    int64_t groups = op.in_features / kGroup;
    bytes = rows.count * (groups * int64_t(sizeof(GroupInfo<Q>)) + int64_t(sizeof(float)) + op.in_features);
    parts = divide_up(rows.count, rows_of_part());
  }

  QuantizedRows<Q> all(const char* memory) const { return {memory, rows.count, op.in_features}; }

  void operator()(char* memory, int64_t part) const {
    QuantizedRows<Q> out = all(memory);
    int64_t end = least(rows.count, (part + 1) * rows_of_part());
    for (int64_t row = part * rows_of_part(); row < end; ++row) {
      int64_t source = source_row(rows, row) * op.x_stride;
      int8_t* q = out.x + row * out.width;
      GroupInfo<Q>* info = out.info + row * (out.width / kGroup);
      out.units[row] = op.x_type == RS_BF16
                           ? round_row<Q>(static_cast<const bf16*>(op.x) + source, out.width, q, info)
                           : round_row<Q>(static_cast<const float*>(op.x) + source, out.width, q, info);
    }
  }

 private:
  int64_t rows_of_part() const { return most<int64_t>(1, kRoundedAtOnce / op.in_features); }
};

}  // namespace RS_NAMESPACE
}  // namespace radixserve
