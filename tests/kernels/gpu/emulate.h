// Runs CUDA C++ on a CPU: each thread of a block is a fiber, one block after
// another. Barriers and what a warp does together are where fibers take turns.
// Nothing else is checked: neither races nor what only PTX says.
#pragma once
#include <ucontext.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <vector>

#define HOST
#define __device__
#define __global__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __align__(n) alignas(n)
#define __restrict__
#define __expf(x) std::exp(x)
#define __logf(x) std::log(x)
#define __fdividef(x, y) ((x) / (y))

struct Index { unsigned x, y, z; };
static Index threadIdx, blockIdx, blockDim, gridDim;

namespace fibers {

struct Barrier { int arrived = 0; long turn = 0; };
struct Fiber {
  ucontext_t context;
  std::vector<char> stack;
  const Barrier* waits_at = nullptr;
  long turn = 0;
  bool has_ended = false;
};

static ucontext_t scheduler;
static std::vector<Fiber> all;
static Barrier block;
static std::vector<Barrier> warps;
static const std::function<void()>* body;

// Returns whether this thread came last.
static void wait(Barrier& barrier, int size, const std::function<void()>& last) {
  Fiber& self = all[threadIdx.x];
  if (++barrier.arrived == size) {
    last();
    barrier.arrived = 0;
    ++barrier.turn;
    return;
  }
  self.waits_at = &barrier;
  self.turn = barrier.turn;
  unsigned thread = threadIdx.x;
  swapcontext(&self.context, &scheduler);
  threadIdx.x = thread;
}

static void start() {
  (*body)();
  all[threadIdx.x].has_ended = true;
}

static void run_block(int threads, const std::function<void()>& call) {
  body = &call;
  block = Barrier();
  warps.assign((threads + 31) / 32, Barrier());
  all.resize(threads);
  for (Fiber& fiber : all) {
    fiber.stack.resize(1 << 16);
    fiber.waits_at = nullptr;
    fiber.has_ended = false;
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = fiber.stack.data();
    fiber.context.uc_stack.ss_size = fiber.stack.size();
    fiber.context.uc_link = &scheduler;
    makecontext(&fiber.context, start, 0);
  }
  for (bool moves = true, left = true; left;) {
    moves = left = false;
    for (int i = 0; i < threads; ++i) {
      Fiber& fiber = all[i];
      if (fiber.has_ended) continue;
      left = true;
      if (fiber.waits_at && fiber.waits_at->turn == fiber.turn) continue;
      fiber.waits_at = nullptr;
      moves = true;
      threadIdx.x = i;
      swapcontext(&scheduler, &fiber.context);
    }
    if (left && !moves) {
      std::fprintf(stderr, "threads wait for others that have ended\n");
      std::abort();
    }
  }
}

static int warp_size() {
  int first = threadIdx.x & ~31u, size = (int)all.size() - first;
  return size < 32 ? size : 32;
}

// What the lanes of a warp show each other.
static uint64_t shown[32][32];
static uint64_t results[32][32];

template <class F>
static uint64_t together(uint64_t value, F each) {
  int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
  shown[warp][lane] = value;
  int size = warp_size();
  wait(warps[warp], size, [&] {
    for (int i = 0; i < size; ++i) results[warp][i] = each(shown[warp], i);
  });
  return results[warp][lane];
}

}  // namespace fibers

static void __syncthreads() {
  fibers::wait(fibers::block, (int)fibers::all.size(), [] {});
}
static void __syncwarp(unsigned = ~0u) {
  fibers::wait(fibers::warps[threadIdx.x >> 5], fibers::warp_size(), [] {});
}
static unsigned __ballot_sync(unsigned, int predicate) {
  int size = fibers::warp_size();
  return (unsigned)fibers::together(predicate != 0, [=](uint64_t* x, int) {
    uint64_t bits = 0;
    for (int i = 0; i < size; ++i) bits |= x[i] << i;
    return bits;
  });
}
template <class T>
static T __shfl_at(T value, std::function<int(int)> source) {
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(T));
  bits = fibers::together(bits, [&](uint64_t* x, int i) { return x[source(i)]; });
  std::memcpy(&value, &bits, sizeof(T));
  return value;
}
template <class T>
static T __shfl_xor_sync(unsigned, T value, int mask) {
  return __shfl_at(value, [=](int i) { return i ^ mask; });
}
template <class T>
static T __shfl_sync(unsigned, T value, int lane) {
  // Each lane may name another one.
  int warp = threadIdx.x >> 5, own = threadIdx.x & 31;
  static uint64_t values[32][32];
  std::memcpy(&values[warp][own], &value, sizeof(T));
  __syncwarp();
  std::memcpy(&value, &values[warp][lane], sizeof(T));
  __syncwarp();
  return value;
}
template <class T>
static T __shfl_up_sync(unsigned, T value, int delta) {
  return __shfl_at(value, [=](int i) { return i < delta ? i : i - delta; });
}
static int __popc(unsigned x) { return __builtin_popcount(x); }
static int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
static int __clz(unsigned x) { return x ? __builtin_clz(x) : 32; }
static int __ffs(unsigned x) { return __builtin_ffs(x); }
template <class T>
static T atomicAdd(T* place, T value) {
  T old = *place;
  *place += value;
  return old;
}

// Calls `kernel()` for all threads of all blocks; `shared` is a block's memory.
static void launch(int blocks, int threads, const std::function<void()>& kernel) {
  gridDim = {(unsigned)blocks, 1, 1};
  blockDim = {(unsigned)threads, 1, 1};
  for (int i = 0; i < blocks; ++i) {
    blockIdx = {(unsigned)i, 0, 0};
    fibers::run_block(threads, kernel);
  }
}
