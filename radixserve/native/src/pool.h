// The library's own threads.
#pragma once
#include <stddef.h>
#include <stdint.h>

namespace radixserve {

// Work on one chunk; `worker` is 0 for the calling thread and counts up for the others.
using ChunkFunction = void (*)(void* context, int64_t chunk, int worker);

// Runs function(context, i, worker) for i in [0, chunks), each exactly once, on the caller and the workers; returns
// when all are done. The caller waits for chunks that others hold at the end, so they should be small beside the job.
// One caller at a time (rs_run holds a lock). Called inside a chunk it does everything on that chunk's thread, as that
// worker.
// Where it is not `worth_it`, because it takes no longer than handing it out, the caller does all.
void parallel(int64_t chunks, ChunkFunction function, void* context, bool worth_it = true);

// Threads that take part, the caller included; 1 inside a chunk.
int thread_count();
void set_thread_count(int threads);

// Memory that lives until the library is unloaded and only grows; null when there is none left. 64-byte aligned. It has
// a few independent slots, so that what overlaps in time does not in memory; inside a chunk `shared_scratch` is of that
// thread's own. Each thread's own is reserved for all at once, outside of chunks.
enum ScratchSlot { SCRATCH_ACTIVATIONS = 0, SCRATCH_PARTIALS = 1, SCRATCH_PASSES = 2, SCRATCH_SLOTS = 3 };
void* shared_scratch(ScratchSlot slot, size_t bytes);
bool reserve_own_scratch(ScratchSlot slot, size_t bytes_each);
void* own_scratch(ScratchSlot slot, int worker);

}  // namespace radixserve
