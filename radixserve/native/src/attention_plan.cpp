#include "attention_plan.h"

#include <algorithm>
#include <utility>

namespace radixserve {
namespace {

// To read a sub-block takes as long as work on it for so many tokens.
constexpr int64_t kReading = 4;
// A group is cut where at most one part in so many of what a request reads is read for the one before it, too.
constexpr int32_t kLittleInCommon = 5;
// A step of more tokens is bound by arithmetic whatever its attention reads.
constexpr int64_t kAheadTokens = 64;

class Planner {
 public:
  Planner(AttentionPlan& plan, const RsBatch& batch, int32_t window, int32_t block_size)
      : plan_(plan),
        batch_(batch),
        window_(window),
        subs_per_block_(block_size / kSub),
        alone_(size_t(batch.requests)) {}

  void plan(int32_t tile_tokens, int64_t tasks_wanted, int64_t most_ahead) {
    int64_t chunks = 0;
    for (int64_t r = 0; r < batch_.requests; ++r)
      chunks = std::max<int64_t>(chunks, (batch_.seq_lens[r] + kChunk - 1) / kChunk);
    by_chunk_.resize(size_t(chunks));
    for (int32_t r = 0; r < batch_.requests; ++r) {
      alone_[size_t(r)] = tokens_of(r) > 0;
      if (alone_[size_t(r)] && tokens_of(r) <= kGroupTokens) spread_over_chunks(r);
    }
    for (int32_t c = 0; c < chunks; ++c) sort_chunk(c);
    share_out_long_ones(tile_tokens, tasks_wanted);
    cut_into_tiles(tile_tokens);
    for (int32_t r = 0; r < batch_.requests; ++r)
      if (!alone_[size_t(r)]) place_partials(r);
    for (int32_t c = 0; c < chunks; ++c) find_groups(c);
    add_groups(tasks_wanted);
    if (batch_.tokens <= kAheadTokens) look_ahead(most_ahead);
  }

 private:
  int32_t tokens_of(int32_t request) const { return batch_.query_start[request + 1] - batch_.query_start[request]; }
  int32_t first_position(int32_t request) const { return batch_.seq_lens[request] - tokens_of(request); }

  int64_t sub_at(const Member& member, int32_t chunk, int32_t sub) const {
    return physical_sub(batch_.tables + member.request * batch_.table_stride, int64_t(chunk) * kChunkSubs + sub,
                        subs_per_block_);
  }

  // The last tiles of a prompt see most, so they go first. Then come requests of one tile in the order of the batch, which
  // tends to give those in its first half to the thread that has just added them to the cache.
  void cut_into_tiles(int32_t tile_tokens) {
    for (int32_t r = int32_t(batch_.requests) - 1; r >= 0; --r) {
      if (!alone_[size_t(r)] || tokens_of(r) <= tile_tokens) continue;
      for (int32_t tile = (tokens_of(r) - 1) / tile_tokens; tile >= 0; --tile) {
        int32_t first = tile * tile_tokens;
        plan_.tiles.push_back({r, batch_.query_start[r] + first, std::min(tile_tokens, tokens_of(r) - first)});
      }
    }
    for (int32_t r = 0; r < batch_.requests; ++r)
      if (alone_[size_t(r)] && tokens_of(r) <= tile_tokens)
        plan_.tiles.push_back({r, batch_.query_start[r], tokens_of(r)});
  }

  // [first, second) of the request's chunks that any of its tokens sees.
  std::pair<int32_t, int32_t> chunks_of(int32_t request) const {
    return {first_visible(first_position(request), window_) / kChunk, (batch_.seq_lens[request] + kChunk - 1) / kChunk};
  }

  void spread_over_chunks(int32_t request) {
    int32_t low = first_visible(first_position(request), window_), high = batch_.seq_lens[request];
    auto [begin, end] = chunks_of(request);
    for (int32_t c = begin; c < end; ++c) {
      int32_t start = c * kChunk;
      int32_t from = std::max(low - start, 0) / kSub, to = (std::min(high - start, kChunk) + kSub - 1) / kSub;
      by_chunk_[size_t(c)].push_back({request, batch_.query_start[request], tokens_of(request), from, to, 0});
    }
  }

  // Calls body(i, j) for all members [i, j) of a sorted chunk that begin with the same block.
  template <class Body>
  void for_groups(int32_t chunk, const Body& body) const {
    const std::vector<Member>& members = by_chunk_[size_t(chunk)];
    for (size_t i = 0; i < members.size();) {
      size_t j = i + 1;
      while (j < members.size() && members[j].begin == members[i].begin &&
             sub_at(members[j], chunk, members[j].begin) == sub_at(members[i], chunk, members[i].begin))
        ++j;
      body(i, j);
      i = j;
    }
  }

  // Sorts the chunk's members by where they begin and by their blocks, and finds who has company.
  void sort_chunk(int32_t chunk) {
    std::vector<Member>& members = by_chunk_[size_t(chunk)];
    auto before = [&](const Member& a, const Member& b) {
      if (a.begin != b.begin) return a.begin < b.begin;
      for (int32_t s = a.begin; s < a.end && s < b.end; ++s) {
        int64_t x = sub_at(a, chunk, s), y = sub_at(b, chunk, s);
        if (x != y) return x < y;
      }
      return a.end != b.end ? a.end < b.end : a.request < b.request;
    };
    std::sort(members.begin(), members.end(), before);
    for_groups(chunk, [&](size_t i, size_t j) {
      for (size_t m = i; j - i > 1 && m < j; ++m) alone_[size_t(members[m].request)] = false;
    });
  }

  // A request of few tokens that is longer than its part of the step's tasks has its chunks worked on by several
  // threads, and one that makes more than a tile reads them once for all its tokens, though nobody shares them.
  void share_out_long_ones(int32_t tile_tokens, int64_t tasks_wanted) {
    int64_t all = 0;
    for (int32_t r = 0; r < batch_.requests; ++r) all += pairs_of(r);
    for (int32_t r = 0; r < batch_.requests; ++r)
      if (tokens_of(r) <= kGroupTokens && (tokens_of(r) > tile_tokens || pairs_of(r) * tasks_wanted > all))
        alone_[size_t(r)] = false;
  }

  // Pairs of a query and a key.
  int64_t pairs_of(int32_t request) const {
    return int64_t(tokens_of(request)) *
           (batch_.seq_lens[request] - first_visible(first_position(request), window_));
  }

  void place_partials(int32_t request) {
    auto [begin, end] = chunks_of(request);
    for (int32_t t = batch_.query_start[request]; t < batch_.query_start[request + 1]; ++t) {
      plan_.merged_tokens.push_back(t);
      plan_.first_chunk[size_t(t)] = begin;
      plan_.chunk_count[size_t(t)] = end - begin;
      plan_.first_partial[size_t(t)] = int32_t(plan_.partials);
      plan_.partials += end - begin;
    }
  }

  // Members [from, to) of a chunk, which share the first block.
  struct Company {
    int32_t chunk;
    size_t from, to;
    int64_t work;
  };

  // Sub-blocks from the first on that two members have in common.
  int32_t common(const Member& a, const Member& b, int32_t chunk) const {
    int32_t sub = a.begin, end = std::min(a.end, b.end);
    while (sub < end && sub_at(a, chunk, sub) == sub_at(b, chunk, sub)) ++sub;
    return sub - a.begin;
  }

  // What a member adds to those before it, in sub-blocks that one token meets.
  static int64_t work_of(const Member& member, int32_t in_common) {
    int64_t length = member.end - member.begin;
    return member.tokens * length + kReading * (length - in_common);
  }

  void find_groups(int32_t chunk) {
    const std::vector<Member>& members = by_chunk_[size_t(chunk)];
    for_groups(chunk, [&](size_t i, size_t j) {
      if (alone_[size_t(members[i].request)]) return;
      Company company{chunk, i, j, 0};
      for (size_t m = i; m < j; ++m)
        company.work += work_of(members[m], m > i ? common(members[m - 1], members[m], chunk) : 0);
      companies_.push_back(company);
    });
  }

  int64_t work_of(const Tile& tile) const {
    int32_t after = batch_.query_start[tile.request + 1] - tile.first_token - tile.tokens;
    int32_t end = batch_.seq_lens[tile.request] - after;
    return (tile.tokens + kReading) * ((end - first_visible(end - tile.tokens, window_) + kSub - 1) / kSub);
  }

  // Makes groups of all that share a block, and several of those that hold more than their part of the step's work.
  void add_groups(int64_t tasks_wanted) {
    int64_t all = 0;
    for (const Company& company : companies_) all += company.work;
    for (const Tile& tile : plan_.tiles) all += work_of(tile);
    for (const Company& company : companies_) {
      int64_t pieces = (company.work * tasks_wanted + all - 1) / all, piece = company.work / pieces;
      const std::vector<Member>& members = by_chunk_[size_t(company.chunk)];
      size_t from = company.from;
      int64_t so_far = 0;
      for (size_t m = from; m < company.to; ++m) {
        int32_t in_common = m > from ? common(members[m - 1], members[m], company.chunk) : 0;
        int64_t work = work_of(members[m], in_common);
        if (m > from && so_far + work / 2 > piece &&
            kLittleInCommon * in_common <= members[m].end - members[m].begin) {
          add_group(company.chunk, members, from, m, so_far);
          from = m;
          so_far = 0;
          work = work_of(members[m], 0);
        }
        so_far += work;
      }
      add_group(company.chunk, members, from, company.to, so_far);
    }
    std::stable_sort(plan_.groups.begin(), plan_.groups.end(),
                     [](const Group& a, const Group& b) { return a.work > b.work; });
  }

  void add_group(int32_t chunk, const std::vector<Member>& members, size_t from, size_t to, int64_t work) {
    Group group{chunk, 0, int32_t(plan_.members.size()), 0, int32_t(plan_.runs.size()), 0, work};
    for (size_t i = from; i < to; ++i) {
      plan_.members.push_back(members[i]);
      plan_.members.back().first_row = group.tokens;
      group.tokens += members[i].tokens;
    }
    group.last_member = int32_t(plan_.members.size());
    add_runs(group, 0, int32_t(to - from), members[from].begin);
    group.last_run = int32_t(plan_.runs.size());
    plan_.groups.push_back(group);
  }

  // Members [first, last) of the group agree on all blocks before `begin` and each has one there. Because they are
  // sorted, what the first and the last have in common all have in common; a member that ends early sorts first.
  void add_runs(const Group& group, int32_t first, int32_t last, int32_t begin) {
    const Member* members = plan_.members.data() + group.first_member;
    int32_t end = begin;
    int32_t shortest = std::min(members[first].end, members[last - 1].end);
    while (end < shortest && sub_at(members[first], group.chunk, end) == sub_at(members[last - 1], group.chunk, end))
      ++end;
    int32_t written = 0;
    for (int32_t i = first; i < last; ++i)
      written = std::max(written, batch_.seq_lens[members[i].request] - group.chunk * kChunk);
    plan_.runs.push_back({first, last, begin, end, std::min(written, int32_t(kChunk))});
    while (first < last && members[first].end == end) ++first;
    while (first < last) {
      int32_t next = first + 1;
      while (next < last && sub_at(members[next], group.chunk, end) == sub_at(members[first], group.chunk, end)) ++next;
      add_runs(group, first, next, end);
      first = next;
    }
  }

  // In the order of the tasks of attention, and in each K before V; it may become a task longer than `most`.
  void look_ahead(int64_t most) {
    std::vector<int64_t>& ahead = plan_.ahead;
    auto add = [&](int32_t request, int64_t begin, int64_t end, int64_t cache) {
      const int32_t* table = batch_.tables + request * batch_.table_stride;
      for (int64_t sub = begin; sub < end; ++sub)
        ahead.push_back(2 * physical_sub(table, sub, subs_per_block_) + cache);
    };
    for (const Tile& tile : plan_.tiles) {
      if (tile.tokens < tokens_of(tile.request)) continue;  // several tiles would ask for the same
      int64_t begin = first_visible(first_position(tile.request), window_) / kSub,
              end = (batch_.seq_lens[tile.request] - 1) / kSub + 1;
      for (; begin < end; begin = (begin / kChunkSubs + 1) * kChunkSubs) {
        if (int64_t(ahead.size()) >= most) return;
        for (int64_t cache = 0; cache < 2; ++cache)
          add(tile.request, begin, std::min(end, (begin / kChunkSubs + 1) * kChunkSubs), cache);
      }
    }
    for (const Group& group : plan_.groups) {
      if (int64_t(ahead.size()) >= most) return;
      for (int64_t cache = 0; cache < 2; ++cache)
        for (int32_t r = group.first_run; r < group.last_run; ++r) {
          const Run& run = plan_.runs[size_t(r)];
          int32_t request = plan_.members[size_t(group.first_member + run.first)].request;
          int64_t first = int64_t(group.chunk) * kChunkSubs;
          add(request, first + run.begin, first + run.end, cache);
        }
    }
  }

  AttentionPlan& plan_;
  const RsBatch& batch_;
  int32_t window_;
  int64_t subs_per_block_;
  std::vector<std::vector<Member>> by_chunk_;
  std::vector<bool> alone_;  // requests that walk their chunks by themselves
  std::vector<Company> companies_;
};

}  // namespace

void make_attention_plan(AttentionPlan& plan, const RsBatch& batch, int32_t window, int32_t block_size,
                         int32_t tile_tokens, int64_t tasks_wanted, int64_t most_ahead) {
  plan.window = window;
  plan.tile_tokens = tile_tokens;
  plan.block_size = block_size;
  plan.members.clear();
  plan.runs.clear();
  plan.groups.clear();
  plan.tiles.clear();
  plan.merged_tokens.clear();
  plan.first_chunk.assign(size_t(batch.tokens), 0);
  plan.chunk_count.assign(size_t(batch.tokens), 0);
  plan.first_partial.assign(size_t(batch.tokens), -1);
  plan.partials = 0;
  plan.ahead.clear();
  Planner(plan, batch, window, block_size).plan(tile_tokens, tasks_wanted, most_ahead);
}

}  // namespace radixserve
