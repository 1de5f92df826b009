// Splitting row-wise operations over the pool.
#pragma once
#include "kernels.h"
#include "pool.h"
#include "simd.hpp"

namespace radixserve {
namespace RS_NAMESPACE {

// Calls body(row) for every row in [0, rows); chunks hold about `elements_wanted` elements, so that small work stays on
// the caller.
template <class Body>
RS_INLINE void for_rows(int64_t rows, int64_t elements_each, const Body& body, int64_t elements_wanted = 8192) {
  struct Job {
    const Body* body;
    int64_t rows, step;
  };
  if (rows == 0) return;
  int64_t chunks = divide_up(rows, most<int64_t>(1, elements_wanted / most<int64_t>(1, elements_each)));
  Job job{&body, rows, divide_up(rows, chunks)};  // 16 rows are 8 + 8, not 14 + 2
  parallel(
      divide_up(rows, job.step),
      [](void* context, int64_t chunk, int) {
        const Job& job = *static_cast<const Job*>(context);
        int64_t end = least(job.rows, (chunk + 1) * job.step);
        for (int64_t row = chunk * job.step; row < end; ++row) (*job.body)(row);
      },
      &job);
}

RS_INLINE int64_t source_row(const Rows& rows, int64_t row) { return rows.index ? rows.index[row] : row; }

}  // namespace RS_NAMESPACE
}  // namespace radixserve
