// What the attention to come will read, fetched from memory while linears compute.
//
// With a dozen decodes the linears of a layer are bound by arithmetic and attention by memory, so each leaves idle what
// the other waits for:
//
//   qkv  attention  o  gate and up  down | qkv  attention ...
//                   '----- fetches K and V of -----^
//
// Between two attentions their addresses are known (`AheadList`). A task of a linear takes a part of the list, and its
// kernel prefetches some lines beside the weights that it meets. Nothing is computed here: no bit depends on it.
#pragma once
#include "ahead.h"
#include "simd.hpp"

namespace radixserve {
namespace RS_NAMESPACE {

// Lines that a kernel fetches beside a group of quantized weights (linear_quant.hpp) and beside a step along K of dense
// ones, in tiles of at least kAheadRows rows: fewer take no longer than their weights take to come, and weights of two
// bytes or more do not unless they meet more than kDenseRows (`dense_ahead`).
#if defined(RS_ISA_V4)
constexpr int kAheadLinesAGroup = 6;
constexpr int kAheadLinesAStep = 1;
#else
constexpr int kAheadLinesAGroup = 0;  // not measured
constexpr int kAheadLinesAStep = 0;
#endif
constexpr int kAheadRows = 5;

// A task's part of the list.
class Ahead {
 public:
  Ahead() = default;

  // Takes about `lines` cache lines of what `worker` is to fetch.
  Ahead(int64_t lines, int worker) {
    AheadList& list = ahead_list;
    if (lines == 0 || size_t(worker) >= list.parts.size()) return;
    AheadList::Part& part = list.parts[size_t(worker)];
    place_ = part.next;
    end_place_ = part.next = least(part.end, part.next + lines);
    go_on();
  }

  // Prefetches the next few lines.
  template <int kLines>
  void fetch() {
    if constexpr (kLines > 0) {
      RS_UNROLL
      for (int i = 0; i < kLines; ++i) prefetch(at_ + kLine * i);
      at_ += step_ * kLines;
      if (at_ >= end_) go_on();
    }
  }

 private:
  void go_on() {
    if (place_ < end_place_) {
      const AheadList& list = ahead_list;
      int64_t sub = list.subs[place_ / list.lines()], line = place_ % list.lines();
      int64_t count = least(list.lines() - line, end_place_ - place_);
      at_ = list.caches[sub % 2] + sub / 2 * list.bytes + line * kLine;
      end_ = at_ + count * kLine;
      step_ = kLine;
      place_ += count;
    } else {
      *this = Ahead();
    }
  }

  // Lines that are always at hand, where there is nothing to fetch.
  static constexpr char kNothing[16 * kLine] = {};

  const char* at_ = kNothing;
  const char* end_ = kNothing + sizeof(kNothing);
  int64_t step_ = 0;
  int64_t place_ = 0, end_place_ = 0;
};

}  // namespace RS_NAMESPACE
}  // namespace radixserve
