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
// that goes through memory between two runs keeps its bits. A token that a row does not see adds p v = 0; only V that
// was never written (it may be NaN) is replaced by zeros. So (m, l, partial) of a row and a chunk do not depend on
// company, tile, run or thread.
#pragma once
#include "attention_pass.hpp"

namespace radixserve {
namespace RS_NAMESPACE {

// One layer's attention with what all its tasks need.
template <class A>
struct Attention {
  using E = typename A::Element;
  const RsAttention& op;
  const RsBatch& batch;
  const AttentionPlan& plan;
  float* partials;   // [plan.partials][heads][head_dim]
  float* summaries;  // [plan.partials][heads][2]: maximum, sum
  int64_t pass_rows;

  int64_t group_size() const { return op.heads / op.kv_heads; }

  const E* sub_block(const void* cache, int32_t request, int64_t sub, int64_t kv_head) const {
    int64_t place = physical_sub(batch.tables + request * batch.table_stride, sub, op.block_size / kSub);
    return static_cast<const E*>(cache) + (place * op.kv_heads + kv_head) * op.head_dim * kSub;
  }

  // Puts a token's query heads and what it sees of the chunk that starts at `start` into rows [row, row + group_size).
  void add_query(PassMemory<E>& memory, int64_t row, int32_t token, int64_t kv_head) const {
    const E* q = static_cast<const E*>(op.q) + token * op.q_stride + kv_head * group_size() * op.head_dim;
    __builtin_memcpy(memory.q + row * op.head_dim, q, size_t(group_size() * op.head_dim) * sizeof(E));
  }
  void set_visible(PassMemory<E>& memory, int64_t row, int32_t position, int32_t start) const {
    for (int64_t r = row; r < row + group_size(); ++r) {
      memory.low[r] = first_visible(position, op.window) - start;
      memory.high[r] = position + 1 - start;
    }
  }

  void score_run(PassMemory<E>& memory, int64_t first, int64_t last, int32_t request, int32_t chunk, int32_t begin,
                 int32_t end, int64_t kv_head) const {
    // Behind the run's K come its first V: they are needed next.
    const E* k[kChunkSubs + kWide];
    for (int32_t s = begin; s < end; ++s)
      k[s - begin] = sub_block(op.k_cache, request, int64_t(chunk) * kChunkSubs + s, kv_head);
    for (int32_t s = 0; s < kWide; ++s)
      k[end - begin + s] =
          sub_block(op.v_cache, request, int64_t(chunk) * kChunkSubs + least(begin + s, end - 1), kv_head);
    for (int64_t row = first; row < last; row += kAttentionRows)
      score_rows<A, kAttentionRows>(int(least<int64_t>(kAttentionRows, last - row)), memory.q + row * op.head_dim, k,
                                    end - begin, op.head_dim, memory.scores + row * kChunk + begin * kSub);
  }

  void weigh_run(PassMemory<E>& memory, int64_t first, int64_t last, int32_t request, int32_t chunk, int32_t begin,
                 int32_t end, int32_t written, int64_t kv_head) const {
    const E* v[kChunkSubs];
    for (int32_t s = begin; s < end; ++s)
      v[s - begin] = sub_block(op.v_cache, request, int64_t(chunk) * kChunkSubs + s, kv_head);
    int32_t valid = written - (end - 1) * kSub;
    if (valid < kSub) v[end - 1 - begin] = without_unwritten(memory.tail, v[end - 1 - begin], valid);
    for (int64_t row = first; row < last; row += kAttentionRows)
      weigh_rows<A, kAttentionRows>(int(least<int64_t>(kAttentionRows, last - row)),
                                    memory.probabilities + row * kChunk + begin * kSub, v, end - begin, op.head_dim,
                                    memory.partial + row * op.head_dim);
  }

  const E* without_unwritten(E* copy, const E* v, int32_t valid) const {
    int64_t d = op.head_dim;
    for (int64_t t = 0; t < kSub; ++t)
      for (int64_t i = 0; i < d; ++i) copy[v_offset(E{}, i, t, d)] = t < valid ? v[v_offset(E{}, i, t, d)] : E{};
    return copy;
  }

  // Turns a row's scores of sub-blocks [begin, end) into probabilities, in powers of two: p = 2^(c s - m) with c =
  // scale log2 e. Only the vectors at the ends of what the row sees are masked: for the others the mask would change
  // nothing.
  void softmax_row(PassMemory<E>& memory, int64_t row, int32_t begin, int32_t end) const {
    float* scores = memory.scores + row * kChunk;
    E* probabilities = memory.probabilities + row * kChunk;
    int32_t low = memory.low[row], high = memory.high[row], from = begin * kSub, to = end * kSub;
    if (op.softcap > 0) {
      F cap = set1(op.softcap), to_cap = set1(op.scale / op.softcap);
      for (int32_t t = from; t < to; t += kLanes) store(scores + t, mul(cap, tanh(mul(load(scores + t), to_cap))));
    }
    float c = op.softcap > 0 ? kLog2E : op.scale * kLog2E;
    F largest = set1(kNegativeInfinity);
    for (int32_t t = from; t < to; t += kLanes) {
      F s = load(scores + t);
      if (t < low || t + kLanes > high) s = keep_lanes(s, low - t, high - t, set1(kNegativeInfinity));
      largest = max(largest, s);
    }
    bool blind = most(low, from) >= least(high, to);  // sees nothing of this chunk
    float maximum = blind ? 0.0f : max_lanes(largest) * c;
    F sum = zero(), factor = set1(c), shift = set1(-maximum);
    for (int32_t t = from; t < to; t += kLanes) {
      F p = exp2(fma(load(scores + t), factor, shift));
      if (t < low || t + kLanes > high) p = keep_lanes(p, low - t, high - t, zero());
      sum = add(sum, p);
      store(probabilities + t, p);
    }
    memory.maximum[row] = maximum;
    memory.sum[row] = blind ? 0.0f : sum_lanes(sum);
  }

  // Adds a partial to a state. Sum 0 means nothing was seen (a visible maximum gives about 1).
  void merge(float* state, float* state_maximum, float* state_sum, const float* partial, float maximum,
             float sum) const {
    if (sum == 0) return;
    if (*state_sum == 0) {
      for (int64_t i = 0; i < op.head_dim; i += kLanes) store(state + i, load(partial + i));
      *state_maximum = maximum;
      *state_sum = sum;
      return;
    }
    float both = most(*state_maximum, maximum);
    float old_factor = exp2_scalar(*state_maximum - both), new_factor = exp2_scalar(maximum - both);
    F a = set1(old_factor), b = set1(new_factor);
    for (int64_t i = 0; i < op.head_dim; i += kLanes)
      store(state + i, fma(load(state + i), a, mul(load(partial + i), b)));
    *state_maximum = both;
    *state_sum = *state_sum * old_factor + sum * new_factor;
  }

  void finish(const float* state, float sum, int64_t token, int64_t head) const {
    E* out = static_cast<E*>(op.out) + token * op.out_stride + head * op.head_dim;
    for (int64_t i = 0; i < op.head_dim; i += kLanes) store(out + i, div(load(state + i), set1(sum)));
  }

  // Members [first, last) of a group, few enough for one pass.
  void group_pass(PassMemory<E>& memory, const Group& group, int32_t first, int32_t last, int64_t kv_head) const {
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
    auto for_runs = [&](auto&& body) {
      for (int32_t r = group.first_run; r < group.last_run; ++r) {
        const Run& run = plan.runs[size_t(r)];
        int32_t from = most(run.first, first), to = least(run.last, last);
        if (from < to) body(run, row_of(from), row_of(to), members[from].request);
      }
    };
    for_runs([&](const Run& run, int64_t from, int64_t to, int32_t request) {
      score_run(memory, from, to, request, group.chunk, run.begin, run.end, kv_head);
    });
    for (int32_t m = first; m < last; ++m)
      for (int64_t row = row_of(m); row < row_of(m + 1); ++row)
        softmax_row(memory, row, members[m].begin, members[m].end);
    __builtin_memset(memory.partial, 0, size_t(rows * d) * 4);
    for_runs([&](const Run& run, int64_t from, int64_t to, int32_t request) {
      weigh_run(memory, from, to, request, group.chunk, run.begin, run.end, run.written, kv_head);
    });
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
    PassMemory<E> memory(worker_scratch(worker), pass_rows, op.head_dim);
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
    PassMemory<E> memory(worker_scratch(worker), pass_rows, op.head_dim);
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
      score_run(memory, 0, rows, tile.request, chunk, begin, end, kv_head);
      for (int64_t r = 0; r < rows; ++r) softmax_row(memory, r, begin, end);
      __builtin_memset(memory.partial, 0, size_t(rows * d) * 4);
      weigh_run(memory, 0, rows, tile.request, chunk, begin, end, least(length - start, kChunk), kv_head);
      for (int64_t r = 0; r < rows; ++r)
        merge(memory.state + r * d, memory.state_maximum + r, memory.state_sum + r, memory.partial + r * d,
              memory.maximum[r], memory.sum[r]);
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
        merge(state, &maximum, &sum, partials + place * op.head_dim, summaries[place * 2], summaries[place * 2 + 1]);
      }
      finish(state, sum, token, head);
    }
  }

  static void task(void* context, int64_t chunk, int worker) {
    const Attention& self = *static_cast<const Attention*>(context);
    int64_t item = chunk / self.op.kv_heads, kv_head = chunk % self.op.kv_heads,
            tiles = int64_t(self.plan.tiles.size());
    // The last tiles of a prompt see most: they go first.
    if (item < tiles)
      self.tile_task(self.plan.tiles[size_t(tiles - 1 - item)], kv_head, worker);
    else
      self.group_task(self.plan.groups[size_t(item - tiles)], kv_head, worker);
  }
};

template <class A>
bool attention_typed(const RsAttention& op, const RsBatch& batch, const AttentionPlan& plan) {
  int64_t g = op.heads / op.kv_heads, d = op.head_dim, places = plan.partials * op.heads;
  int64_t pass_rows = most<int64_t>(kPassRows, g * most(kGroupTokens, plan.tile_tokens));
  if (!reserve_worker_scratch(PassMemory<typename A::Element>::bytes(pass_rows, d))) return false;
  float* memory = static_cast<float*>(shared_scratch(SCRATCH_PARTIALS, size_t(places * (d + 2) + 1) * 4));
  if (!memory) return false;
  Attention<A> work{op, batch, plan, memory, memory + places * d, pass_rows};
  parallel(int64_t(plan.tiles.size() + plan.groups.size()) * op.kv_heads, Attention<A>::task, &work);
  for_rows(int64_t(plan.merged_tokens.size()), op.heads * d,
           [&](int64_t i) { work.merge_token(plan.merged_tokens[size_t(i)]); });
  return true;
}

bool attention(const RsAttention& op, const RsBatch& batch, const AttentionPlan& plan) {
  return op.kv_type == RS_BF16 ? attention_typed<DenseBf16>(op, batch, plan)
                               : attention_typed<DenseF32>(op, batch, plan);
}

}  // namespace RS_NAMESPACE
}  // namespace radixserve
