// Rows of x as the dense linears want them: what a step along K needs of all rows of a tile stands side by side. So a
// kernel of many rows walks along one stretch of memory instead of one for each row, for which it has neither the
// registers nor, where rows are long, the cache.
//
//   row 0  [w0 w1 w2 ...]            tile  [w0 of row 0, w0 of row 1, ... w1 of row 0, w1 of row 1, ...]
//   row 1  [w0 w1 w2 ...]     ->           a word is two bf16 or one fp32
//   ...
#pragma once
#include "linear_grid.hpp"
#include "prepared_rows.hpp"

namespace radixserve {
namespace RS_NAMESPACE {

// The rows of all tiles, one tile after the other. `Element`: of x.
template <class Element>
struct PackRows {
  const RsLinear& op;
  Rows rows;
  const LinearGrid& grid;
  int64_t words, bytes, parts;

  PackRows(const RsLinear& op, Rows rows, const LinearGrid& grid) : op(op), rows(rows), grid(grid) {
    words = op.in_features * int64_t(sizeof(Element)) / int64_t(sizeof(float));
    bytes = rows.count * words * int64_t(sizeof(float));
    parts = grid.row_blocks * tiles_of_block(grid, 0);
  }

  // The tile that begins with row `first`.
  const char* tile(const char* memory, int64_t first) const { return memory + first * words * int64_t(sizeof(float)); }

  void operator()(char* memory, int64_t part) const {
    int64_t block = part / tiles_of_block(grid, 0), of_block = part % tiles_of_block(grid, 0);
    if (of_block >= tiles_of_block(grid, block)) return;
    TileRows tile = tile_rows(grid, block, of_block);
    float* out = reinterpret_cast<float*>(memory) + tile.first * words;
    for (int64_t row = 0; row < tile.count; row += kLanes) {
      int count = int(least<int64_t>(kLanes, tile.count - row));
      const float* sources[kLanes];
      for (int i = 0; i < count; ++i) {
        int64_t source = source_row(rows, tile.first + row + i);
        sources[i] = reinterpret_cast<const float*>(static_cast<const Element*>(op.x) + source * op.x_stride);
      }
      for (int64_t word = 0; word < words; word += kLanes) {
        int n = int(least<int64_t>(kLanes, words - word));
        F square[kLanes];
        for (int i = 0; i < kLanes; ++i) square[i] = i < count ? load(sources[i] + word, n) : zero();
        transpose(square);
        for (int i = 0; i < n; ++i) store(out + (word + i) * tile.count + row, square[i], count);
      }
    }
  }
};

}  // namespace RS_NAMESPACE
}  // namespace radixserve
