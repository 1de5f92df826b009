// Taking some rows of a step through several operations at once.
//
// In all operations between two attentions a row of the output depends on the same row of the input only:
//
//   ... attention | o  norm  gate and up  down  norm  qkv  rope | attention ...
//
// so there are two ways to share them out. By operation: the threads do one after the other together. Each reads its
// part of the weights, but the activations go from core to core a dozen times a layer, which takes long where cores
// share no cache. By rows: each thread takes rows of its own through the whole run; nothing goes from core to core and
// no thread waits for another, but each reads all the weights. That is worth it where a thread has so many rows that
// arithmetic takes longer than the weights take to come and to unpack.
#pragma once
#include "abi.h"

namespace radixserve {

// The first operations of ops [0, count) that rows may be taken through, and whether that is worth it.
struct RowWiseRun {
  int64_t count;
  bool worth_it;
};
RowWiseRun row_wise_run(const RsOp* ops, int64_t count, const RsBatch& batch);

// Parts that the batch's rows are cut into for that.
int64_t row_parts(const RsBatch& batch);

// An operation on rows [first, first + rows) alone, for one of a `row_wise_run`. The copy refers to itself: it stays where
// it is made.
class RowsOfOp {
 public:
  RowsOfOp(const RsOp& op, const RsBatch& batch, int64_t first, int64_t rows);
  RowsOfOp(const RowsOfOp&) = delete;
  RowsOfOp& operator=(const RowsOfOp&) = delete;

  const RsOp& op() const { return op_; }
  const RsBatch& batch() const { return batch_; }

 private:
  RsOp op_;
  RsBatch batch_;
  union {
    RsEmbedding embedding_;
    RsNorm norm_;
    RsLinear linear_;
    RsRopeAppend rope_append_;
    RsSiluMul silu_mul_;
  };
};

}  // namespace radixserve
