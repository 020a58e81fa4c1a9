// Steps of the word2vec models on a GPU, chunk by chunk, as
// `kernels/cpu/kernels.py` has them on a CPU.
//
// Each block walks its own stretch of the text. A chunk's rows are copied to
// shared memory; tensor cores multiply left by right rows; slopes of the loss
// take the place of scores; both gradients are added to the tables at once, by
// vector atomics where there are any, so that what follows learns from it.
//
//                left [c]                right                    words
//   skip-gram    centers                 window, draws
//   CBOW         means of contexts       centers, draws           window
//   tree         contexts of one center  nodes of its path
//   tree, CBOW   their mean              nodes of its path        contexts
//
// While a chunk's rows are on their way, the ids of the next one are read.
// Rows are not read ahead: then two chunks of a block would not see each other.
//
// Macros: MODEL (0 skip-gram, 1 CBOW, 2 hierarchical softmax), AVERAGES, DIM,
// CHUNK, WINDOW, DRAWS, FIRSTS, DEEP, WARPS, BFLOAT16, STOCHASTIC, ADAGRAD,
// LIMITED. `windows.py` chooses them and states the arguments.

typedef unsigned char uint8;
typedef unsigned short uint16;
typedef unsigned int uint32;
typedef unsigned long long uint64;

constexpr bool IS_TREE = MODEL == 2;
constexpr bool IS_SKIPGRAM = MODEL == 0;
constexpr bool MEANS = MODEL == 1 || AVERAGES;
__device__ constexpr int padded(int n, int multiple) {
  return (n + multiple - 1) / multiple * multiple;
}
constexpr int THREADS = 32 * WARPS;
constexpr int AROUND = CHUNK + 2 * WINDOW;  // tokens of a chunk
// Rows of the input table, of the output table, and of the left factor.
constexpr int INPUTS = IS_SKIPGRAM ? CHUNK : AROUND;
constexpr int TARGETS = IS_TREE ? FIRSTS + DEEP : IS_SKIPGRAM ? AROUND : CHUNK;
constexpr int OUTPUTS = IS_TREE ? TARGETS : TARGETS + DRAWS;
constexpr int ROWS = INPUTS + OUTPUTS;
constexpr int LEFT = padded(IS_TREE && !MEANS ? AROUND : CHUNK, 16);
constexpr int INPUT_ROWS = padded(INPUTS, 16);
constexpr int RIGHT = padded(OUTPUTS, 16);
// Lanes that read the same columns of several rows find them in all banks.
constexpr int COLUMNS = padded(DIM, 16), STRIDE = COLUMNS + 8;
constexpr int SLOPES = RIGHT + 4, TURNED = LEFT + 4;
constexpr int UNITS = COLUMNS / 16;  // of columns, each of one warp
// Of two warps with the same columns one has the left rows, one the right ones.
constexpr int ROLES = WARPS >= 2 * UNITS ? 2 : 1;
constexpr int LEFTS = LEFT / 16, RIGHTS = RIGHT / 16, WORDS = INPUT_ROWS / 16;
constexpr int GROUP = RIGHTS < 4 ? RIGHTS : 4;  // of 16 rows, in registers
constexpr int VECTOR = DIM % 4 == 0 ? 4 : DIM % 2 == 0 ? 2 : 1;
constexpr uint32 FULL = 0xffffffffu;

#if BFLOAT16
typedef uint16 Stored;
#else
typedef float Stored;
#endif

struct __align__(16) Four { float x[4]; };
struct __align__(8) Two { float x[2]; };

// What a block has in shared memory.
struct Ids {
  int id[ROWS];  // those of the vocabulary are below it
  float rate[ROWS];
  uint64 contexts[CHUNK];  // of each center, of the tokens around
  float share[CHUNK];  // of each context in their mean
  uint64 used;  // tokens that are a context of any
  int num_examples;
#if BFLOAT16
  uint32 noise[ROWS][2];
#endif
};
struct Shared {
  float inputs[INPUT_ROWS * STRIDE];
  float right[RIGHT * STRIDE];
#if MODEL == 1 || AVERAGES
  float means[LEFT * STRIDE];
  float changes[ADAGRAD || ROLES == 2 ? LEFT * STRIDE : 1];
#endif
  float slopes[LEFT * SLOPES];
  float turned[RIGHT * TURNED];
  Ids ids[2];
#if MODEL != 2
  uint64 hits[DRAWS];  // tokens around that equal a draw
#endif
#if ADAGRAD
  float squares[ROWS * UNITS];  // of each unit of columns
  float sums[ROWS];
  float state[ROWS];
#endif
};

#ifndef HOST
#define HALVES (__CUDA_ARCH__ < 800)
#define SHARED_MEMORY \
  extern __shared__ Four memory[]; \
  Shared& shared = *(Shared*)memory;

// Rows are read from the L2 cache: other blocks change them meanwhile.
__device__ __forceinline__ Four load(const float* p, Four) {
  Four v;
  asm volatile("ld.global.cg.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(v.x[0]), "=f"(v.x[1]), "=f"(v.x[2]), "=f"(v.x[3])
               : "l"(p));
  return v;
}
__device__ __forceinline__ Two load(const float* p, Two) {
  Two v;
  asm volatile("ld.global.cg.v2.f32 {%0, %1}, [%2];"
               : "=f"(v.x[0]), "=f"(v.x[1]) : "l"(p));
  return v;
}
__device__ __forceinline__ float load(const float* p, float) {
  float v;
  asm volatile("ld.global.cg.f32 %0, [%1];" : "=f"(v) : "l"(p));
  return v;
}
__device__ __forceinline__ uint64 load(const uint64* p) {
  uint64 v;
  asm volatile("ld.global.cg.u64 %0, [%1];" : "=l"(v) : "l"(p));
  return v;
}
__device__ __forceinline__ uint32 load(const uint32* p) {
  uint32 v;
  asm volatile("ld.global.cg.u32 %0, [%1];" : "=r"(v) : "l"(p));
  return v;
}
__device__ __forceinline__ uint16 load(const uint16* p) {
  uint16 v;
  asm volatile("ld.global.cg.u16 %0, [%1];" : "=h"(v) : "l"(p));
  return v;
}
// 16 bytes on their way to shared memory; `arrived` waits for them.
__device__ __forceinline__ void fetch(float* to, const float* from) {
#if __CUDA_ARCH__ >= 800
  uint32 place = (uint32)__cvta_generic_to_shared(to);
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;"
               :: "r"(place), "l"(from) : "memory");
#else
  *(Four*)to = load(from, Four());
#endif
}
__device__ __forceinline__ void arrived() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_all;" ::: "memory");
#endif
}
__device__ __forceinline__ void add(float* p, Four v) {
#if __CUDA_ARCH__ >= 900
  asm volatile("red.relaxed.gpu.global.add.v4.f32 [%0], {%1, %2, %3, %4};"
               :: "l"(p), "f"(v.x[0]), "f"(v.x[1]), "f"(v.x[2]), "f"(v.x[3])
               : "memory");
#else
  for (int i = 0; i < 4; ++i) atomicAdd(p + i, v.x[i]);
#endif
}
__device__ __forceinline__ void add(float* p, Two v) {
#if __CUDA_ARCH__ >= 900
  asm volatile("red.relaxed.gpu.global.add.v2.f32 [%0], {%1, %2};"
               :: "l"(p), "f"(v.x[0]), "f"(v.x[1]) : "memory");
#else
  for (int i = 0; i < 2; ++i) atomicAdd(p + i, v.x[i]);
#endif
}
__device__ __forceinline__ void add(float* p, float v) { atomicAdd(p, v); }
// Two bfloat16 to each of one or two words.
__device__ __forceinline__ void add_word(uint32* p, uint32 v) {
#if __CUDA_ARCH__ >= 900
  asm volatile("red.relaxed.gpu.global.add.noftz.bf16x2 [%0], %1;"
               :: "l"(p), "r"(v) : "memory");
#else
  uint32 old = load(p), seen;
  do {
    seen = old;
    uint32 sum = 0;
    for (int i = 0; i < 32; i += 16) {
      float a = __uint_as_float(seen >> i << 16);
      float b = __uint_as_float(v >> i << 16);
      uint32 bits = __float_as_uint(a + b);
      bits += 0x7fff + (bits >> 16 & 1);
      sum |= bits >> 16 << i;
    }
    old = atomicCAS(p, seen, sum);
  } while (old != seen);
#endif
}
__device__ __forceinline__ void add_words(uint32* p, uint32 v, uint32 w) {
#if __CUDA_ARCH__ >= 900
  asm volatile("red.relaxed.gpu.global.add.noftz.v2.bf16x2 [%0], {%1, %2};"
               :: "l"(p), "r"(v), "r"(w) : "memory");
#else
  add_word(p, v);
  add_word(p + 1, w);
#endif
}
__device__ __forceinline__ uint32 bits_of(float x) { return __float_as_uint(x); }
__device__ __forceinline__ float float_of(uint32 x) { return __uint_as_float(x); }
__device__ __forceinline__ uint32 pack(float low, float high) {
  uint32 v;
  asm("{.reg .f16 a, b; cvt.rn.f16.f32 a, %1; cvt.rn.f16.f32 b, %2; "
      "mov.b32 %0, {a, b};}" : "=r"(v) : "f"(low), "f"(high));
  return v;
}
#endif  // HOST

// Fragments of products of 16 x 8 by 8 x 8, in float16 before sm_80, whose
// tensor cores have no TF32, and TF32 from then on, which ignores low bits.
// Lane 4 g + t has rows g and g + 8, or column g, of two k that lanes agree on.
#if HALVES
struct A { uint32 x[2]; };
struct B { uint32 x[1]; };
__device__ __forceinline__ A rows_of(Two low, Two high) {
  return {{pack(low.x[0], low.x[1]), pack(high.x[0], high.x[1])}};
}
__device__ __forceinline__ B column_of(float x, float y) {
  return {{pack(x, y)}};
}
#else
struct A { uint32 x[4]; };
struct B { uint32 x[2]; };
__device__ __forceinline__ A rows_of(Two low, Two high) {
  return {{bits_of(low.x[0]), bits_of(high.x[0]), bits_of(low.x[1]),
           bits_of(high.x[1])}};
}
__device__ __forceinline__ B column_of(float x, float y) {
  return {{bits_of(x), bits_of(y)}};
}
#endif
#ifdef HOST
void mma(float* c, A a, B b);
#elif HALVES
__device__ __forceinline__ void mma(float* c, A a, B b) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 "
      "{%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a.x[0]), "r"(a.x[1]), "r"(b.x[0]));
}
#else
__device__ __forceinline__ void mma(float* c, A a, B b) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a.x[0]), "r"(a.x[1]), "r"(a.x[2]), "r"(a.x[3]), "r"(b.x[0]),
        "r"(b.x[1]));
}
#endif
// To the nearest TF32, for what is written to shared memory to be multiplied.
__device__ __forceinline__ float rounded(float x) {
#if HALVES
  return x;
#else
  return float_of(bits_of(x) + 0x1000u);
#endif
}

// `ops.sampling._mix`, `random_bits` and `draw`.
__device__ __forceinline__ uint32 mix(uint32 x) {
  x = (x ^ (x >> 16)) * 0x21F0AAADu;
  x = (x ^ (x >> 15)) * 0x735A2D97u;
  return x ^ (x >> 15);
}
__device__ __forceinline__ uint32 random_bits(
    uint32 key0, uint32 key1, uint32 position) {
  return mix(mix(position * 0x9E3779B9u + key0) ^ key1);
}
__device__ __forceinline__ int draw(
    const int* lines, uint32 entries, uint32 key0, uint32 key1,
    uint32 position) {
  uint32 bits = random_bits(key0, key1, position);
  uint32 entry = (uint32)(((uint64)bits * entries) >> 32);
  float coin = (float)(mix(bits + key1) >> 8) * (1.f / 16777216.f);
  uint64 pair = ((const uint64*)lines)[entry];  // a chance, and an alias
  return coin < float_of((uint32)pair) ? (int)entry : (int)(pair >> 32);
}

// What all parts of the kernel know.
struct Call {
  float learning_rate, parameter, factor;
  int vocab;
  uint32 draw0, draw1, noise0, noise1;
  int input_brakes_size, output_brakes_size;
  uint32 entries;
  const int* tokens;
  const uint8 *left, *right;
  const int* numbers;  // of chunks
  const float *input_brakes, *output_brakes;
  const int *a, *b, *c;
};

__device__ __forceinline__ bool is_bit(uint64 bits, int i) {
  return bits >> i & 1;
}

// Whether a token around is read and changed, from the input or output table.
__device__ __forceinline__ bool is_used(const Ids& ids, int row) {
  if (IS_SKIPGRAM && row < INPUTS) return ids.contexts[row] != 0;
  if (IS_SKIPGRAM && row < INPUTS + TARGETS)
    return is_bit(ids.used, row - INPUTS);
  if (!IS_SKIPGRAM && row < INPUTS) return is_bit(ids.used, row);
  if (MODEL == 1 && row < INPUTS + TARGETS)
    return ids.contexts[row - INPUTS] != 0;
  return ids.used != 0;
}

// Reads the ids of a chunk, and what follows from them alone.
__device__ void read_ids(const Call& call, int chunk, Ids& ids) {
  const int* tokens = call.tokens + (long long)chunk * CHUNK;
  if (threadIdx.x < 32) {
    uint64 contexts = 0;
    if (threadIdx.x < CHUNK) {
      long long center = (long long)chunk * CHUNK + threadIdx.x;
      int before = call.left[center], after = call.right[center];
      int place = WINDOW + threadIdx.x;
      contexts = ((2ull << (before + after)) - 1) << (place - before);
      contexts &= ~(1ull << place);
      ids.contexts[threadIdx.x] = contexts;
      ids.share[threadIdx.x] = __fdividef(1.f, (float)__popcll(contexts));
    }
    int num = IS_SKIPGRAM || (IS_TREE && !MEANS) ? __popcll(contexts)
                                                 : contexts != 0;
    uint64 used = contexts;
    for (int lane = 1; lane < 32; lane *= 2) {
      used |= __shfl_xor_sync(FULL, used, lane);
      num += __shfl_xor_sync(FULL, num, lane);
    }
    if (threadIdx.x == 0) ids.used = used, ids.num_examples = num;
  }
  const uint32 number = IS_TREE ? chunk : call.numbers[chunk];
  // The warps that have no centers to look at begin.
  for (int i = THREADS - 1 - threadIdx.x; i < ROWS; i += THREADS) {
    int id, row = i - INPUTS;
    const bool is_input = i < INPUTS;
    if (is_input) {
      id = tokens[IS_SKIPGRAM ? WINDOW + i : i];
    } else if (IS_TREE) {
#if MODEL == 2
      int word = tokens[WINDOW], packed = 2 * (call.vocab - 1);
      if (word < call.vocab)
        packed = row < FIRSTS
            ? call.b[(long long)call.a[word] * FIRSTS + row]
            : call.c[(long long)word * DEEP + row - FIRSTS];
      // The last node's row is that of no node.
      id = packed < 2 * (call.vocab - 1) ? packed : 0x7ffffffe;
#endif
    } else if (row < TARGETS) {
      id = tokens[IS_SKIPGRAM ? row : WINDOW + row];
    } else {
      id = draw(call.a, call.entries, call.draw0, call.draw1,
                number * DRAWS + (row - TARGETS));
    }
    ids.id[i] = id;
    if (IS_TREE && !is_input) id >>= 1;
    float rate = call.learning_rate;
    const int size = is_input ? call.input_brakes_size : call.output_brakes_size;
    if (!ADAGRAD && id < size)
      rate /= 1.f + rate * (is_input ? call.input_brakes : call.output_brakes)[id];
    ids.rate[i] = rate;
#if BFLOAT16
    uint32 bits = mix((uint32)id * 0x9E3779B9u + i + call.noise0);
    bits += number * 0x85EBCA6Bu + is_input;
    ids.noise[i][0] = mix(bits ^ call.noise1);
    ids.noise[i][1] = mix(bits + call.noise1) | 1;
#endif
  }
}

// The row of a table, or none; nodes have their code in the last bit.
__device__ __forceinline__ int row_of(const Call& call, const Ids& ids, int i) {
  int id = ids.id[i];
  if (IS_TREE && i >= INPUTS) id >>= 1;
  return is_used(ids, i) && id < call.vocab ? id : -1;
}

__device__ __forceinline__ float* place_of(Shared& shared, int i) {
  return i < INPUTS ? shared.inputs + i * STRIDE
                    : shared.right + (i - INPUTS) * STRIDE;
}

// Sends for the rows of a chunk.
__device__ __forceinline__ void read_rows(
    const Call& call, Shared& shared, const Ids& ids, const Stored* input,
    const Stored* output) {
#if BFLOAT16
  constexpr int SIZE = DIM % 4 == 0 ? 4 : DIM % 2 == 0 ? 2 : 1;
  constexpr int EACH = DIM / SIZE, MOST = 8;
  // Several are on their way before the first is needed.
  for (int start = threadIdx.x; start < ROWS * EACH; start += MOST * THREADS) {
    uint64 bits[MOST];
#pragma unroll
    for (int k = 0; k < MOST; ++k) {
      int x = start + k * THREADS, i = x / EACH, column = x % EACH * SIZE;
      bits[k] = 0;
      int row = i < ROWS ? row_of(call, ids, i) : -1;
      if (row < 0) continue;
      const Stored* p = (i < INPUTS ? input : output) + (long long)row * DIM;
      p += column;
      bits[k] = SIZE == 4 ? load((const uint64*)p)
          : SIZE == 2 ? load((const uint32*)p) : load(p);
    }
#pragma unroll
    for (int k = 0; k < MOST; ++k) {
      int x = start + k * THREADS, i = x / EACH, column = x % EACH * SIZE;
      if (i >= ROWS) continue;
      float* to = place_of(shared, i) + column;
      for (int j = 0; j < SIZE; ++j)
        to[j] = float_of((uint32)(bits[k] >> 16 * j) << 16);
    }
  }
#else
  constexpr int EACH = DIM / VECTOR;
  for (int x = threadIdx.x; x < ROWS * EACH; x += THREADS) {
    int i = x / EACH, column = x % EACH * VECTOR;
    int row = row_of(call, ids, i);
    if (row < 0) continue;
    const float* from = (i < INPUTS ? input : output) + (long long)row * DIM;
    float* to = place_of(shared, i) + column;
    if (VECTOR == 4)
      fetch(to, from + column);
    else if (VECTOR == 2)
      *(Two*)to = load(from + column, Two());
    else
      *to = load(from + column, 0.f);
  }
#endif
}

// Adds to four columns of a row; `old` is what it was.
__device__ __forceinline__ void change(
    const Ids& ids, Stored* table, int i, int row, int column,
    const float* old, Four grad) {
  if (column >= DIM) return;
  const float rate = ids.rate[i];
  Stored* p = table + (long long)row * DIM + column;
#if BFLOAT16
  // The difference of what is rounded and what was read: an atomic addition
  // of it is exact where the spacing of numbers is the same.
  uint32 words[2] = {0, 0};
  for (int k = 0; k < 4; ++k) {
    float value = old[k] + rate * grad.x[k];
    uint32 whole = bits_of(value), more = 0x7fff + (whole >> 16 & 1);
#if STOCHASTIC
    uint32 by_column = (uint32)(column + k) * 0x9E3779B9u;
    by_column ^= by_column >> 15;
    more = (ids.noise[i][0] ^ by_column) * ids.noise[i][1] >> 16;
#endif
    if ((whole & 0x7fffffffu) < 0x7f7f0000u) whole += more;
    float change = float_of(whole & 0xffff0000u) - old[k];
    uint32 bits = bits_of(change);
    bits += 0x7fff + (bits >> 16 & 1);
    words[k / 2] |= bits >> 16 << 16 * (k % 2);
  }
  if (DIM % 4 == 0) {
    add_words((uint32*)p, words[0], words[1]);
  } else {
    add_word((uint32*)p, words[0]);
    if (column + 2 < DIM) add_word((uint32*)p + 1, words[1]);
  }
#else
  for (int k = 0; k < 4; ++k) grad.x[k] *= rate;
  if (VECTOR == 4) {
    add(p, grad);
  } else if (VECTOR == 2) {
    add(p, Two{{grad.x[0], grad.x[1]}});
    if (column + 2 < DIM) add(p + 2, Two{{grad.x[2], grad.x[3]}});
  } else {
    for (int k = 0; k < 4; ++k)
      if (column + k < DIM) add(p + k, grad.x[k]);
  }
#endif
}

// The product of scores: [16 rows of left] x [8 of right], from all columns.
__device__ __forceinline__ void multiply(
    const float* left, const float* right, float* out) {
  const int lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
  left += g * STRIDE + 2 * t;
  right += g * STRIDE + 2 * t;
  float other[4] = {0, 0, 0, 0};  // two sums, as each waits for the one before
#pragma unroll
  for (int k = 0; k < COLUMNS; k += 8) {
    Two low = *(const Two*)(left + k);
    Two high = *(const Two*)(left + 8 * STRIDE + k);
    Two column = *(const Two*)(right + k);
    mma(k / 8 % 2 ? other : out, rows_of(low, high),
        column_of(column.x[0], column.x[1]));
  }
  for (int e = 0; e < 4; ++e) out[e] += other[e];
}

// Adds weights [16, rows] x sources [rows, 16 columns of a unit] to `out`. Of a
// unit a lane has four columns side by side, 4 t to 4 t + 3, of rows g, g + 8.
struct Tile { float low[4], high[4]; };
template <class F>
__device__ __forceinline__ void multiply_columns(
    F weights, int rows, const float* sources, Tile& out) {
  const int lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
  float even[4], odd[4];
  for (int e = 0; e < 2; ++e) {
    even[e] = out.low[2 * e], odd[e] = out.low[2 * e + 1];
    even[2 + e] = out.high[2 * e], odd[2 + e] = out.high[2 * e + 1];
  }
#pragma unroll
  for (int k = 0; k < rows; k += 8) {
    Two first = *(const Two*)(sources + (k + t) * STRIDE + 2 * g);
    Two second = *(const Two*)(sources + (k + t + 4) * STRIDE + 2 * g);
    A a = rows_of(weights(g, k + t), weights(g + 8, k + t));
    mma(even, a, column_of(first.x[0], second.x[0]));
    mma(odd, a, column_of(first.x[1], second.x[1]));
  }
  for (int e = 0; e < 2; ++e) {
    out.low[2 * e] = even[e], out.low[2 * e + 1] = odd[e];
    out.high[2 * e] = even[2 + e], out.high[2 * e + 1] = odd[2 + e];
  }
}

// What a token has of the mean of center i.
__device__ __forceinline__ float fraction(const Ids& ids, int i, int token) {
  return i < CHUNK && is_bit(ids.contexts[i], token) ? ids.share[i] : 0.f;
}

// The weight of a score, negative for label 1.
__device__ __forceinline__ float weight_of(
    const Call& call, const Shared& shared, const Ids& ids, int i, int j) {
  if (j >= OUTPUTS) return 0.f;
#if MODEL == 2
  int packed = ids.id[INPUTS + j];
  bool is_left = MEANS ? i == 0 : i < AROUND && is_bit(ids.used, i);
  if (!is_left || (packed >> 1) >= call.vocab) return 0.f;
  return packed & 1 ? 1.f : -1.f;
#else
  if (i >= CHUNK) return 0.f;
  const uint64 contexts = ids.contexts[i];
#if MODEL == 0
  if (j < TARGETS) return is_bit(contexts, j) ? -1.f : 0.f;
  uint64 others = contexts & ~shared.hits[j - TARGETS];
  return call.factor * __popcll(others);
#else
  if (!contexts) return 0.f;
  if (j < TARGETS) return j == i ? -1.f : 0.f;
  return ids.id[INPUTS + j] != ids.id[INPUTS + i] ? call.factor : 0.f;
#endif
#endif
}

// Notes which tokens around equal each draw.
__device__ __forceinline__ void find_hits(Shared& shared, const Ids& ids) {
#if MODEL == 0
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
  for (int j = warp; j < DRAWS; j += WARPS) {
    int id = ids.id[INPUTS + TARGETS + j];
    uint64 hits = __ballot_sync(
        FULL, lane < TARGETS && ids.id[INPUTS + lane] == id);
    if (TARGETS > 32)
      hits |= (uint64)__ballot_sync(
          FULL, lane + 32 < TARGETS
              && ids.id[INPUTS + (lane + 32 < TARGETS ? lane + 32 : 0)] == id)
          << 32;
    if (lane == 0) shared.hits[j] = hits;
  }
#endif
}

#if LIMITED
// Of rows that occur more often in the chunk only so many count.
__device__ __forceinline__ void limit_rates(const Call& call, Ids& ids) {
  for (int i = threadIdx.x; i < ROWS; i += THREADS) {
    int row = row_of(call, ids, i), count = 0;
    const int first = i < INPUTS ? 0 : INPUTS, stop = i < INPUTS ? INPUTS : ROWS;
    // Occurrences without a gradient count as well, in what is looked up.
    for (int j = first; j < stop; ++j)
      count += ids.id[j] == ids.id[i] && (!IS_TREE || j >= INPUTS
          || j == WINDOW || is_bit(ids.used, j));
    if (row >= 0 && count > call.parameter)
      ids.rate[i] *= call.parameter / count;
  }
}
#endif

// Scores become slopes of the loss, times -1; returns the loss if it is asked.
__device__ __forceinline__ float score(
    const Call& call, Shared& shared, const Ids& ids, bool measures) {
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
  const int g = lane >> 2, t = lane & 3;
#if MODEL == 1 || AVERAGES
  const float* left = shared.means;
#else
  const float* left = shared.inputs;
#endif
  float loss = 0.f;
  for (int tile = warp; tile < LEFTS * RIGHT / 8; tile += WARPS) {
    const int first = tile / (RIGHT / 8) * 16, j = tile % (RIGHT / 8) * 8;
    float scores[4] = {0, 0, 0, 0};
    multiply(left + first * STRIDE, shared.right + j * STRIDE, scores);
    for (int e = 0; e < 4; ++e) {
      const int x = first + g + 8 * (e >> 1), y = j + 2 * t + (e & 1);
      const float w = weight_of(call, shared, ids, x, y);
      const float s = w < 0.f ? -scores[e] : scores[e];
      const float slope = __fdividef(-w, 1.f + __expf(-s));
      shared.slopes[x * SLOPES + y] = w != 0.f ? rounded(slope) : 0.f;
      shared.turned[y * TURNED + x] = w != 0.f ? rounded(slope) : 0.f;
      if (measures && w != 0.f)
        loss += fabsf(w) * (fmaxf(s, 0.f) + __logf(1.f + __expf(-fabsf(s))));
    }
  }
  return loss;
}

// Means of contexts, of CBOW.
__device__ __forceinline__ void average(Shared& shared, const Ids& ids) {
#if MODEL == 1 || AVERAGES
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
  const int g = lane >> 2, t = lane & 3;
  for (int unit = warp; unit < UNITS; unit += WARPS)
    for (int m = 0; m < LEFTS; ++m) {
      Tile tile = {};
      multiply_columns(
          [&](int i, int k) {
            return Two{{fraction(ids, 16 * m + i, k),
                        fraction(ids, 16 * m + i, k + 4)}};
          },
          INPUT_ROWS, shared.inputs + 16 * unit, tile);
      float* to = shared.means + (16 * m + g) * STRIDE + 16 * unit + 4 * t;
      for (int e = 0; e < 4; ++e) {
        to[e] = rounded(tile.low[e]);
        to[8 * STRIDE + e] = rounded(tile.high[e]);
      }
    }
#endif
}

// Calls `take(i, unit, grads)` with what all rows change by, of the units of a
// warp: of a row of `Ids`, or -1, the four columns of a lane.
template <class F>
__device__ __forceinline__ void gradients(
    Shared& shared, const Ids& ids, F take) {
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
  const int g = lane >> 2, t = lane & 3;
#if MODEL == 1 || AVERAGES
  float* left = shared.means;
#else
  float* left = shared.inputs;
#endif
  const int role = ROLES == 2 ? warp / UNITS : 0;
  for (int unit = ROLES == 2 ? warp % UNITS : warp; unit < UNITS && role < 2;
       unit += WARPS) {
#pragma unroll
    for (int first = 0; first < RIGHTS; first += GROUP) {
      if (ROLES == 2 && role == 0) break;
      Tile tiles[GROUP] = {};
#pragma unroll
      for (int m = 0; m < GROUP; ++m)
        if (first + m < RIGHTS)
          multiply_columns(
              [&](int i, int k) {
                const float* p =
                    shared.turned + (16 * (first + m) + i) * TURNED + k;
                return Two{{p[0], p[4]}};
              },
              LEFT, left + 16 * unit, tiles[m]);
#pragma unroll
      for (int m = 0; m < GROUP; ++m) {
        const int i = 16 * (first + m) + g;
        take(i < OUTPUTS ? INPUTS + i : -1, unit, tiles[m].low);
        take(i + 8 < OUTPUTS ? INPUTS + i + 8 : -1, unit, tiles[m].high);
      }
    }
    if (ROLES == 2 && role == 1) continue;
    Tile tiles[LEFTS] = {};
#pragma unroll
    for (int m = 0; m < LEFTS; ++m)
      multiply_columns(
          [&](int i, int k) {
            const float* p = shared.slopes + (16 * m + i) * SLOPES + k;
            return Two{{p[0], p[4]}};
          },
          RIGHT, shared.right + 16 * unit, tiles[m]);
#if MODEL == 1 || AVERAGES
    // A warp alone has these columns. It may be that means are needed again.
    float* changes = ADAGRAD || ROLES == 2 ? shared.changes : left;
    __syncwarp();
#pragma unroll
    for (int m = 0; m < LEFTS; ++m)
      for (int e = 0; e < 4; ++e) {
        float* to = changes + (16 * m + g) * STRIDE + 16 * unit + 4 * t;
        to[e] = rounded(tiles[m].low[e]);
        to[8 * STRIDE + e] = rounded(tiles[m].high[e]);
      }
    __syncwarp();
#pragma unroll
    for (int m = 0; m < WORDS; ++m) {
      Tile words = {};
      multiply_columns(
          [&](int i, int k) {
            return Two{{fraction(ids, k, 16 * m + i),
                        fraction(ids, k + 4, 16 * m + i)}};
          },
          LEFT, changes + 16 * unit, words);
      const int i = 16 * m + g;
      take(i < INPUTS ? i : -1, unit, words.low);
      take(i + 8 < INPUTS ? i + 8 : -1, unit, words.high);
    }
#else
#pragma unroll
    for (int m = 0; m < LEFTS; ++m) {
      const int i = 16 * m + g;
      take(i < INPUTS ? i : -1, unit, tiles[m].low);
      take(i + 8 < INPUTS ? i + 8 : -1, unit, tiles[m].high);
    }
#endif
  }
}

#if ADAGRAD
// Row-wise Adagrad: rates of rows from their gradients, `tables.row_optimizers`.
__device__ __forceinline__ void set_rates(
    const Call& call, Shared& shared, Ids& ids, float* input_state,
    float* output_state) {
  const int lane = threadIdx.x & 31;
  gradients(shared, ids, [&](int i, int unit, const float* grad) {
    float square = 0.f;
    for (int e = 0; e < 4; ++e) square += grad[e] * grad[e];
    square += __shfl_xor_sync(FULL, square, 1);
    square += __shfl_xor_sync(FULL, square, 2);
    if (i < 0 || lane & 3) return;
    shared.squares[i * UNITS + unit] = square;
  });
  __syncthreads();
  for (int i = threadIdx.x; i < ROWS; i += THREADS) {
    float sum = 0.f;
    for (int k = 0; k < UNITS; ++k) sum += shared.squares[i * UNITS + k];
    shared.sums[i] = row_of(call, ids, i) < 0 ? 0.f : sum / DIM;
  }
  __syncthreads();
  for (int i = threadIdx.x; i < ROWS; i += THREADS) {
    const int row = row_of(call, ids, i);
    if (row < 0) continue;
    // What an id has by all its places is added before any of them changes it.
    float state = shared.state[i];
    const int first = i < INPUTS ? 0 : INPUTS, stop = i < INPUTS ? INPUTS : ROWS;
    for (int j = first; j < stop; ++j)
      if (ids.id[j] == ids.id[i]) state += shared.sums[j];
    if (i < INPUTS) add(input_state + row, shared.sums[i]);
    else add(output_state + row, shared.sums[i]);
    ids.rate[i] = call.learning_rate / (sqrtf(state) + call.parameter);
  }
  __syncthreads();
}
#endif

extern "C" __global__ void __launch_bounds__(THREADS, 1) train(
    const float* numbers, const int* integers, const int* tokens,
    const uint8* left, const uint8* right, const int* chunk_numbers,
    const float* input_brakes, const float* output_brakes, const int* a, const int* b, const int* c,
    float*, Stored*, Stored*, float*, float*,  // the results
    float* totals, Stored* input, Stored* output, float* input_state,
    float* output_state) {
  SHARED_MEMORY
  const Call call = {
      numbers[0], numbers[1], numbers[2], integers[1], (uint32)integers[2],
      (uint32)integers[3], (uint32)integers[4], (uint32)integers[5],
      integers[6], integers[7], (uint32)integers[8], tokens, left, right,
      chunk_numbers, input_brakes, output_brakes, a, b, c};
  const int chunks = integers[0], every = integers[9];
  const int each = (chunks + gridDim.x - 1) / gridDim.x;
  const int begin = blockIdx.x * each;
  const int stop = begin + each < chunks ? begin + each : chunks;
  // Rows that are not read have a weight of zero, and are to be finite.
  for (int i = threadIdx.x; i < INPUT_ROWS * STRIDE; i += THREADS)
    shared.inputs[i] = 0.f;
  for (int i = threadIdx.x; i < RIGHT * STRIDE; i += THREADS)
    shared.right[i] = 0.f;
  if (begin < stop) read_ids(call, begin, shared.ids[0]);
  __syncthreads();
  float loss = 0.f, examples = 0.f;
  for (int chunk = begin; chunk < stop; ++chunk) {
    Ids& ids = shared.ids[(chunk - begin) & 1];
    const bool is_used = ids.used != 0;
    const bool measures = every && chunk % every == 0;
    if (is_used) {
      read_rows(call, shared, ids, input, output);
      find_hits(shared, ids);
#if LIMITED
      limit_rates(call, ids);
#endif
#if ADAGRAD
      for (int i = threadIdx.x; i < ROWS; i += THREADS) {
        const int row = row_of(call, ids, i);
        const float* state = i < INPUTS ? input_state : output_state;
        shared.state[i] = row < 0 ? 0.f : load(state + row, 0.f);
      }
#endif
    }
    if (chunk + 1 < stop)
      read_ids(call, chunk + 1, shared.ids[(chunk + 1 - begin) & 1]);
    if (is_used) {
      arrived();
      __syncthreads();
#if MODEL == 1 || AVERAGES
      average(shared, ids);
      __syncthreads();
#endif
      loss += score(call, shared, ids, measures);
      if (measures && threadIdx.x == 0) examples += ids.num_examples;
      __syncthreads();
#if ADAGRAD
      set_rates(call, shared, ids, input_state, output_state);
#endif
      gradients(shared, ids, [&](int i, int unit, const float* grad) {
        const int row = i < 0 ? -1 : row_of(call, ids, i);
        if (row < 0) return;
        const int column = 16 * unit + 4 * (threadIdx.x & 3);
        change(ids, i < INPUTS ? input : output, i, row, column,
               place_of(shared, i) + column,
               {{grad[0], grad[1], grad[2], grad[3]}});
      });
    }
    __syncthreads();
  }
  if (loss != 0.f) add(totals, loss);
  if (examples != 0.f) add(totals + 1, examples);
}
