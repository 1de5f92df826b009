// What a linear makes of its input before its tasks: rounded rows (rounded_rows.hpp), packed rows (packed_rows.hpp).
//
// Of many rows it is made by all threads together, before the tasks begin. Of few rows each thread makes all for
// itself, at its first task: that takes less time than to wait for the others and to fetch what they have written, most
// of all where cores share no cache.
#pragma once
#include "kernels.h"
#include "pool.h"

namespace radixserve {
namespace RS_NAMESPACE {

constexpr int64_t kPreparedByEach = 24;  // rows

// `Make` has `bytes` of memory to fill, in `parts` parts: make(memory, part).
template <class Make>
class PreparedRows {
 public:
  PreparedRows(const Make& make, int64_t rows)
      : make_(make), each_(thread_count() > 1 && rows <= kPreparedByEach), number_(each_ ? ++last_number_ : 0) {}
  PreparedRows(const PreparedRows&) = delete;
  PreparedRows& operator=(const PreparedRows&) = delete;

  // To be called before the tasks; false where there is no memory.
  bool begin() {
    if (each_) return reserve_own_scratch(SCRATCH_ACTIVATIONS, size_t(make_.bytes));
    shared_ = static_cast<char*>(shared_scratch(SCRATCH_ACTIVATIONS, size_t(make_.bytes)));
    if (!shared_) return false;
    parallel(
        make_.parts,
        [](void* context, int64_t part, int) {
          const PreparedRows& all = *static_cast<const PreparedRows*>(context);
          all.make_(all.shared_, part);
        },
        this);
    return true;
  }

  // What was made, for a task of `worker`, whose thread calls this.
  const char* of(int worker) const {
    if (!each_) return shared_;
    char* own = static_cast<char*>(own_scratch(SCRATCH_ACTIVATIONS, worker));
    static thread_local int64_t made_for = 0;
    if (made_for != number_) {
      for (int64_t part = 0; part < make_.parts; ++part) make_(own, part);
      made_for = number_;
    }
    return own;
  }

 private:
  // Counts the linears whose rows are made by each thread: none of them is inside a chunk, so one thread counts.
  static inline int64_t last_number_ = 0;

  const Make& make_;
  bool each_;
  int64_t number_;
  char* shared_ = nullptr;
};

}  // namespace RS_NAMESPACE
}  // namespace radixserve
