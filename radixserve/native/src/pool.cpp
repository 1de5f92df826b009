// A pool that stays out of the way.
//
// The chunks of a job are dealt out in advance, an equal stretch to each thread. What is left of a stretch stands in a
// 64-bit ticket, one for each thread in a cache line of its own:
//
//     [ job number : 32 | chunks left : 32 ]
//
// A thread takes chunks by lowering its own ticket with compare-and-swap, then the tickets of others, until all are
// empty; it counts what it has done in a line of its own, too. So while there is work the threads do not touch one
// another's lines, which between cores that share no cache takes 150 ns each time, and none waits for another that is
// late: the caller fills in the job, publishes the tickets, works like everybody else and then waits for chunks that
// others still hold, never for a thread that took none. A worker that the system has put aside for a busy neighbour
// delays a step by at most the one chunk it holds. What belongs to a job is read only after a chunk was taken,
// when the caller cannot have left the job yet.
//
// Idle workers spin for some tens of microseconds, which covers the gap between two operations of a step, then sleep on
// a futex; so does the caller at the end of a job.
//
// On a busy machine even that one chunk may be out for milliseconds. Before it sleeps, the caller notes how much
// processor time each worker has had; a worker that then ends a chunk compares that with the time by the clock, and so
// knows how long it kept the caller waiting without running. A chunk that is merely long is not confused with that.
// While it is waited for all threads stand still. Where the worker had run for less than kWorthIt times as long before,
// times the number of threads, it costs more than it helps: it rests for kRest times as long, and the others do its
// work, so that waiting is a small part of the whole, whoever else wants the cores. A neighbour that comes once in a
// while and is soon gone, as a server that hands out the tokens of a step, is waited for.
//
// After fork() a child has none of the threads: it starts its own at its first call. Forking while another thread is
// inside rs_run is as unsafe as with any other lock.
#include "pool.h"

#include <linux/futex.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <new>
#include <thread>

namespace radixserve {
namespace {

constexpr int kMaxThreads = 256;
constexpr int64_t kSpinNanoseconds = 30000;
constexpr int64_t kStallNanoseconds = 300000;  // shorter ones are interrupts, not neighbours
constexpr int64_t kWorthIt = 2;
constexpr int64_t kRest = 8;
constexpr int64_t kLongestRest = 250000000;

struct alignas(128) Lane {  // a line and the one that is fetched with it
  std::atomic<uint64_t> ticket{0};
  alignas(64) std::atomic<uint64_t> finished{0};  // chunks that the thread has done so far, in all jobs
};

struct Pool {
  Lane lanes[kMaxThreads];  // the caller's first
  // The job; written by the caller while no chunk is out.
  alignas(128) std::atomic<ChunkFunction> function{nullptr};
  std::atomic<void*> context{nullptr};
  std::atomic<int64_t> chunks{0};
  std::atomic<int64_t> threads{1};
  // Where the threads sleep: on the number of the job, and the caller on the signal.
  alignas(128) std::atomic<uint32_t> job{0};
  std::atomic<uint32_t> parked{0};
  alignas(128) std::atomic<uint32_t> caller_waits{0};
  std::atomic<uint32_t> done_signal{0};
  std::atomic<uint32_t> stopping{0};
  // When the caller began to wait, and the processor time of each worker then; read while a chunk is out only.
  int64_t wait_began = 0;
  int64_t worked_at_wait[kMaxThreads];
  int64_t worked_at_stall[kMaxThreads];  // and when it last came back from a stall; each worker knows its own only
  pthread_t workers[kMaxThreads];
  clockid_t clocks[kMaxThreads];
  // The caller's own: workers started in this process, and chunks of all jobs so far.
  std::atomic<uint32_t> wanted_threads{1};
  int running = 0;
  uint64_t handed_out = 0;
};

Pool* pool = new Pool;  // never freed: threads may outlive static destructors

struct Area {
  void* data = nullptr;
  size_t bytes = 0;
};
Area shared_areas[SCRATCH_SLOTS];
Area own_areas[kMaxThreads][SCRATCH_SLOTS];

// Which worker this thread is while it works on a chunk, else kOutside.
constexpr int kOutside = -1;
thread_local int inside = kOutside;

void* grow(Area& area, size_t bytes) {
  if (bytes > area.bytes) {
    size_t rounded = (bytes + bytes / 4 + 4095) / 4096 * 4096;
    void* data = aligned_alloc(4096, rounded);
    if (!data) return nullptr;
    free(area.data);
    area.data = data;
    area.bytes = rounded;
  }
  return area.data;
}

void pause_cpu() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

int64_t read_clock(clockid_t clock) {
  timespec t{};
  clock_gettime(clock, &t);
  return int64_t(t.tv_sec) * 1000000000 + t.tv_nsec;
}

int64_t now_ns() { return read_clock(CLOCK_MONOTONIC); }

void futex_wait(const void* word, uint32_t expected, const timespec* longest = nullptr) {
  syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, expected, longest, nullptr, 0);
}

void futex_wake_all(const void* word) { syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, 1 << 30, nullptr, nullptr, 0); }

uint32_t job_number(uint64_t ticket) { return uint32_t(ticket >> 32); }

// The first chunk of a thread's stretch.
int64_t stretch_begin(int thread, int64_t chunks, int64_t threads) { return chunks * thread / threads; }

// How long this worker should rest after a chunk, in nanoseconds. To be asked before the chunk counts as finished: the
// caller cannot go on to another job until then.
int64_t rest_due(int worker) {
  if (worker == 0 || !pool->caller_waits.load(std::memory_order_seq_cst)) return 0;
  int64_t worked = read_clock(CLOCK_THREAD_CPUTIME_ID);
  int64_t stalled = now_ns() - pool->wait_began - (worked - pool->worked_at_wait[worker - 1]);
  if (stalled <= kStallNanoseconds) return 0;
  int64_t ran = worked - pool->worked_at_stall[worker - 1];
  pool->worked_at_stall[worker - 1] = worked;
  bool worth_it = ran >= kWorthIt * pool->threads.load(std::memory_order_relaxed) * stalled;
  return worth_it ? 0 : std::min(kRest * stalled, kLongestRest);
}

// Sleeps, unless the pool is stopped.
void rest(int64_t nanoseconds) {
  timespec length{nanoseconds / 1000000000, nanoseconds % 1000000000};
  futex_wait(&pool->stopping, 0, &length);
}

// Takes and runs chunks of the stretch of thread `owner` until none is left.
void work_off(int owner, int worker) {
  std::atomic<uint64_t>& lane = pool->lanes[owner].ticket;
  uint64_t ticket = lane.load(std::memory_order_acquire);
  while (uint32_t(ticket) != 0) {
    uint32_t left = uint32_t(ticket);
    if (!lane.compare_exchange_weak(ticket, ticket - 1, std::memory_order_acq_rel, std::memory_order_acquire)) continue;
    int64_t end = stretch_begin(owner + 1, pool->chunks.load(std::memory_order_relaxed),
                                pool->threads.load(std::memory_order_relaxed));
    inside = worker;
    pool->function.load(std::memory_order_relaxed)(pool->context.load(std::memory_order_relaxed), end - left, worker);
    inside = kOutside;
    int64_t pause = rest_due(worker);
    pool->lanes[worker].finished.fetch_add(1, std::memory_order_seq_cst);
    if (worker && pool->caller_waits.load(std::memory_order_seq_cst)) {
      pool->done_signal.fetch_add(1, std::memory_order_seq_cst);
      futex_wake_all(&pool->done_signal);
    }
    if (pause) rest(pause);
    ticket = lane.load(std::memory_order_acquire);
  }
}

// Takes and runs chunks of the job, a thread's own first.
void work(int worker, int threads) {
  for (int i = 0; i < threads; ++i) work_off((worker + i) % threads, worker);
}

// Returns when the ticket of this worker is of another job than `seen`.
uint32_t wait_for_job(int worker, uint32_t seen) {
  const std::atomic<uint64_t>& ticket = pool->lanes[worker].ticket;
  int64_t deadline = now_ns() + kSpinNanoseconds;
  for (;;) {
    for (int i = 0; i < 64; ++i) {
      uint32_t number = job_number(ticket.load(std::memory_order_acquire));
      if (number != seen) return number;
      pause_cpu();
    }
    if (now_ns() > deadline) break;
  }
  for (;;) {
    pool->parked.fetch_add(1, std::memory_order_seq_cst);
    uint32_t job = pool->job.load(std::memory_order_seq_cst);
    // The ticket is published before the number of the job.
    if (job_number(ticket.load(std::memory_order_seq_cst)) == seen) futex_wait(&pool->job, job);
    pool->parked.fetch_sub(1, std::memory_order_seq_cst);
    uint32_t number = job_number(ticket.load(std::memory_order_acquire));
    if (number != seen) return number;
  }
}

void* worker_main(void* argument) {
  int worker = int(reinterpret_cast<intptr_t>(argument));
  uint32_t seen = 0;  // a worker that starts late looks for work at once
  for (;;) {
    work(worker, int(pool->threads.load(std::memory_order_relaxed)));
    seen = wait_for_job(worker, seen);
    if (pool->stopping.load(std::memory_order_acquire)) return nullptr;
  }
}

void publish(int64_t chunks, int threads) {
  uint64_t number = job_number(pool->lanes[0].ticket.load(std::memory_order_relaxed)) + 1;
  if (uint32_t(number) == 0) number = 1;
  // Workers first: they are to see it while the caller goes on.
  for (int i = threads - 1; i >= 0; --i) {
    uint64_t left = uint64_t(stretch_begin(i + 1, chunks, threads) - stretch_begin(i, chunks, threads));
    pool->lanes[i].ticket.store(number << 32 | left, std::memory_order_release);
  }
  pool->job.store(uint32_t(number), std::memory_order_seq_cst);
  if (pool->parked.load(std::memory_order_seq_cst)) futex_wake_all(&pool->job);
}

void stop_workers() {
  if (!pool->running) return;
  pool->stopping.store(1, std::memory_order_seq_cst);
  futex_wake_all(&pool->stopping);
  publish(0, pool->running + 1);
  for (int i = 0; i < pool->running; ++i) pthread_join(pool->workers[i], nullptr);
  for (int i = 0; i <= pool->running; ++i) pool->lanes[i].finished.store(0, std::memory_order_relaxed);
  pool->handed_out = 0;
  pool->running = 0;
  pool->stopping.store(0, std::memory_order_release);
}

void after_fork_in_child() {
  int threads = int(pool->wanted_threads.load());
  pool = new (pool) Pool;  // the parent's workers do not exist here
  pool->wanted_threads.store(uint32_t(threads));
}

void start_workers() {
  static bool handler = (pthread_atfork(nullptr, nullptr, after_fork_in_child), true);
  (void)handler;
  int wanted = int(pool->wanted_threads.load()) - 1;
  while (pool->running < wanted) {
    void* number = reinterpret_cast<void*>(intptr_t(pool->running + 1));
    pool->worked_at_stall[pool->running] = 0;
    if (pthread_create(&pool->workers[pool->running], nullptr, worker_main, number) != 0) {
      pool->wanted_threads.store(uint32_t(pool->running + 1));  // go on with those that there are
      return;
    }
    pthread_getcpuclockid(pool->workers[pool->running], &pool->clocks[pool->running]);
    ++pool->running;
  }
}

// Until as many chunks are done as were ever handed out.
void wait_until_finished() {
  auto all_done = [&] {
    uint64_t done = 0;
    for (int i = 0; i <= pool->running; ++i) done += pool->lanes[i].finished.load(std::memory_order_seq_cst);
    return done == pool->handed_out;
  };
  int64_t deadline = now_ns() + kSpinNanoseconds;
  for (;;) {
    for (int i = 0; i < 64; ++i) {
      if (all_done()) return;
      pause_cpu();
    }
    if (now_ns() > deadline) break;
  }
  for (int i = 0; i < pool->running; ++i) pool->worked_at_wait[i] = read_clock(pool->clocks[i]);
  pool->wait_began = now_ns();
  pool->caller_waits.store(1, std::memory_order_seq_cst);
  while (true) {
    uint32_t signal = pool->done_signal.load(std::memory_order_seq_cst);
    if (all_done()) break;
    futex_wait(&pool->done_signal, signal);
  }
  pool->caller_waits.store(0, std::memory_order_seq_cst);
}

}  // namespace

void parallel(int64_t chunks, ChunkFunction function, void* context, bool worth_it) {
  if (chunks <= 1 || !worth_it || thread_count() == 1) {
    for (int64_t i = 0; i < chunks; ++i) function(context, i, inside == kOutside ? 0 : inside);
    return;
  }
  start_workers();
  int threads = pool->running + 1;
  pool->function.store(function, std::memory_order_relaxed);
  pool->context.store(context, std::memory_order_relaxed);
  pool->chunks.store(chunks, std::memory_order_relaxed);
  pool->threads.store(threads, std::memory_order_relaxed);
  pool->handed_out += uint64_t(chunks);
  publish(chunks, threads);
  work(0, threads);
  wait_until_finished();
}

int thread_count() { return inside == kOutside ? int(pool->wanted_threads.load(std::memory_order_relaxed)) : 1; }

void set_thread_count(int threads) {
  threads = threads < 1 ? 1 : threads > kMaxThreads ? kMaxThreads : threads;
  if (threads == thread_count()) return;
  stop_workers();
  pool->wanted_threads.store(uint32_t(threads));
}

void* shared_scratch(ScratchSlot slot, size_t bytes) {
  return grow(inside == kOutside ? shared_areas[slot] : own_areas[inside][slot], bytes);
}

bool reserve_own_scratch(ScratchSlot slot, size_t bytes_each) {
  for (int i = 0; i < thread_count(); ++i)
    if (!grow(own_areas[i][slot], bytes_each)) return false;
  return true;
}

void* own_scratch(ScratchSlot slot, int worker) { return own_areas[worker][slot].data; }

}  // namespace radixserve
