// What one instruction set offers: the operations of abi.h, split over the pool by themselves.
#pragma once
#include "abi.h"

namespace radixserve {

struct AttentionPlan;

// Which rows an operation works on: rows [0, count), row i reading its input at index[i] (at i where index is null).
struct Rows {
  int64_t count;
  const int32_t* index;
};

// Each returns false when there is no memory for its scratch.
struct Kernels {
  const char* name;
  bool (*embedding)(const RsEmbedding&, const RsBatch&, Rows);
  bool (*norm)(const RsNorm&, Rows);
  bool (*linear_dense)(const RsLinear&, Rows);
  bool (*linear_quant)(const RsLinear&, Rows);
  bool (*linear_gated)(const RsLinear&, Rows);
  bool (*rope_append)(const RsRopeAppend&, const RsBatch&);
  bool (*attention)(const RsAttention&, const RsBatch&, const AttentionPlan&);
  bool (*silu_mul)(const RsSiluMul&, Rows);
  bool (*top_k)(const RsTopK&, Rows);
  bool (*linear_top_k)(const RsLinearTopK&, Rows);
};

// Null where this build has no such kernels.
const Kernels* kernels_v4();
const Kernels* kernels_v3();
const Kernels* kernels_generic();

}  // namespace radixserve
