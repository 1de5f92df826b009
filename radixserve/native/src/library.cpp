// The entry points of abi.h: choosing the instruction set and running a list of operations.
#include <pthread.h>
#include <string.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <vector>

#include "abi.h"
#include "ahead.h"
#include "attention_plan.h"
#include "by_rows.h"
#include "kernels.h"
#include "pool.h"

namespace radixserve {

AheadList ahead_list;

namespace {

#if defined(__x86_64__)
const Kernels* supported_v4() {
  __builtin_cpu_init();
  bool all = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
             __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
             __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512bf16");
  return all ? kernels_v4() : nullptr;
}
const Kernels* supported_v3() {
  __builtin_cpu_init();
  bool all = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
  return all ? kernels_v3() : nullptr;
}
#else
const Kernels* supported_v4() { return nullptr; }
const Kernels* supported_v3() { return nullptr; }
#endif

const Kernels* best_kernels() {
  if (const Kernels* kernels = supported_v4()) return kernels;
  if (const Kernels* kernels = supported_v3()) return kernels;
  return kernels_generic();
}

// One caller at a time; a child process starts with an open lock.
pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

struct Locked {
  Locked() {
    static bool handler = (pthread_atfork(nullptr, nullptr, [] { pthread_mutex_init(&lock, nullptr); }), true);
    (void)handler;
    pthread_mutex_lock(&lock);
  }
  ~Locked() { pthread_mutex_unlock(&lock); }
};

const Kernels* kernels = best_kernels();
RsCounters counters;
std::vector<std::unique_ptr<AttentionPlan>> plans;  // kept for their memory
size_t plans_of_this_run;

// Tasks of equal length that each thread should have: with so many, none waits long for another.
constexpr int32_t kTasksEach = 6;

// What is fetched for one attention before it begins: more would push itself out of the caches again.
constexpr int64_t kFetchedAhead = 8 << 20;

// Tokens of a tile: about 48 query rows of one KV head.
int32_t tile_tokens(const RsAttention& op) {
  int32_t group = op.heads / op.kv_heads;
  return group >= 48 ? 1 : 48 / group;
}

// Bytes of a sub-block in one of the caches of a layer.
int64_t sub_bytes(const RsAttention& op) { return op.kv_heads * kv_head_bytes(op.kv_type, op.head_dim); }

void count(const RsAttention& op, const AttentionPlan& plan, const RsBatch& batch) {
  int64_t read = 0, asked = 0;
  for (const Run& run : plan.runs) read += run.end - run.begin;
  for (const Member& member : plan.members) asked += member.end - member.begin;
  for (const Tile& tile : plan.tiles) {
    int32_t position = batch.seq_lens[tile.request] - (batch.query_start[tile.request + 1] - tile.first_token);
    int64_t subs = (position + tile.tokens - 1) / kSub + 1 - first_visible(position, plan.window) / kSub;
    read += subs;
    asked += subs;
  }
  counters.kv_bytes_read += read * 2 * sub_bytes(op);
  counters.kv_bytes_asked += asked * 2 * sub_bytes(op);
  counters.attention_tasks += int64_t(plan.groups.size() + plan.tiles.size()) * op.kv_heads;
}

// The plan of this step for the operation's window; layers share it.
const AttentionPlan& plan_for(const RsAttention& op, const RsBatch& batch) {
  int32_t tokens = tile_tokens(op);
  for (size_t i = 0; i < plans_of_this_run; ++i)
    if (plans[i]->window == op.window && plans[i]->tile_tokens == tokens && plans[i]->block_size == op.block_size)
      return *plans[i];
  if (plans.size() == plans_of_this_run) plans.push_back(std::make_unique<AttentionPlan>());
  AttentionPlan& plan = *plans[plans_of_this_run++];
  int32_t heads = op.kv_heads, wanted = thread_count() == 1 ? 1 : (kTasksEach * thread_count() + heads - 1) / heads;
  make_attention_plan(plan, batch, op.window, op.block_size, tokens, wanted, kFetchedAhead / sub_bytes(op));
  return plan;
}

// Lets the linears of ops [0, count) fetch what the first attention among them will read.
void look_ahead(const RsOp* ops, int64_t count, const RsBatch& batch) {
  ahead_list.parts.clear();
  for (int64_t i = 0; i < count && batch.tokens; ++i) {
    if (ops[i].kind != RS_ATTENTION) continue;
    const RsAttention& op = *static_cast<const RsAttention*>(ops[i].params);
    const AttentionPlan& plan = plan_for(op, batch);
    ahead_list.caches[0] = static_cast<const char*>(op.k_cache);
    ahead_list.caches[1] = static_cast<const char*>(op.v_cache);
    ahead_list.subs = plan.ahead.data();
    ahead_list.bytes = sub_bytes(op);
    int64_t threads = thread_count(), lines = int64_t(plan.ahead.size()) * ahead_list.lines();
    for (int64_t t = 0; t < threads; ++t)
      ahead_list.parts.push_back({lines * t / threads, lines * (t + 1) / threads});
    return;
  }
}

RsStatus run_one(const RsOp& op, const RsBatch& batch) {
  Rows rows = op.rows == RS_WANTED_ROWS ? Rows{batch.wanted, batch.wanted_rows} : Rows{batch.tokens, nullptr};
  if (rows.count == 0) return RS_OK;
  bool done = false;
  switch (op.kind) {
    case RS_EMBEDDING: done = kernels->embedding(*static_cast<const RsEmbedding*>(op.params), batch, rows); break;
    case RS_NORM: done = kernels->norm(*static_cast<const RsNorm*>(op.params), rows); break;
    case RS_LINEAR: {
      const RsLinear& linear = *static_cast<const RsLinear*>(op.params);
      rows.index = nullptr;
      done = linear.gated                     ? kernels->linear_gated(linear, rows)
             : linear.format <= RS_DENSE_BF16 ? kernels->linear_dense(linear, rows)
                                              : kernels->linear_quant(linear, rows);
      break;
    }
    case RS_ROPE_APPEND: done = kernels->rope_append(*static_cast<const RsRopeAppend*>(op.params), batch); break;
    case RS_ATTENTION: {
      const RsAttention& attention = *static_cast<const RsAttention*>(op.params);
      const AttentionPlan& plan = plan_for(attention, batch);
      count(attention, plan, batch);
      done = kernels->attention(attention, batch, plan);
      break;
    }
    case RS_SILU_MUL:
      rows.index = nullptr;
      done = kernels->silu_mul(*static_cast<const RsSiluMul*>(op.params), rows);
      break;
    case RS_LINEAR_TOP_K:
      rows.index = nullptr;
      done = kernels->linear_top_k(*static_cast<const RsLinearTopK*>(op.params), rows);
      break;
    case RS_TOP_K: done = kernels->top_k(*static_cast<const RsTopK*>(op.params), rows); break;
    default: return RS_BAD_OPERATION;
  }
  return done ? RS_OK : RS_NO_MEMORY;
}

// Takes rows through all of ops [0, count), which are row-wise.
RsStatus run_by_rows(const RsOp* ops, int64_t count, const RsBatch& batch) {
  struct Job {
    const RsOp* ops;
    int64_t count, parts;
    const RsBatch* batch;
    std::atomic<RsStatus> status;
  } job{ops, count, row_parts(batch), &batch, {RS_OK}};
  parallel(
      job.parts,
      [](void* context, int64_t part, int) {
        Job& job = *static_cast<Job*>(context);
        int64_t rows = job.batch->tokens, first = rows * part / job.parts, end = rows * (part + 1) / job.parts;
        for (int64_t i = 0; i < job.count; ++i) {
          RowsOfOp slice(job.ops[i], *job.batch, first, end - first);
          if (RsStatus status = run_one(slice.op(), slice.batch())) {
            job.status = status;
            return;
          }
        }
      },
      &job);
  return job.status;
}

}  // namespace
}  // namespace radixserve

using namespace radixserve;

int32_t rs_abi_version(void) { return RS_ABI_VERSION; }

const char* rs_set_isa(const char* name) {
  Locked locked;
  const Kernels* chosen = !strcmp(name, "v4")        ? supported_v4()
                          : !strcmp(name, "v3")      ? supported_v3()
                          : !strcmp(name, "generic") ? kernels_generic()
                          : !strcmp(name, "auto")    ? best_kernels()
                                                     : nullptr;
  if (!chosen) return nullptr;
  kernels = chosen;
  return kernels->name;
}

const char* rs_isa(void) {
  Locked locked;
  return kernels->name;
}

int32_t rs_set_threads(int32_t threads) {
  Locked locked;
  set_thread_count(threads);
  return thread_count();
}

int32_t rs_threads(void) {
  Locked locked;
  return thread_count();
}

int32_t rs_run(const RsOp* ops, int64_t count, const RsBatch* batch) {
  Locked locked;
  plans_of_this_run = 0;
  try {
    look_ahead(ops, count, *batch);
    for (int64_t i = 0; i < count;) {
      RowWiseRun run = row_wise_run(ops + i, count - i, *batch);
      if (run.worth_it) {
        if (RsStatus status = run_by_rows(ops + i, run.count, *batch)) return status;
        counters.operations_by_rows += run.count;
        i += run.count;
        continue;
      }
      // What is not worth it for the whole run is not for its end.
      for (int64_t end = i + std::max<int64_t>(1, run.count); i < end; ++i)
        if (RsStatus status = run_one(ops[i], *batch)) return status;
      if (ops[i - 1].kind == RS_ATTENTION) look_ahead(ops + i, count - i, *batch);
    }
  } catch (const std::bad_alloc&) {
    return RS_NO_MEMORY;
  }
  return RS_OK;
}

void rs_counters(RsCounters* out) {
  Locked locked;
  *out = counters;
}

void rs_reset_counters(void) {
  Locked locked;
  counters = {};
}
