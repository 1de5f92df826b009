// The list of what is fetched ahead (ahead.hpp says why).
#pragma once
#include <stdint.h>

#include <vector>

namespace radixserve {

constexpr int64_t kLine = 64;  // bytes of a cache line

// Sub-blocks of the caches of one layer, in the order in which they will be read: 2 s is K of sub-block s, 2 s + 1 its
// V. A thread fetches for the stretch of tasks that the pool will deal out to it, into the caches of its own core.
struct AheadList {
  struct alignas(64) Part {
    int64_t next, end;
  };
  const char* caches[2] = {nullptr, nullptr};  // K and V
  const int64_t* subs = nullptr;
  int64_t bytes = 0;        // of a sub-block in one of the caches
  std::vector<Part> parts;  // by thread, each changed by that thread only; cache lines of the whole list

  int64_t lines() const { return (bytes + kLine - 1) / kLine; }  // of a sub-block
};

extern AheadList ahead_list;  // changes between operations only

}  // namespace radixserve
