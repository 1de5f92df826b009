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

// Memory that lives until the library is unloaded and only grows; null when there is none left. 64-byte aligned.
// `shared_scratch` has a few independent slots, so that operations do not overlap, and inside a chunk slots of that
// thread's own; `worker_scratch` is one area a thread.
enum ScratchSlot { SCRATCH_ACTIVATIONS = 0, SCRATCH_PARTIALS = 1, SCRATCH_SLOTS = 2 };
void* shared_scratch(ScratchSlot slot, size_t bytes);
bool reserve_worker_scratch(size_t bytes_each);
void* worker_scratch(int worker);

}  // namespace radixserve
