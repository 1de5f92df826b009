// The C ABI of the kernel library: plain structs and eight functions, no torch, no Python.
//
// A step is a list of operations (RsOp), described once per model by the caller and run by one call of rs_run. Pointers
// in the operations are fixed; what changes from step to step is in RsBatch. Nothing is owned by the library but its
// threads and its scratch memory: every pointer must stay valid while rs_run is inside.
//
// Sizes are counts of elements, strides are counts of elements between rows. Rows of activations are contiguous along
// the last dimension. `rows` of an operation says which rows it works on: all tokens of the batch, or only those whose
// logits are wanted.
//
// Operations in a row that work on all tokens, but for attention, may be taken through by rows: row 0 may be several
// operations ahead of row 1. So they must not keep in one place what belongs to two rows.
#pragma once
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define RS_ABI_VERSION 5
#define RS_EXPORT __attribute__((visibility("default")))

enum RsType { RS_F32 = 0, RS_BF16 = 1, RS_INT8 = 2 };

// How a weight matrix is stored; the layouts are drawn in linear_dense.hpp and linear_quant.hpp.
enum RsFormat { RS_DENSE_F32 = 0, RS_DENSE_BF16 = 1, RS_Q8_0 = 2, RS_Q4_0 = 3, RS_Q4_1 = 4, RS_Q4_K = 5, RS_Q6_K = 6 };

enum RsKind {
  RS_EMBEDDING = 0,
  RS_NORM = 1,
  RS_LINEAR = 2,
  RS_ROPE_APPEND = 3,
  RS_ATTENTION = 4,
  RS_SILU_MUL = 5,
  RS_TOP_K = 6,
  RS_LINEAR_TOP_K = 7,
};

enum RsRows { RS_ALL_TOKENS = 0, RS_WANTED_ROWS = 1 };

enum RsStatus { RS_OK = 0, RS_NO_MEMORY = 1, RS_BAD_OPERATION = 2 };

// One flattened forward pass: `tokens` rows that belong to `requests` requests in order.
typedef struct RsBatch {
  int64_t tokens;
  int64_t requests;
  int64_t wanted;
  int64_t table_stride;
  const int32_t* token_ids;    // [tokens]
  const int32_t* positions;    // [tokens] absolute
  const int32_t* slots;        // [tokens] block id * block_size + offset, where the token's K and V go
  const int32_t* query_start;  // [requests + 1] first row of each request
  const int32_t* seq_lens;     // [requests] tokens of each request after this step
  const int32_t* tables;       // [requests, table_stride] block ids
  const int32_t* wanted_rows;  // [wanted] rows whose logits are wanted
} RsBatch;

typedef struct RsOp {
  int32_t kind;  // RsKind
  int32_t rows;  // RsRows
  const void* params;
} RsOp;

// out[row] = table[token id]. `table` is a weight matrix [vocab, width] in any format, so that a tied head is kept
// once.
typedef struct RsEmbedding {
  const void* table;
  void* out;
  int32_t format;
  int32_t out_type;
  int64_t vocab;
  int64_t width;
  int64_t out_stride;
} RsEmbedding;

// h = x + delta (x alone where delta is null), rounded to x's type; residual = h where residual is not null (may be x
// itself); out = h / sqrt(mean(h^2) + eps) * weight. With RS_WANTED_ROWS row i reads x[wanted_rows[i]] and
// delta[wanted_rows[i]].
typedef struct RsNorm {
  const void* x;
  const void* delta;
  void* residual;
  const float* weight;  // [width]
  void* out;
  int32_t x_type;  // of x, delta and residual
  int32_t out_type;
  int64_t width;
  int64_t x_stride;
  int64_t delta_stride;
  int64_t residual_stride;
  int64_t out_stride;
  float eps;
} RsNorm;

// out[row, n] = y[row, n] = sum_k x[row, k] * weight[n, k] + bias[n], or, where `gated`, silu(y[row, n]) *
// y[row, out_features + n]: then weight and bias are of 2 out_features, out_features is a multiple of 32, and the panels
// of the weight's halves stand in turns
typedef struct RsLinear {
  const void* weight;
  const float* bias;  // [out_features] or null
  const void* x;
  void* out;
  int32_t format;  // RsFormat; dense formats want x of their own type
  int32_t x_type;
  int32_t out_type;
  int32_t gated;
  int64_t in_features;
  int64_t out_features;
  int64_t x_stride;
  int64_t out_stride;
} RsLinear;

// Rotates q and k by halves (x0, x1 -> x0 cos - x1 sin, x1 cos + x0 sin with x1 half a head away), after RMSNorm over
// each head where q_norm and k_norm are given; q goes to q_out, k and v to their slots of the paged cache (layout in
// rope_append.hpp).
typedef struct RsRopeAppend {
  const void* qkv;  // [rows, (heads + 2 kv_heads) * head_dim]
  void* q_out;      // [rows, heads * head_dim], of q_type
  void* k_cache;
  void* v_cache;
  const float* cos_table;  // [positions, head_dim / 2]
  const float* sin_table;
  const float* q_norm;  // [head_dim] or null
  const float* k_norm;  // [head_dim] or null
  int32_t qkv_type;
  int32_t q_type;
  int32_t kv_type;  // q_type or RS_INT8
  int32_t heads;
  int32_t kv_heads;
  int32_t head_dim;
  float eps;
  int32_t reserved;
  int64_t qkv_stride;
  int64_t q_stride;
} RsRopeAppend;

// softmax(scale * q k^T) v over each row's own paged past; window 0 sees all, else positions (p - window, p]; softcap 0
// is off.
typedef struct RsAttention {
  const void* q;  // [rows, heads * head_dim], of q_type
  const void* k_cache;
  const void* v_cache;
  void* out;  // [rows, heads * head_dim], of q_type
  int32_t q_type;
  int32_t kv_type;  // q_type or RS_INT8
  int32_t heads;
  int32_t kv_heads;
  int32_t head_dim;
  int32_t block_size;  // a multiple of 16
  int32_t window;
  float scale;
  float softcap;
  int32_t reserved;
  int64_t q_stride;
  int64_t out_stride;
} RsAttention;

// out = silu(x[:, :width]) * x[:, width:]; out may be x where both are of one type
typedef struct RsSiluMul {
  const void* x;  // [rows, 2 * width]
  void* out;
  int32_t x_type;
  int32_t out_type;
  int64_t width;
  int64_t x_stride;
  int64_t out_stride;
} RsSiluMul;

// The k largest logits of each row, largest first, ties by the lowest id. A row that holds NaN or +inf gives id -1
// everywhere.
typedef struct RsTopK {
  const float* logits;  // [rows, vocab]
  int32_t* ids;         // [rows, k]
  float* values;        // [rows, k]
  int64_t vocab;
  int64_t k;
  int64_t stride;
} RsTopK;

// The k largest outputs of each row of a linear, largest first, ties by the lowest feature, without writing the outputs
// to memory: the same bits as RS_LINEAR would give. -inf and +inf are values like others; a row that holds a NaN gives
// id -1 and NaN everywhere. `linear.out` and `linear.out_type` are not used.
typedef struct RsLinearTopK {
  RsLinear linear;
  int32_t* ids;   // [rows, k]
  float* values;  // [rows, k]
  int64_t k;      // 1 to out_features
} RsLinearTopK;

typedef struct RsCounters {
  int64_t kv_bytes_read;   // KV bytes brought in by attention; a block that one task uses for many rows counts once
  int64_t kv_bytes_asked;  // the same without sharing: what each request alone would have brought in
  int64_t attention_tasks;
  int64_t operations_by_rows;  // operations that rows were taken through by themselves
} RsCounters;

RS_EXPORT int32_t rs_abi_version(void);
// Chooses the instruction set: "v4" (AVX-512 BF16 and VNNI), "v3" (AVX2, FMA), "generic", or "auto". Returns the name
// of what runs now, or null if this CPU cannot run the one asked for.
RS_EXPORT const char* rs_set_isa(const char* name);
RS_EXPORT const char* rs_isa(void);
// Number of threads that work on a call, the caller's own included; 1 starts none.
RS_EXPORT int32_t rs_set_threads(int32_t threads);
RS_EXPORT int32_t rs_threads(void);
// Runs the operations in order, each row of a step by itself where that is faster. Calls from several threads are taken
// one after the other.
RS_EXPORT int32_t rs_run(const RsOp* ops, int64_t count, const RsBatch* batch);
RS_EXPORT void rs_counters(RsCounters* out);
RS_EXPORT void rs_reset_counters(void);

#ifdef __cplusplus
}
#endif
