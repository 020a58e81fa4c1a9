// Steps of the word2vec models on a GPU, chunk by chunk, as
// `kernels/cpu` has them on a CPU.
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
// LIMITED. `windows.py` chooses them.
//
// The arguments of `train`, of a call of n words in chunks of c, as `step.py`
// gives them:
//
//   numbers           learning rate; max_duplicates or Adagrad's epsilon; K / N;
//                     weights of skip-gram's contexts by distance, from 1 on
//   integers          chunks (of a tree, centers); vocabulary; keys of draws
//                     and of rounding, two each; sizes of both brakes; entries
//                     of the alias table; after how many chunks the loss is
//                     measured, 0 = never
//   tokens            [n + 2 WINDOW], those above the vocabulary are padding
//   left, right       [n], contexts of each center on both sides
//   chunk_numbers     [n / c], which draws depend on
//   *_brakes          [h], `kernels/brakes.py`, of the first rows of a table
//   a, b, c           the alias table in a; or of a tree `exits`, `firsts` and
//                     `deep` of `ops.huffman.Split`
//   totals            loss in nats and examples, which are added to
//   input, output     [vocabulary, DIM], the tables, and [vocabulary] or [1],
//                     their optimizer states

#ifndef HOST
#define HALVES (__CUDA_ARCH__ < 800)
#define VECTOR_ADDS (__CUDA_ARCH__ >= 900)
#endif

#define MEANS (MODEL == 1 || AVERAGES)  // of contexts are the left factor

typedef unsigned char uint8;
typedef unsigned short uint16;
typedef unsigned int uint32;
typedef unsigned long long uint64;

constexpr bool IS_TREE = MODEL == 2;
constexpr bool IS_SKIPGRAM = MODEL == 0;
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
constexpr int GROUP = RIGHTS < 2 ? RIGHTS : 2;  // of 16 rows, in registers
constexpr int USED_RIGHT = padded(OUTPUTS, 8);
constexpr int TURNS = (ROWS + THREADS - 1) / THREADS;
// Warps that compute scores; if enough are left, these prepare the next chunk.
constexpr int TILES = LEFTS * ((OUTPUTS + 7) / 8);
constexpr bool HAS_OTHERS = WARPS - TILES >= 4;
constexpr uint32 FULL = 0xffffffffu;
constexpr int NO_NODE = 0x7ffffffe;

struct __align__(16) Four { float x[4]; };
struct __align__(8) Two { float x[2]; };
struct __align__(16) Words { uint32 x[4]; };

// Numbers of a row that are read at once.
#if BFLOAT16
typedef uint16 Stored;
constexpr int VECTOR = DIM % 8 == 0 ? 8 : 2;
constexpr bool IS_FETCHED = false;
#if DIM % 8 == 0
typedef Words Loaded;
#else
typedef uint32 Loaded;
#endif
#else
typedef float Stored;
constexpr int VECTOR = DIM % 4 == 0 ? 4 : DIM % 2 == 0 ? 2 : 1;
constexpr bool IS_FETCHED = VECTOR == 4 && !HALVES;
#if DIM % 4 == 0
typedef Four Loaded;
#elif DIM % 2 == 0
typedef Two Loaded;
#else
typedef float Loaded;
#endif
#endif

// A chunk, in shared memory.
struct Chunk {
  int id[ROWS];  // those of the vocabulary are below it; of nodes with a code
  int row[ROWS];  // of the tables, -1 = not needed
  float rate[ROWS];
  uint64 contexts[CHUNK];  // of each center, of the tokens around
  // Of each context in their mean; in skip-gram the sum of their weights.
  float share[CHUNK];
  uint64 used;  // tokens that are a context of any
  float num_examples;
  __align__(16) float slopes[LEFT * SLOPES];  // weights of scores at first
#if BFLOAT16
  uint32 noise[ROWS][2];
#endif
#if ADAGRAD
  int same[ROWS];  // the next place of an id, in a circle
#endif
};
struct Shared {
  float inputs[INPUT_ROWS * STRIDE];
  float right[RIGHT * STRIDE];
#if MEANS
  float means[LEFT * STRIDE];
  float changes[ADAGRAD || ROLES == 2 ? LEFT * STRIDE : 1];
#endif
  float turned[RIGHT * TURNED];  // slopes, column by column
  Chunk chunks[2];  // this one and the next one
#if ADAGRAD
  float squares[ROWS * (UNITS + 1)];  // of each unit of columns
  float state[ROWS];
#endif
};

#ifndef HOST
#define SHARED_MEMORY \
  extern __shared__ Four memory[]; \
  Shared& shared = *(Shared*)memory;

// Rows are read from the L2 cache: other blocks change them meanwhile.
__device__ __forceinline__ void load(const void* p, Four& v) {
  asm volatile("ld.global.cg.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(v.x[0]), "=f"(v.x[1]), "=f"(v.x[2]), "=f"(v.x[3])
               : "l"(p));
}
__device__ __forceinline__ void load(const void* p, Two& v) {
  asm volatile("ld.global.cg.v2.f32 {%0, %1}, [%2];"
               : "=f"(v.x[0]), "=f"(v.x[1]) : "l"(p));
}
__device__ __forceinline__ void load(const void* p, float& v) {
  asm volatile("ld.global.cg.f32 %0, [%1];" : "=f"(v) : "l"(p));
}
__device__ __forceinline__ void load(const void* p, uint32& v) {
  asm volatile("ld.global.cg.u32 %0, [%1];" : "=r"(v) : "l"(p));
}
__device__ __forceinline__ void load(const void* p, Words& v) {
  asm volatile("ld.global.cg.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x[0]), "=r"(v.x[1]), "=r"(v.x[2]), "=r"(v.x[3])
               : "l"(p));
}
// 16 bytes on their way to shared memory; `arrived` waits for them.
__device__ __forceinline__ void fetch(float* to, const void* from) {
#if !HALVES
  const uint32 place = (uint32)__cvta_generic_to_shared(to);
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;"
               :: "r"(place), "l"(from) : "memory");
#endif
}
__device__ __forceinline__ void arrived() {
#if !HALVES
  asm volatile("cp.async.wait_all;" ::: "memory");
#endif
}
__device__ __forceinline__ void add(float* p, Four v) {
#if VECTOR_ADDS
  asm volatile("red.relaxed.gpu.global.add.v4.f32 [%0], {%1, %2, %3, %4};"
               :: "l"(p), "f"(v.x[0]), "f"(v.x[1]), "f"(v.x[2]), "f"(v.x[3])
               : "memory");
#else
  for (int i = 0; i < 4; ++i) atomicAdd(p + i, v.x[i]);
#endif
}
__device__ __forceinline__ void add(float* p, Two v) {
#if VECTOR_ADDS
  asm volatile("red.relaxed.gpu.global.add.v2.f32 [%0], {%1, %2};"
               :: "l"(p), "f"(v.x[0]), "f"(v.x[1]) : "memory");
#else
  for (int i = 0; i < 2; ++i) atomicAdd(p + i, v.x[i]);
#endif
}
__device__ __forceinline__ void add(float* p, float v) { atomicAdd(p, v); }
__device__ __forceinline__ uint32 bits_of(float x) {
  return __float_as_uint(x);
}
__device__ __forceinline__ float float_of(uint32 x) {
  return __uint_as_float(x);
}
// To bfloat16, two in a word.
__device__ __forceinline__ uint32 pack_bfloat16(float low, float high) {
  uint32 v;
#if !HALVES
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(v) : "f"(high), "f"(low));
#else
  uint32 a = bits_of(low), b = bits_of(high);
  a += 0x7fff + (a >> 16 & 1), b += 0x7fff + (b >> 16 & 1);
  v = a >> 16 | (b & 0xffff0000u);
#endif
  return v;
}
// Two bfloat16 to each of one or two words.
__device__ __forceinline__ void add_word(uint32* p, uint32 v) {
#if VECTOR_ADDS
  asm volatile("red.relaxed.gpu.global.add.noftz.bf16x2 [%0], %1;"
               :: "l"(p), "r"(v) : "memory");
#else
  uint32 old, seen;
  load(p, old);
  do {
    seen = old;
    const float low = float_of(seen << 16) + float_of(v << 16);
    const float high =
        float_of(seen & 0xffff0000u) + float_of(v & 0xffff0000u);
    old = atomicCAS(p, seen, pack_bfloat16(low, high));
  } while (old != seen);
#endif
}
__device__ __forceinline__ void add_words(uint32* p, uint32 v, uint32 w) {
#if VECTOR_ADDS
  asm volatile("red.relaxed.gpu.global.add.noftz.v2.bf16x2 [%0], {%1, %2};"
               :: "l"(p), "r"(v), "r"(w) : "memory");
#else
  add_word(p, v);
  add_word(p + 1, w);
#endif
}
__device__ __forceinline__ float root(float x) {
  float v;
  asm("sqrt.approx.f32 %0, %1;" : "=f"(v) : "f"(x));
  return v;
}
__device__ __forceinline__ uint32 pack(float low, float high) {
  uint32 v;
  asm("{.reg .f16 a, b; cvt.rn.f16.f32 a, %1; cvt.rn.f16.f32 b, %2; "
      "mov.b32 %0, {a, b};}" : "=r"(v) : "f"(low), "f"(high));
  return v;
}
#endif  // HOST

__device__ __forceinline__ void store(float* to, const Four& v) {
  *(Four*)to = v;
}
__device__ __forceinline__ void store(float* to, const Two& v) {
  *(Two*)to = v;
}
__device__ __forceinline__ void store(float* to, float v) { *to = v; }
// Of bfloat16.
__device__ __forceinline__ void store(float* to, uint32 v) {
  *(Two*)to = {{float_of(v << 16), float_of(v & 0xffff0000u)}};
}
__device__ __forceinline__ void store(float* to, const Words& v) {
  for (int k = 0; k < 4; ++k) store(to + 2 * k, v.x[k]);
}

// As many as registers allow.
constexpr int UNROLLED = VECTOR_ADDS ? 4 : 2;

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
__device__ __forceinline__ uint32 entry_of(uint32 bits, uint32 entries) {
  return (uint32)(((uint64)bits * entries) >> 32);
}
// `pair` is a chance to keep the entry, and what is taken otherwise.
__device__ __forceinline__ int drawn(
    uint32 bits, uint32 entries, uint32 key1, uint64 pair) {
  const float coin = (float)(mix(bits + key1) >> 8) * (1.f / 16777216.f);
  return coin < float_of((uint32)pair) ? (int)entry_of(bits, entries)
                                       : (int)(pair >> 32);
}

// What all parts of the kernel know.
struct Call {
  float learning_rate, parameter, factor;
  const float* weights;  // by distance, from 1 on
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

// What is on its way of the next chunk, and of the one behind it.
struct Coming {
  int id[TURNS];  // or the bits of a draw
#if MODEL != 2
  uint64 pair[TURNS];  // of a draw
#endif
  int before, after;  // contexts of a center
  int known;  // what ids depend on: a chunk's number, or of a tree the word
};

__device__ __forceinline__ void send_for_known(
    const Call& call, int chunk, Coming& coming) {
  coming.known = IS_TREE ? call.tokens[chunk + WINDOW] : call.numbers[chunk];
}

// Sends for the ids of a chunk. The warps that have no centers begin.
__device__ __forceinline__ void send_for_ids(
    const Call& call, int chunk, Coming& coming) {
  const long long first = (long long)chunk * CHUNK;
  const int* tokens = call.tokens + first;
  if (threadIdx.x < CHUNK) {
    coming.before = call.left[first + threadIdx.x];
    coming.after = call.right[first + threadIdx.x];
  }
#pragma unroll
  for (int turn = 0; turn < TURNS; ++turn) {
    const int i = THREADS - 1 - threadIdx.x + turn * THREADS, j = i - INPUTS;
    if (i >= ROWS) break;
    if (j < 0) {
      coming.id[turn] = tokens[IS_SKIPGRAM ? WINDOW + i : i];
    } else if (IS_TREE) {
#if MODEL == 2
      const int word = coming.known;
      coming.id[turn] = word >= call.vocab ? NO_NODE
          : j < FIRSTS ? call.b[(long long)call.a[word] * FIRSTS + j]
                       : call.c[(long long)word * DEEP + j - FIRSTS];
#endif
    } else if (j < TARGETS) {
      coming.id[turn] = tokens[IS_SKIPGRAM ? j : WINDOW + j];
    } else {
#if MODEL != 2
      const uint32 bits = random_bits(
          call.draw0, call.draw1, (uint32)coming.known * DRAWS + (j - TARGETS));
      coming.id[turn] = (int)bits;
      coming.pair[turn] = ((const uint64*)call.a)[entry_of(bits, call.entries)];
#endif
    }
  }
}

// Notes what has come.
__device__ __forceinline__ void note_ids(
    const Call& call, const Coming& coming, Chunk& chunk) {
  if (threadIdx.x < 32) {
    const int lane = threadIdx.x;
    uint64 contexts = 0;
    float num = 0.f;
    if (lane < CHUNK) {
      const int place = WINDOW + lane;
      contexts = ((2ull << (coming.before + coming.after)) - 1)
          << (place - coming.before);
      contexts &= ~(1ull << place);
      chunk.contexts[lane] = contexts;
      float share = 0.f;
      if (IS_SKIPGRAM)
        for (int i = 1; i <= WINDOW; ++i)
          share += call.weights[i]
              * ((i <= coming.before) + (i <= coming.after));
      else
        share = __fdividef(1.f, (float)__popcll(contexts));
      chunk.share[lane] = num = share;
    }
    if (!IS_SKIPGRAM)
      num = IS_TREE && !MEANS ? __popcll(contexts) : contexts != 0;
    uint32 low = (uint32)contexts, high = (uint32)(contexts >> 32);
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      low |= __shfl_xor_sync(FULL, low, step);
      if (AROUND > 32) high |= __shfl_xor_sync(FULL, high, step);
      num += __shfl_xor_sync(FULL, num, step);
    }
    if (lane == 0) {
      chunk.used = (uint64)high << 32 | low;
      chunk.num_examples = num;
    }
  }
#pragma unroll
  for (int turn = 0; turn < TURNS; ++turn) {
    const int i = THREADS - 1 - threadIdx.x + turn * THREADS;
    if (i >= ROWS) break;
    int id = coming.id[turn];
#if MODEL != 2
    if (i >= INPUTS + TARGETS)
      id = drawn((uint32)id, call.entries, call.draw1, coming.pair[turn]);
#endif
    chunk.id[i] = id;
  }
}

// Whether a chunk has a gradient of a row.
__device__ __forceinline__ bool is_needed(const Chunk& chunk, int i) {
  const int j = i - INPUTS;
  if (IS_SKIPGRAM) {
    if (j < 0) return chunk.contexts[i] != 0;
    return j < TARGETS ? is_bit(chunk.used, j) : chunk.used != 0;
  }
  if (j < 0) return is_bit(chunk.used, i);
  if (IS_TREE || j >= TARGETS) return chunk.used != 0;
  return chunk.contexts[j] != 0;
}

// The rows of a chunk, how far they go, and the weights of their scores,
// negative for label 1. Some warps do so while others are at the chunk before.
__device__ __forceinline__ void prepare(
    const Call& call, int place, Chunk& chunk, int warp, int warps) {
  const int lane = threadIdx.x & 31;
  for (int i = 32 * warp + lane; i < ROWS; i += 32 * warps) {
    const bool is_input = i < INPUTS;
    const int id = IS_TREE && !is_input ? chunk.id[i] >> 1 : chunk.id[i];
    // Of nodes there is one less than of words.
    const int number = call.vocab - (IS_TREE && !is_input);
    const int row = is_needed(chunk, i) && id < number ? id : -1;
    chunk.row[i] = row;
#if LIMITED || ADAGRAD
    const int first = is_input ? 0 : INPUTS, stop = is_input ? INPUTS : ROWS;
#endif
#if ADAGRAD
    int lowest = i, next = ROWS;
    for (int j = stop - 1; j >= first; --j)
      if (chunk.id[j] == chunk.id[i]) {
        lowest = j;
        if (j > i) next = j;
      }
    chunk.same[i] = next < ROWS ? next : lowest;
#endif
    if (row < 0) continue;
    float rate = call.learning_rate;
#if !ADAGRAD
    if (row < (is_input ? call.input_brakes_size : call.output_brakes_size))
      rate /= 1.f + rate * (is_input ? call.input_brakes
                                     : call.output_brakes)[row];
#endif
#if LIMITED
    int count = 0;
    // Occurrences without a gradient count as well, but for a tree's inputs.
    for (int j = first; j < stop; ++j)
      count += chunk.id[j] == chunk.id[i]
          && (!IS_TREE || !is_input || is_bit(chunk.used, j));
    if (count > call.parameter) rate *= call.parameter / count;
#endif
    chunk.rate[i] = rate;
#if BFLOAT16
    uint32 bits = mix((uint32)row * 0x9E3779B9u + i + call.noise0);
    bits += (uint32)place * 0x85EBCA6Bu + is_input;
    chunk.noise[i][0] = mix(bits ^ call.noise1);
    chunk.noise[i][1] = mix(bits + call.noise1) | 1;
#endif
  }
#if MODEL == 2
  for (int j = warp; j < TARGETS; j += warps) {
    const int packed = chunk.id[INPUTS + j];
    const bool is_node = packed >> 1 < call.vocab - 1;
    const float sign = !is_node ? 0.f : packed & 1 ? 1.f : -1.f;
    for (int i = lane; i < LEFT; i += 32) {
      const bool is_left = MEANS ? i == 0 && chunk.used != 0
                                 : i < AROUND && is_bit(chunk.used, i);
      chunk.slopes[i * SLOPES + j] = is_left ? sign : 0.f;
    }
  }
#else
  const uint64 contexts = lane < CHUNK ? chunk.contexts[lane] : 0;
  const int own = WINDOW + lane;  // where the center is among the tokens
  float* const weights = chunk.slopes + lane * SLOPES;
  for (int j = warp; j < OUTPUTS; j += warps) {
    float weight = 0.f;
    if (j < TARGETS && IS_SKIPGRAM) {
      const int distance = abs(j - own);
      if (is_bit(contexts, j)) weight = -call.weights[distance];
    } else if (j < TARGETS) {
      weight = j == lane && contexts != 0 ? -1.f : 0.f;
    } else if (IS_SKIPGRAM) {
      const int id = chunk.id[INPUTS + j];
      // A draw that is a context of the center does not count.
      uint64 hits = __ballot_sync(
          FULL, lane < AROUND && chunk.id[INPUTS + lane] == id);
      if (AROUND > 32) {
        const int k = lane + 32 < AROUND ? lane + 32 : 0;
        hits |= (uint64)__ballot_sync(
            FULL, k && chunk.id[INPUTS + k] == id) << 32;
      }
      hits &= contexts;
      weight = lane < CHUNK ? chunk.share[lane] : 0.f;
      for (int i = 1; hits && i <= WINDOW; ++i)
        weight -= call.weights[i] * (is_bit(hits, own - i)
                                     + is_bit(hits, own + i));
      weight *= call.factor;
    } else if (contexts) {
      const bool differs = chunk.id[INPUTS + j] != chunk.id[INPUTS + lane];
      weight = differs ? call.factor : 0.f;
    }
    if (lane < CHUNK) weights[j] = weight;
  }
#endif
}

__device__ __forceinline__ float* place_of(Shared& shared, int i) {
  return i < INPUTS ? shared.inputs + i * STRIDE
                    : shared.right + (i - INPUTS) * STRIDE;
}

// Sends for the rows of a chunk, all of them before any is waited for.
__device__ __forceinline__ void read_rows(
    Shared& shared, const Chunk& chunk, const Stored* input,
    const Stored* output) {
  constexpr int EACH = DIM / VECTOR;  // vectors of a row
  constexpr int NUMBER = (ROWS * EACH + THREADS - 1) / THREADS;
  constexpr int MOST = HALVES ? 3 : NUMBER < 6 ? NUMBER : 4;  // in registers
#pragma unroll 1
  for (int start = 0; start < NUMBER; start += MOST) {
    int rows[MOST];
    Loaded loaded[MOST];
#pragma unroll
    for (int k = 0; k < MOST; ++k) {
      const int x = threadIdx.x + (start + k) * THREADS;
      const bool is_row = start + k < NUMBER && x < ROWS * EACH;
      rows[k] = is_row ? chunk.row[x / EACH] : -1;
    }
#pragma unroll
    for (int k = 0; k < MOST; ++k) {
      const int x = threadIdx.x + (start + k) * THREADS, i = x / EACH;
      if (rows[k] < 0) continue;
      const Stored* from = (i < INPUTS ? input : output)
          + (long long)rows[k] * DIM + x % EACH * VECTOR;
      if (IS_FETCHED)
        fetch(place_of(shared, i) + x % EACH * VECTOR, from);
      else
        load(from, loaded[k]);
    }
    if (IS_FETCHED) continue;
#pragma unroll
    for (int k = 0; k < MOST; ++k) {
      const int x = threadIdx.x + (start + k) * THREADS, i = x / EACH;
      if (rows[k] >= 0)
        store(place_of(shared, i) + x % EACH * VECTOR, loaded[k]);
    }
  }
}

// Adds to four columns of a row; `old` is what it was.
__device__ __forceinline__ void change(
    const Chunk& chunk, Stored* table, int i, int column, const float* old,
    const float* grad) {
  const float rate = chunk.rate[i];
  Stored* p = table + (long long)chunk.row[i] * DIM + column;
#if BFLOAT16
  // The difference of what is rounded and what was read: an atomic addition
  // of it is exact where the spacing of numbers is the same.
  const Four before = *(const Four*)old;
  float changes[4];
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    uint32 whole = bits_of(before.x[k] + rate * grad[k]);
    uint32 more = 0x7fff + (whole >> 16 & 1);
#if STOCHASTIC
    uint32 by_column = (uint32)(column + k) * 0x9E3779B9u;
    by_column ^= by_column >> 15;
    more = (chunk.noise[i][0] ^ by_column) * chunk.noise[i][1] >> 16;
#endif
    if ((whole & 0x7fffffffu) < 0x7f7f0000u) whole += more;
    changes[k] = float_of(whole & 0xffff0000u) - before.x[k];
  }
  const uint32 low = pack_bfloat16(changes[0], changes[1]);
  const uint32 high = pack_bfloat16(changes[2], changes[3]);
  if (DIM % 4 == 0) {
    add_words((uint32*)p, low, high);
  } else {
    add_word((uint32*)p, low);
    if (column + 2 < DIM) add_word((uint32*)p + 1, high);
  }
#else
  if (VECTOR == 4) {
    add(p, Four{{rate * grad[0], rate * grad[1], rate * grad[2],
                 rate * grad[3]}});
  } else if (VECTOR == 2) {
    add(p, Two{{rate * grad[0], rate * grad[1]}});
    if (column + 2 < DIM) add(p + 2, Two{{rate * grad[2], rate * grad[3]}});
  } else {
    for (int k = 0; k < 4; ++k)
      if (column + k < DIM) add(p + k, rate * grad[k]);
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
#pragma unroll UNROLLED
  for (int k = 0; k < COLUMNS; k += 8) {
    Two low = *(const Two*)(left + k);
    Two high = *(const Two*)(left + 8 * STRIDE + k);
    Two column = *(const Two*)(right + k);
    mma(k / 8 % 2 ? other : out, rows_of(low, high),
        column_of(column.x[0], column.x[1]));
  }
  for (int e = 0; e < 4; ++e) out[e] += other[e];
}

// The product of weights [16, rows] and sources [rows, 16 columns of a unit],
// of which a lane has columns 4 t to 4 t + 3 of rows g and g + 8.
struct Tile { float low[4], high[4]; };
template <class F>
__device__ __forceinline__ Tile multiply_columns(
    F weights, int rows, const float* sources) {
  const int lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
  float even[4] = {0, 0, 0, 0}, odd[4] = {0, 0, 0, 0};
#pragma unroll UNROLLED
  for (int k = 0; k < rows; k += 8) {
    Two first = *(const Two*)(sources + (k + t) * STRIDE + 2 * g);
    Two second = *(const Two*)(sources + (k + t + 4) * STRIDE + 2 * g);
    A a = rows_of(weights(g, k + t), weights(g + 8, k + t));
    mma(even, a, column_of(first.x[0], second.x[0]));
    mma(odd, a, column_of(first.x[1], second.x[1]));
  }
  return {{even[0], odd[0], even[1], odd[1]},
          {even[2], odd[2], even[3], odd[3]}};
}

__device__ __forceinline__ float* left_rows(Shared& shared) {
#if MEANS
  return shared.means;
#else
  return shared.inputs;
#endif
}

// What a token has of the mean of center i.
__device__ __forceinline__ float fraction(
    const Chunk& chunk, int i, int token) {
  return i < CHUNK && is_bit(chunk.contexts[i], token) ? chunk.share[i] : 0.f;
}

// Weights of scores become slopes of the loss, times -1; returns the loss if it
// is asked for.
__device__ __forceinline__ float score(
    Shared& shared, Chunk& chunk, bool measures) {
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
  const int g = lane >> 2, t = lane & 3;
  const float* left = left_rows(shared);
  float loss = 0.f;
#pragma unroll 1
  for (int tile = warp; tile < TILES; tile += WARPS) {
    const int first = tile % LEFTS * 16, j = tile / LEFTS * 8;
    float scores[4] = {0, 0, 0, 0}, weights[4];
    multiply(left + first * STRIDE, shared.right + j * STRIDE, scores);
#pragma unroll
    for (int e = 0; e < 4; e += 2) {
      const int x = first + g + 4 * e, y = j + 2 * t;
      Two* const place = (Two*)(chunk.slopes + x * SLOPES + y);
      Two slopes = *place;
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        const float w = weights[e + k] = slopes.x[k];
        const float s = w < 0.f ? -scores[e + k] : scores[e + k];
        slopes.x[k] = rounded(__fdividef(-w, 1.f + __expf(-s)));
        shared.turned[(y + k) * TURNED + x] = slopes.x[k];
      }
      *place = slopes;
    }
    if (!measures) continue;
    for (int e = 0; e < 4; ++e) {
      const float w = weights[e], s = w < 0.f ? -scores[e] : scores[e];
      if (w != 0.f)
        loss += fabsf(w) * (fmaxf(s, 0.f) + __logf(1.f + __expf(-fabsf(s))));
    }
  }
  return loss;
}

#if MEANS
// Means of contexts, of CBOW.
__device__ __forceinline__ void average(Shared& shared, const Chunk& chunk) {
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
  const int g = lane >> 2, t = lane & 3;
  for (int unit = warp; unit < UNITS; unit += WARPS)
    for (int m = 0; m < LEFTS; ++m) {
      const Tile tile = multiply_columns(
          [&](int i, int k) {
            return Two{{fraction(chunk, 16 * m + i, k),
                        fraction(chunk, 16 * m + i, k + 4)}};
          },
          INPUT_ROWS, shared.inputs + 16 * unit);
      float* to = shared.means + (16 * m + g) * STRIDE + 16 * unit + 4 * t;
      for (int e = 0; e < 4; ++e) {
        to[e] = rounded(tile.low[e]);
        to[8 * STRIDE + e] = rounded(tile.high[e]);
      }
    }
}
#endif

// Rows that a lane has gradients of, by slot: first those of outputs.
constexpr int OUTPUT_SLOTS = 2 * RIGHTS;
constexpr int SLOTS = OUTPUT_SLOTS + 2 * (MEANS ? WORDS : LEFTS);
__device__ __forceinline__ int row_in(int slot) {
  const int g = (threadIdx.x & 31) >> 2;
  if (slot < OUTPUT_SLOTS) {
    const int i = 8 * slot + g;
    return i < OUTPUTS ? INPUTS + i : -1;
  }
  const int i = 8 * (slot - OUTPUT_SLOTS) + g;
  return i < INPUTS ? i : -1;
}

// Calls `take(slot, unit, grads)` with what rows change by, of the units of a
// warp: the four columns of a lane.
template <class F>
__device__ __forceinline__ void gradients(
    Shared& shared, const Chunk& chunk, F take) {
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
  const int g = lane >> 2, t = lane & 3;
  float* left = left_rows(shared);
  const int role = ROLES == 2 ? warp / UNITS : 0;
  for (int unit = ROLES == 2 ? warp % UNITS : warp; unit < UNITS && role < 2;
       unit += WARPS) {
#pragma unroll
    for (int first = 0; first < RIGHTS; first += GROUP) {
      if (ROLES == 2 && role == 0) break;
      Tile tiles[GROUP];
#pragma unroll
      for (int m = 0; m < GROUP; ++m)
        if (first + m < RIGHTS)
          tiles[m] = multiply_columns(
              [&](int i, int k) {
                const float* p =
                    shared.turned + (16 * (first + m) + i) * TURNED + k;
                return Two{{p[0], p[4]}};
              },
              LEFT, left + 16 * unit);
#pragma unroll
      for (int m = 0; m < GROUP; ++m) {
        if (first + m >= RIGHTS) break;
        take(2 * (first + m), unit, tiles[m].low);
        take(2 * (first + m) + 1, unit, tiles[m].high);
      }
    }
    if (ROLES == 2 && role == 1) continue;
    Tile tiles[LEFTS];
#pragma unroll
    for (int m = 0; m < LEFTS; ++m)
      tiles[m] = multiply_columns(
          [&](int i, int k) {
            const float* p = chunk.slopes + (16 * m + i) * SLOPES + k;
            return Two{{p[0], p[4]}};
          },
          USED_RIGHT, shared.right + 16 * unit);
#if MEANS
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
      const Tile words = multiply_columns(
          [&](int i, int k) {
            return Two{{fraction(chunk, k, 16 * m + i),
                        fraction(chunk, k + 4, 16 * m + i)}};
          },
          LEFT, changes + 16 * unit);
      take(OUTPUT_SLOTS + 2 * m, unit, words.low);
      take(OUTPUT_SLOTS + 2 * m + 1, unit, words.high);
    }
#else
#pragma unroll
    for (int m = 0; m < LEFTS; ++m) {
      take(OUTPUT_SLOTS + 2 * m, unit, tiles[m].low);
      take(OUTPUT_SLOTS + 2 * m + 1, unit, tiles[m].high);
    }
#endif
  }
}

// Adds what the rows of a slot change by.
__device__ __forceinline__ void change_slot(
    Shared& shared, const Chunk& chunk, Stored* input, Stored* output,
    int slot, int unit, const float* grad) {
  const int i = row_in(slot), column = 16 * unit + 4 * (threadIdx.x & 3);
  if (i < 0 || column >= DIM || chunk.row[i] < 0) return;
  Stored* table = slot < OUTPUT_SLOTS ? output : input;
  change(chunk, table, i, column, place_of(shared, i) + column, grad);
}

#if ADAGRAD
// Sums squares of the gradients of a slot.
__device__ __forceinline__ void square_slot(
    Shared& shared, int slot, int unit, const float* grad) {
  float square = 0.f;
  for (int e = 0; e < 4; ++e) square += grad[e] * grad[e];
  square += __shfl_xor_sync(FULL, square, 1);
  square += __shfl_xor_sync(FULL, square, 2);
  const int i = row_in(slot);
  if (i >= 0 && (threadIdx.x & 3) == 0)
    shared.squares[i * (UNITS + 1) + unit] = square;
}

// The mean of the squares of a row's gradient.
__device__ __forceinline__ float square_of(const Shared& shared, int i) {
  float sum = 0.f;
#pragma unroll
  for (int unit = 0; unit < UNITS; ++unit)
    sum += shared.squares[i * (UNITS + 1) + unit];
  return sum * (1.f / DIM);
}

// Row-wise Adagrad, as of `tables.row_optimizers`: rates from gradients.
__device__ __forceinline__ void set_rates(
    const Call& call, Shared& shared, Chunk& chunk, float* input_state,
    float* output_state) {
  __syncthreads();
  for (int i = threadIdx.x; i < ROWS; i += THREADS) {
    if (chunk.row[i] < 0) continue;
    const float own = square_of(shared, i);
    add((i < INPUTS ? input_state : output_state) + chunk.row[i], own);
    // What an id has by all its places is added before any of them changes it.
    float state = shared.state[i] + own;
    for (int j = chunk.same[i]; j != i; j = chunk.same[j])
      state += square_of(shared, j);
    const float divisor = root(state) + call.parameter;
    chunk.rate[i] = __fdividef(call.learning_rate, divisor);
  }
  __syncthreads();
}
#endif

extern "C" __global__ void __launch_bounds__(THREADS, 1) train(
    const float* numbers, const int* integers, const int* tokens,
    const uint8* left, const uint8* right, const int* chunk_numbers,
    const float* input_brakes, const float* output_brakes, const int* a,
    const int* b, const int* c, float*, Stored*, Stored*, float*,
    float*,  // the results
    float* totals, Stored* input, Stored* output, float* input_state,
    float* output_state) {
  SHARED_MEMORY
  const Call call = {
      numbers[0], numbers[1], numbers[2], numbers + 2, integers[1],
      (uint32)integers[2], (uint32)integers[3], (uint32)integers[4],
      (uint32)integers[5], integers[6], integers[7], (uint32)integers[8],
      tokens, left, right, chunk_numbers, input_brakes, output_brakes, a, b, c};
  const int chunks = integers[0], every = integers[9];
  const int each = (chunks + gridDim.x - 1) / gridDim.x;
  const int begin = blockIdx.x * each;
  const int stop = begin + each < chunks ? begin + each : chunks;
  if (begin >= stop) return;
  const int warp = threadIdx.x >> 5;
  // Rows that are not read have a weight of zero, and are to be finite.
  for (int i = threadIdx.x; i < (int)(sizeof(Shared) / 4); i += THREADS)
    ((float*)&shared)[i] = 0.f;
  __syncthreads();
  Coming coming;
  send_for_known(call, begin, coming);
  float loss = 0.f, examples = 0.f;
#if ADAGRAD
  float state[TURNS] = {};
#endif
  // The next chunk whose loss is measured.
  int measured = every ? (begin + every - 1) / every * every : stop;
  // Before the first chunk is one without words.
  for (int i = begin - 1; i < stop; ++i) {
    Chunk& chunk = shared.chunks[i & 1];
    Chunk& next = shared.chunks[(i + 1) & 1];
    const bool is_used = chunk.used != 0, has_next = i + 1 < stop;
    const bool measures = i == measured;
    if (measures) measured += every;
    if (has_next) send_for_ids(call, i + 1, coming);
    if (i + 2 < stop) send_for_known(call, i + 2, coming);
    if (is_used) {
      read_rows(shared, chunk, input, output);
#if ADAGRAD
#pragma unroll
      for (int turn = 0; turn < TURNS; ++turn) {
        const int k = threadIdx.x + turn * THREADS;
        if (k < ROWS && chunk.row[k] >= 0)
          load((k < INPUTS ? input_state : output_state) + chunk.row[k],
               state[turn]);
      }
#endif
    }
    if (has_next) note_ids(call, coming, next);
#if ADAGRAD
#pragma unroll
    for (int turn = 0; turn < TURNS; ++turn)
      if (threadIdx.x + turn * THREADS < ROWS)
        shared.state[threadIdx.x + turn * THREADS] = state[turn];
#endif
    arrived();
    __syncthreads();
    if (is_used) {
#if MEANS
      average(shared, chunk);
      __syncthreads();
#endif
      loss += score(shared, chunk, measures);
      if (measures && threadIdx.x == 0) examples += chunk.num_examples;
    }
    if (has_next && (!HAS_OTHERS || warp >= TILES))
      prepare(call, i + 1, next, HAS_OTHERS ? warp - TILES : warp,
              HAS_OTHERS ? WARPS - TILES : WARPS);
    __syncthreads();
    if (!is_used) continue;
#if ADAGRAD
    // Gradients stay in registers if there are few for each warp.
    constexpr bool IS_KEPT =
        ROLES == 2 || (UNITS <= WARPS && !MEANS && !BFLOAT16);
    // Of two roles each has other slots.
    constexpr int LATER = ROLES == 2 ? OUTPUT_SLOTS : 0;
    constexpr int KEPT = SLOTS - LATER > OUTPUT_SLOTS ? SLOTS - LATER
                                                      : OUTPUT_SLOTS;
    float kept[IS_KEPT ? KEPT : 1][4];
    gradients(shared, chunk, [&](int slot, int unit, const float* grad) {
      square_slot(shared, slot, unit, grad);
      const int place = slot < OUTPUT_SLOTS ? slot : slot - LATER;
      for (int e = 0; IS_KEPT && e < 4; ++e) kept[place][e] = grad[e];
    });
    set_rates(call, shared, chunk, input_state, output_state);
    if (IS_KEPT) {
      const int role = warp / UNITS;
#pragma unroll
      for (int slot = 0; slot < SLOTS; ++slot)
        if (role == (ROLES == 2 && slot < OUTPUT_SLOTS))
          change_slot(shared, chunk, input, output, slot, warp % UNITS,
                      kept[slot < OUTPUT_SLOTS ? slot : slot - LATER]);
    } else
#endif
    gradients(shared, chunk, [&](int slot, int unit, const float* grad) {
      change_slot(shared, chunk, input, output, slot, unit, grad);
    });
    __syncthreads();
  }
  if (loss != 0.f) add(totals, loss);
  if (examples != 0.f) add(totals + 1, examples);
}
