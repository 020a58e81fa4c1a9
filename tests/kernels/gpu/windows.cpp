// windows.cu on a CPU, by `emulate.h`.
#include "emulate.h"

#ifndef HALVES
#define HALVES 0
#endif

#define VECTOR_ADDS 1

struct Four;
struct Two;
static std::vector<uint64_t> memory_of_block;
#define SHARED_MEMORY Shared& shared = *(Shared*)memory_of_block.data();

static uint32_t bits_of(float x) { uint32_t v; std::memcpy(&v, &x, 4); return v; }
static float float_of(uint32_t x) { float v; std::memcpy(&v, &x, 4); return v; }
static uint32_t pack(float low, float high) {
  _Float16 x[2] = {(_Float16)low, (_Float16)high};
  uint32_t v;
  std::memcpy(&v, x, 4);
  return v;
}
static float half(uint32_t bits, int k) {
  _Float16 x[2];
  std::memcpy(x, &bits, 4);
  return x[k];
}
template <class V> static void load(const void* p, V& v) { std::memcpy(&v, p, sizeof v); }
static void fetch(float* to, const void* from) { std::memcpy(to, from, 16); }
static uint32_t pack_bfloat16(float low, float high) {
  uint32_t a = bits_of(low), b = bits_of(high);
  a += 0x7fff + (a >> 16 & 1), b += 0x7fff + (b >> 16 & 1);
  return a >> 16 | (b & 0xffff0000u);
}
static void arrived() {}
static float root(float x) { return std::sqrt(x); }
template <class V> static void add(float* p, V v) {
  float x[sizeof(V) / 4];
  std::memcpy(x, &v, sizeof v);
  for (unsigned i = 0; i < sizeof(V) / 4; ++i) p[i] += x[i];
}
static void add_word(uint32_t* p, uint32_t v) {
  const uint32_t high = 0xffff0000u;
  *p = pack_bfloat16(float_of(*p << 16) + float_of(v << 16),
                     float_of(*p & high) + float_of(v & high));
}
static void add_words(uint32_t* p, uint32_t v, uint32_t w) { add_word(p, v); add_word(p + 1, w); }

#include "windows.cu"

// Registers are read by the layouts of PTX's manual.
void mma(float* c, A a, B b) {
  static float left[32][16][8], right[32][8][8];
  int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
#if HALVES
  for (int k = 0; k < 2; ++k) {
    left[warp][g][2 * t + k] = half(a.x[0], k);
    left[warp][g + 8][2 * t + k] = half(a.x[1], k);
    right[warp][2 * t + k][g] = half(b.x[0], k);
  }
#else
  auto tf32 = [](uint32_t x) { return float_of(x & ~0x1fffu); };
  left[warp][g][t] = tf32(a.x[0]);
  left[warp][g + 8][t] = tf32(a.x[1]);
  left[warp][g][t + 4] = tf32(a.x[2]);
  left[warp][g + 8][t + 4] = tf32(a.x[3]);
  right[warp][t][g] = tf32(b.x[0]);
  right[warp][t + 4][g] = tf32(b.x[1]);
#endif
  __syncwarp();
  for (int e = 0; e < 4; ++e)
    for (int k = 0; k < 8; ++k)
      c[e] += left[warp][g + 8 * (e >> 1)][k] * right[warp][k][2 * t + (e & 1)];
  __syncwarp();
}

extern "C" int emulate(int blocks, void** p, long shared_bytes) {
  if (shared_bytes < (long)sizeof(Shared)) return (int)sizeof(Shared);
  memory_of_block.assign(shared_bytes / 8 + 1, 0x7fc000007fc00000ull);  // NaN
  launch(blocks, THREADS, [=] {
    train((float*)p[0], (int*)p[1], (int*)p[2], (uint8*)p[3], (uint8*)p[4],
          (int*)p[5], (float*)p[6], (float*)p[7], (int*)p[8], (int*)p[9],
          (int*)p[10], (float*)p[11], (Stored*)p[12], (Stored*)p[13],
          (float*)p[14], (float*)p[15], (float*)p[11], (Stored*)p[12],
          (Stored*)p[13], (float*)p[14], (float*)p[15]);
  });
  return 0;
}
extern "C" long shared_size() { return sizeof(Shared); }
