// Paged attention that reads a shared prefix once: softmax(scale q k^T) v over chunks of 256 tokens (attention_plan.h),
// with the running maximum and sum of Milakov & Gimelshein 2018.
//
// For a chunk and one KV head a pass takes some query rows (tokens x heads of the group) and does
//
//   scores  [rows][256]       q . k, a chain over the head's dims for each (row, token)
//   softmax [rows]            m = max, p = 2^(s - m), l = sum p; masked tokens are p = 0 exactly
//   partial [rows][head_dim]  sum p v, a chain over the chunk's tokens for each (row, dim)
//
// Runs of blocks that several requests share are met once by all their rows in the first and third step; an accumulator
// that goes through memory between two runs keeps its bits. While such a run is worked on the next is on its way from
// memory. A token that a row does not see adds p v = 0; only V that was never written (it may be NaN) is replaced by
// zeros. So (m, l, partial) of a row and a chunk do not depend on company, tile, run or thread.
//
// In an int8 cache (kv_quant.hpp) k = s_k K and v = s_v V with integers K, V, and q = s_q Q with Q of 16 bits. Then
//
//   scores  = s_q s_k (Q . K)     partial = s_w sum W V     where p s_v = s_w W, W of 16 bits, over a row's whole chunk
//
// with exact sums of integers.
#pragma once
#include "attention_softmax.hpp"

namespace radixserve {
namespace RS_NAMESPACE {

// One layer's attention with what all its tasks need.
template <class A>
struct Attention {
  using Activation = typename A::Activation;
  using Cached = typename A::Cached;
  const RsAttention& op;
  const RsBatch& batch;
  const AttentionPlan& plan;
  float* partials;   // [plan.partials][heads][head_dim]
  float* summaries;  // [plan.partials][heads][2]: maximum, sum
  int64_t pass_rows;
  int64_t head_bytes;  // of a sub-block in the cache

  int64_t group_size() const { return op.heads / op.kv_heads; }

  const Cached* sub_block(const void* cache, int32_t request, int64_t sub, int64_t kv_head) const {
    int64_t place = physical_sub(batch.tables + request * batch.table_stride, sub, op.block_size / kSub);
    const void* head = static_cast<const char*>(cache) + (place * op.kv_heads + kv_head) * head_bytes;
    return static_cast<const Cached*>(head);
  }

  // Puts a token's query heads and what it sees of the chunk that starts at `start` into rows [row, row + group_size).
  void add_query(PassMemory<A>& memory, int64_t row, int32_t token, int64_t kv_head) const {
    int64_t g = group_size(), d = op.head_dim;
    const Activation* q = static_cast<const Activation*>(op.q) + token * op.q_stride + kv_head * g * d;
    if constexpr (A::kScaled) {
      for (int64_t h = 0; h < g; ++h) memory.q_scale[row + h] = quantize_query(q + h * d, d, memory.q + (row + h) * d);
    } else {
      __builtin_memcpy(memory.q + row * d, q, size_t(g * d) * sizeof(Activation));
    }
  }
  void set_visible(PassMemory<A>& memory, int64_t row, int32_t position, int32_t start) const {
    for (int64_t r = row; r < row + group_size(); ++r) {
      memory.low[r] = first_visible(position, op.window) - start;
      memory.high[r] = position + 1 - start;
    }
  }

  // Sub-blocks [begin, end) of a request's chunk in one of the caches: what to prefetch behind a run.
  struct Behind {
    const void* cache;
    int32_t request, begin, end;
  };

  // Pointers to the sub-blocks of a run, and to kBehind that come after it.
  void list_run(const void* cache, int32_t request, int32_t chunk, int32_t begin, int32_t end, const Behind& behind,
                int64_t kv_head, const Cached** subs) const {
    for (int32_t s = begin; s < end; ++s)
      *subs++ = sub_block(cache, request, int64_t(chunk) * kChunkSubs + s, kv_head);
    for (int32_t s = 0; s < kBehind; ++s)
      *subs++ = sub_block(behind.cache, behind.request,
                          int64_t(chunk) * kChunkSubs + least(behind.begin + s, behind.end - 1), kv_head);
  }

  void score_run(PassMemory<A>& memory, int64_t first, int64_t last, int32_t request, int32_t chunk, int32_t begin,
                 int32_t end, const Behind& behind, int64_t kv_head) const {
    const Cached* k[kChunkSubs + kBehind];
    list_run(op.k_cache, request, chunk, begin, end, behind, kv_head, k);
    if constexpr (A::kScaled) {
      if (last - first > kAttentionRows) {
        const int16_t* wide[kChunkSubs + kBehind];
        widen_run(memory, k, end - begin, wide);
        return score_with<Int16Kv<Activation>>(memory, first, last, wide, begin, end);
      }
    }
    score_with<A>(memory, first, last, k, begin, end);
  }

  template <class B>
  void score_with(PassMemory<A>& memory, int64_t first, int64_t last, const typename B::Cached* const* k, int32_t begin,
                  int32_t end) const {
    for (int64_t row = first; row < last; row += kAttentionRows)
      score_rows<B, kAttentionRows>(int(least<int64_t>(kAttentionRows, last - row)), memory.q + row * op.head_dim, k,
                                    end - begin, op.head_dim, memory.scores + row * kChunk + begin * kSub);
  }

  // The run's integers as int16, so that many rows do not each widen them.
  void widen_run(PassMemory<A>& memory, const int8_t* const* subs, int32_t count, const int16_t** wide) const {
    for (int32_t s = 0; s < count; ++s) {
      int16_t* place = memory.wide + s * kSub * op.head_dim;
      widen(subs[s], op.head_dim, place);
      wide[s] = place;
    }
    for (int32_t s = count; s < count + kBehind; ++s) wide[s] = memory.wide;
  }

  void weigh_run(PassMemory<A>& memory, int64_t first, int64_t last, int32_t request, int32_t chunk, int32_t begin,
                 int32_t end, int32_t written, const Behind& behind, int64_t kv_head) const {
    const Cached* v[kChunkSubs + kBehind];
    list_run(op.v_cache, request, chunk, begin, end, behind, kv_head, v);
    // Integers that were not written are numbers all the same, and their weight is 0.
    int32_t valid = written - (end - 1) * kSub;
    if (!A::kScaled && valid < kSub) v[end - 1 - begin] = without_unwritten(memory.tail, v[end - 1 - begin], valid);
    if constexpr (A::kScaled) {
      if (last - first > kAttentionRows) {
        const int16_t* wide[kChunkSubs + kBehind];
        widen_run(memory, v, end - begin, wide);
        return weigh_with<Int16Kv<Activation>>(memory, first, last, wide, begin, end);
      }
    }
    weigh_with<A>(memory, first, last, v, begin, end);
  }

  template <class B>
  void weigh_with(PassMemory<A>& memory, int64_t first, int64_t last, const typename B::Cached* const* v, int32_t begin,
                  int32_t end) const {
    for (int64_t row = first; row < last; row += kAttentionRows)
      weigh_rows<B, kAttentionRows>(int(least<int64_t>(kAttentionRows, last - row)),
                                    memory.probabilities + row * kChunk + begin * kSub, v, end - begin, op.head_dim,
                                    memory.partial + row * op.head_dim);
  }

  const Cached* without_unwritten(Cached* copy, const Cached* v, int32_t valid) const {
    int64_t d = op.head_dim;
    for (int64_t t = 0; t < kSub; ++t)
      for (int64_t i = 0; i < d; ++i) {
        int64_t place = v_offset(Cached{}, i, t, d);
        copy[place] = t < valid ? v[place] : Cached{};
      }
    return copy;
  }

  // The scales of sub-blocks [begin, end) of a request, for softmax_row; those of V infinite where V is not finite,
  // since a maximum keeps that.
  void load_scales(PassMemory<A>& memory, int32_t request, int32_t chunk, int32_t begin, int32_t end,
                   int64_t kv_head) const {
    if constexpr (A::kScaled)
      for (int32_t s = begin; s < end; ++s) {
        int64_t sub = int64_t(chunk) * kChunkSubs + s;
        F k = load(kv_scales(sub_block(op.k_cache, request, sub, kv_head), op.head_dim));
        F v = load(kv_scales(sub_block(op.v_cache, request, sub, kv_head), op.head_dim));
        store(memory.k_scales + s * kSub, k);
        store(memory.v_scales + s * kSub, min(v, set1(-kNegativeInfinity)));
      }
  }

  void finish(const float* state, float sum, int64_t token, int64_t head) const {
    Activation* out = static_cast<Activation*>(op.out) + token * op.out_stride + head * op.head_dim;
    for (int64_t i = 0; i < op.head_dim; i += kLanes) store(out + i, div(load(state + i), set1(sum)));
  }

  // Members [first, last) of a group, few enough for one pass.
  void group_pass(PassMemory<A>& memory, const Group& group, int32_t first, int32_t last, int64_t kv_head) const {
    const Member* members = plan.members.data() + group.first_member;
    int64_t g = group_size(), d = op.head_dim, row0 = members[first].first_row * g;
    int64_t rows = (last == group.last_member - group.first_member ? group.tokens : members[last].first_row) * g - row0;
    auto row_of = [&](int32_t m) { return m == last ? rows : members[m].first_row * g - row0; };
    for (int32_t m = first; m < last; ++m)
      for (int32_t t = 0; t < members[m].tokens; ++t) {
        int32_t token = members[m].first_token + t;
        add_query(memory, row_of(m) + t * g, token, kv_head);
        set_visible(memory, row_of(m) + t * g, batch.seq_lens[members[m].request] - members[m].tokens + t,
                    group.chunk * kChunk);
      }
    // The runs that these members meet, each with the one after it; behind the last K come the first V.
    auto meets = [&](int32_t r) { return plan.runs[size_t(r)].first < last && plan.runs[size_t(r)].last > first; };
    auto next_run = [&](int32_t r) {
      while (r < group.last_run && !meets(r)) ++r;
      return r;
    };
    auto behind = [&](const void* cache, int32_t r) {
      const Run& run = plan.runs[size_t(r)];
      return Behind{cache, members[most(run.first, first)].request, run.begin, run.end};
    };
    int32_t first_run = next_run(group.first_run);
    auto for_runs = [&](auto&& body) {
      for (int32_t r = first_run, next; r < group.last_run; r = next) {
        next = next_run(r + 1);
        const Run& run = plan.runs[size_t(r)];
        int32_t from = most(run.first, first), to = least(run.last, last);
        body(run, row_of(from), row_of(to), members[from].request, r, next);
      }
    };
    for_runs([&](const Run& run, int64_t from, int64_t to, int32_t request, int32_t, int32_t next) {
      Behind then = next < group.last_run ? behind(op.k_cache, next) : behind(op.v_cache, first_run);
      score_run(memory, from, to, request, group.chunk, run.begin, run.end, then, kv_head);
    });
    for (int32_t m = first; m < last; ++m) {
      load_scales(memory, members[m].request, group.chunk, members[m].begin, members[m].end, kv_head);
      for (int64_t row = row_of(m); row < row_of(m + 1); ++row)
        softmax_row(op, memory, row, members[m].begin, members[m].end);
    }
    __builtin_memset(memory.partial, 0, size_t(rows * d) * 4);
    for_runs([&](const Run& run, int64_t from, int64_t to, int32_t request, int32_t r, int32_t next) {
      Behind then = behind(op.v_cache, next < group.last_run ? next : r);
      weigh_run(memory, from, to, request, group.chunk, run.begin, run.end, run.written, then, kv_head);
    });
    scale_partials(memory, rows, d);
    for (int32_t m = first; m < last; ++m)
      for (int32_t t = 0; t < members[m].tokens; ++t) {
        int32_t token = members[m].first_token + t;
        int64_t place = (plan.first_partial[size_t(token)] + group.chunk - plan.first_chunk[size_t(token)]) * op.heads +
                        kv_head * g;
        int64_t row = row_of(m) + t * g;
        __builtin_memcpy(partials + place * d, memory.partial + row * d, size_t(g * d) * 4);
        for (int64_t h = 0; h < g; ++h) {
          summaries[(place + h) * 2] = memory.maximum[row + h];
          summaries[(place + h) * 2 + 1] = memory.sum[row + h];
        }
      }
  }

  void group_task(const Group& group, int64_t kv_head, int worker) const {
    PassMemory<A> memory(own_scratch(SCRATCH_PASSES, worker), pass_rows, op.head_dim);
    const Member* members = plan.members.data() + group.first_member;
    int32_t count = group.last_member - group.first_member;
    for (int32_t first = 0; first < count;) {
      int32_t last = first;
      int64_t rows = 0;
      while (last < count && (last == first || rows + members[last].tokens * group_size() <= pass_rows))
        rows += members[last++].tokens * group_size();
      group_pass(memory, group, first, last, kv_head);
      first = last;
    }
  }

  void tile_task(const Tile& tile, int64_t kv_head, int worker) const {
    PassMemory<A> memory(own_scratch(SCRATCH_PASSES, worker), pass_rows, op.head_dim);
    int64_t g = group_size(), d = op.head_dim, rows = tile.tokens * g;
    int32_t length = batch.seq_lens[tile.request];
    int32_t position = length - (batch.query_start[tile.request + 1] - tile.first_token),
            last = position + tile.tokens - 1;
    for (int32_t t = 0; t < tile.tokens; ++t) add_query(memory, t * g, tile.first_token + t, kv_head);
    for (int64_t r = 0; r < rows; ++r) memory.state_sum[r] = 0;
    int32_t visible = first_visible(position, op.window);
    for (int32_t chunk = visible / kChunk; chunk <= last / kChunk; ++chunk) {
      int32_t start = chunk * kChunk;
      int32_t begin = most(visible - start, 0) / kSub, end = least(last - start, kChunk - 1) / kSub + 1;
      for (int32_t t = 0; t < tile.tokens; ++t) set_visible(memory, t * g, position + t, start);
      Behind then{op.v_cache, tile.request, begin, end};
      score_run(memory, 0, rows, tile.request, chunk, begin, end, then, kv_head);
      load_scales(memory, tile.request, chunk, begin, end, kv_head);
      for (int64_t r = 0; r < rows; ++r) softmax_row(op, memory, r, begin, end);
      __builtin_memset(memory.partial, 0, size_t(rows * d) * 4);
      weigh_run(memory, 0, rows, tile.request, chunk, begin, end, least(length - start, kChunk), then, kv_head);
      scale_partials(memory, rows, d);
      for (int64_t r = 0; r < rows; ++r)
        merge(memory.state + r * d, memory.state_maximum + r, memory.state_sum + r, memory.partial + r * d,
              memory.maximum[r], memory.sum[r], d);
    }
    for (int64_t r = 0; r < rows; ++r)
      finish(memory.state + r * d, memory.state_sum[r], tile.first_token + r / g, kv_head * g + r % g);
  }

  void merge_token(int32_t token) const {
    float state[kMaxHeadDim];
    for (int64_t head = 0; head < op.heads; ++head) {
      float maximum = 0, sum = 0;
      for (int64_t c = 0; c < plan.chunk_count[size_t(token)]; ++c) {
        int64_t place = (plan.first_partial[size_t(token)] + c) * op.heads + head;
        merge(state, &maximum, &sum, partials + place * op.head_dim, summaries[place * 2], summaries[place * 2 + 1],
              op.head_dim);
      }
      finish(state, sum, token, head);
    }
  }

  static void task(void* context, int64_t chunk, int worker) {
    const Attention& self = *static_cast<const Attention*>(context);
    int64_t item = chunk / self.op.kv_heads, kv_head = chunk % self.op.kv_heads,
            tiles = int64_t(self.plan.tiles.size());
    if (item < tiles)
      self.tile_task(self.plan.tiles[size_t(item)], kv_head, worker);
    else
      self.group_task(self.plan.groups[size_t(item - tiles)], kv_head, worker);
  }
};

// Whether there is more to do than handing it out takes, some microseconds.
static bool worth_sharing(const RsAttention& op, const RsBatch& batch) {
  int64_t pairs = 0;
  for (int64_t r = 0; r < batch.requests; ++r)
    pairs += int64_t(batch.query_start[r + 1] - batch.query_start[r]) * batch.seq_lens[r];
  return pairs * op.heads * op.head_dim >= 1 << 16;
}

template <class A>
bool attention_typed(const RsAttention& op, const RsBatch& batch, const AttentionPlan& plan) {
  int64_t g = op.heads / op.kv_heads, d = op.head_dim, places = plan.partials * op.heads;
  int64_t pass_rows = most<int64_t>(kPassRows, g * most(kGroupTokens, plan.tile_tokens));
  if (!reserve_own_scratch(SCRATCH_PASSES, PassMemory<A>::bytes(pass_rows, d))) return false;
  float* memory = static_cast<float*>(shared_scratch(SCRATCH_PARTIALS, size_t(places * (d + 2) + 1) * 4));
  if (!memory) return false;
  Attention<A> work{op, batch, plan, memory, memory + places * d, pass_rows, kv_head_bytes(op.kv_type, d)};
  parallel(int64_t(plan.tiles.size() + plan.groups.size()) * op.kv_heads, Attention<A>::task, &work,
           worth_sharing(op, batch));
  for_rows(int64_t(plan.merged_tokens.size()), op.heads * d,
           [&](int64_t i) { work.merge_token(plan.merged_tokens[size_t(i)]); });
  return true;
}

bool attention(const RsAttention& op, const RsBatch& batch, const AttentionPlan& plan) {
  if (op.kv_type == RS_INT8)
    return op.q_type == RS_BF16 ? attention_typed<Int8Kv<bf16>>(op, batch, plan)
                                : attention_typed<Int8Kv<float>>(op, batch, plan);
  return op.q_type == RS_BF16 ? attention_typed<PlainKv<DenseBf16>>(op, batch, plan)
                              : attention_typed<PlainKv<DenseF32>>(op, batch, plan);
}

}  // namespace RS_NAMESPACE
}  // namespace radixserve
