// What the rows of a step share, found from their block tables alone.
//
// KV is reduced over chunks of 256 tokens aligned at absolute positions. Each (query, chunk) gives a partial result
// that depends on nothing else, and partials merge in ascending order, so how the work is grouped never shows in the
// bits. Two kinds of work:
//
//   Group  requests with few tokens (decodes) in one chunk, sorted by their blocks there. They form a tree, cut into
//   runs:
//
//            chunk 3 of five requests          runs (pre-order)
//            a b c d e                         requests 0-4: blocks a b     <- loaded once for all five
//            a b c d f                         requests 0-2: blocks c d
//            a b c d g                         request 0: e   1: f   2: g
//            a b h i j                         requests 3-4: blocks h i
//            a b h i k                         request 3: j   4: k
//
//          A run's K and V are loaded once for all its requests. In pre-order each request meets its blocks in
//          ascending order. Where there is too much to do in one group, so that a thread would wait for another, it is
//          cut between requests that have little in common there, and what they have is loaded twice.
//   Tile   a few consecutive tokens of one request, which walks its chunks by itself, so that no partial needs to be
//          kept: of a request with many tokens (prefill), where arithmetic is the bound, or of one with few that shares
//          no block, unless it is so long that threads would have to wait for it.
#pragma once
#include <stdint.h>

#include <vector>

#include "abi.h"

namespace radixserve {

constexpr int kSub = 16;     // tokens of a sub-block, the unit of the cache layout
constexpr int kChunk = 256;  // tokens of a chunk
constexpr int kChunkSubs = kChunk / kSub;
constexpr int kGroupTokens = 16;  // a request with at most so many tokens in a step may go into groups

struct Member {
  int32_t request;
  int32_t first_token;  // row of the batch
  int32_t tokens;
  int32_t begin, end;  // sub-blocks of the chunk that any of its tokens sees
  int32_t first_row;   // tokens of the group's members before it
};

struct Run {
  int32_t first, last;  // members [first, last) of the group
  int32_t begin, end;   // sub-blocks [begin, end) of the chunk
  int32_t written;      // tokens of the chunk that hold data, by the longest member
};

struct Group {
  int32_t chunk;
  int32_t tokens;
  int32_t first_member, last_member;
  int32_t first_run, last_run;
  int64_t work;  // in sub-blocks that one token meets
};

struct Tile {
  int32_t request;
  int32_t first_token;
  int32_t tokens;
};

struct AttentionPlan {
  int32_t window;
  int32_t tile_tokens;
  int32_t block_size;
  std::vector<Member> members;
  std::vector<Run> runs;
  std::vector<Group> groups;  // those with most work first
  std::vector<Tile> tiles;    // in the order of their tasks, before those of groups
  // For merging: the tokens that went into groups, and for each token of the batch its first chunk and the place of
  // that chunk's partial (chunks of a token are consecutive); -1 where it went into a tile.
  std::vector<int32_t> merged_tokens;
  std::vector<int32_t> first_chunk, chunk_count, first_partial;
  int64_t partials;
  // What decodes read, in about that order, as `AheadList` has it; nothing where the step has too many tokens for it to
  // matter.
  std::vector<int64_t> ahead;
};

// Static, because this header is compiled for every instruction set and the linker must not take one's code for all.

// Bytes of one KV head of a sub-block, its scales included; the layouts are drawn in rope_append.hpp.
static inline int64_t kv_head_bytes(int32_t kv_type, int64_t head_dim) {
  return kSub * (kv_type == RS_INT8 ? head_dim + 2 : head_dim * (kv_type == RS_BF16 ? 2 : 4));
}

// Position of the first key that a query at `position` sees.
static inline int32_t first_visible(int32_t position, int32_t window) {
  return window > 0 && position + 1 > window ? position + 1 - window : 0;
}

// Physical sub-block of a request's logical sub-block.
static inline int64_t physical_sub(const int32_t* table, int64_t sub, int64_t subs_per_block) {
  return int64_t(table[sub / subs_per_block]) * subs_per_block + sub % subs_per_block;
}

// `tile_tokens`: most tokens of a tile. `tasks_wanted`: tasks of equal work, for each KV head, that keep all threads
// busy. `most_ahead`: sub-blocks of K and V in `ahead`.
void make_attention_plan(AttentionPlan& plan, const RsBatch& batch, int32_t window, int32_t block_size,
                         int32_t tile_tokens, int64_t tasks_wanted, int64_t most_ahead);

}  // namespace radixserve
