// How the output of a linear is cut: into tasks, which the threads take, and these into tiles, which kernels compute.
#pragma once
#include "ahead.hpp"
#include "rows.hpp"

namespace radixserve {
namespace RS_NAMESPACE {

// Tasks of `row_step` x `panel_step`, cut into tiles of up to `tile_rows` x 1.
struct LinearGrid {
  int64_t rows, panels, tile_rows, row_step, panel_step, row_blocks, panel_blocks;

  int64_t rows_of_block(int64_t block) const { return least(row_step, rows - block * row_step); }
};

constexpr int64_t kLeastTask =
    16 << 10;  // bytes of weights that a task should meet: less is done before it is handed out

// `panel_bytes`: of the weights of one panel. Few rows: tasks small enough to share evenly, large enough to stream;
// many rows: weights of a task stay in half the L2 cache while all its rows pass.
RS_INLINE LinearGrid linear_grid(int64_t rows, int64_t panels, int64_t panel_bytes, int64_t tile_rows) {
  if (rows == 0) return {0, panels, tile_rows, 1, 1, 0, 0};
  int64_t row_step = divide_up(rows, divide_up(rows, tile_rows * 8));
  int64_t bytes = rows <= tile_rows ? 64 << 10 : 256 << 10;
  int64_t panel_step = most<int64_t>(1, least(panels, bytes / panel_bytes));
  // Leave at least a few tasks for each thread, where there is work for them.
  int64_t worth = panels * panel_bytes * divide_up(rows, tile_rows) / kLeastTask;
  int64_t wanted_tasks = thread_count() == 1 ? 1 : least<int64_t>(4 * thread_count(), worth);
  while (panel_step > 1 && divide_up(panels, panel_step) * divide_up(rows, row_step) < wanted_tasks)
    panel_step = (panel_step + 1) / 2;
  return {rows, panels, tile_rows, row_step, panel_step, divide_up(rows, row_step), divide_up(panels, panel_step)};
}

// A tile's rows [first, first + count). Tiles of a block are of even height: 32 rows are 16 + 16, not 24 + 8.
struct TileRows {
  int64_t first, count;
};
RS_INLINE int64_t tiles_of_block(const LinearGrid& grid, int64_t block) {
  return divide_up(grid.rows_of_block(block), grid.tile_rows);
}
RS_INLINE TileRows tile_rows(const LinearGrid& grid, int64_t block, int64_t tile) {
  int64_t rows = grid.rows_of_block(block), tiles = tiles_of_block(grid, block), low = rows * tile / tiles;
  return {block * grid.row_step + low, rows * (tile + 1) / tiles - low};
}

// Calls body(first row, rows, panel) for each tile of a task.
template <class Body>
RS_INLINE void for_tiles(const LinearGrid& grid, int64_t task, const Body& body) {
  int64_t block = task % grid.row_blocks, first_panel = task / grid.row_blocks * grid.panel_step;
  int64_t end_panel = least(grid.panels, first_panel + grid.panel_step);
  for (int64_t t = 0; t < tiles_of_block(grid, block); ++t) {
    TileRows rows = tile_rows(grid, block, t);
    for (int64_t panel = first_panel; panel < end_panel; ++panel) body(rows.first, int(rows.count), panel);
  }
}

// Hands the grid's tasks to the pool: body(task, worker).
template <class Body>
RS_INLINE void for_tasks(const LinearGrid& grid, const Body& body) {
  parallel(
      grid.row_blocks * grid.panel_blocks,
      [](void* context, int64_t task, int worker) { (*static_cast<const Body*>(context))(task, worker); },
      const_cast<Body*>(&body));
}

// A task's part of what is to be fetched while linears compute. `lines`: what a tile fetches; a tile of fewer than
// `least_rows` takes no longer than its weights take to come.
RS_INLINE Ahead ahead_of(const LinearGrid& grid, int worker, int64_t least_rows, int64_t lines) {
  int64_t rows = least(grid.rows, grid.row_step), tiles = divide_up(rows, grid.tile_rows);
  return rows < least_rows ? Ahead() : Ahead(tiles * grid.panel_step * lines, worker);
}

}  // namespace RS_NAMESPACE
}  // namespace radixserve
