// The list of what is fetched ahead (ahead.hpp says why).
#pragma once
#include <stdint.h>

#include <atomic>

namespace radixserve {

// Sub-blocks of the caches of one layer, in the order in which they will be read: 2 s is K of sub-block s, 2 s + 1 its
// V.
struct AheadList {
  const char* caches[2] = {nullptr, nullptr};  // K and V
  const int64_t* subs = nullptr;
  int64_t count = 0;
  int64_t bytes = 0;             // of a sub-block in one of the caches
  std::atomic<int64_t> next{0};  // the first that no task has taken
};

extern AheadList ahead_list;  // changes between operations only

}  // namespace radixserve
