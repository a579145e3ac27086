// A warp of CUDA on a CPU: 32 fibers which take turns at every point where lanes meet.
#include <math.h>
#include <string.h>
#include <ucontext.h>

#include <utility>

#define EMULATED
#define __global__
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __shared__ static

struct alignas(16) float4 {
  float x, y, z, w;
};
static inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

static struct { int x; } threadIdx;
static struct { unsigned x; } blockIdx;

static const int LANES = 32, STACK = 1 << 18;
static ucontext_t lanes[LANES], outside;
static char stacks[LANES][STACK];
static int running, finished;
static float told[LANES];
static void (*body)(void *const *);
static void *const *given;

static void turn() {  // every lane reaches this point before any goes on
  int me = running;
  running = (me + 1) % LANES;
  threadIdx.x = running;
  swapcontext(&lanes[me], &lanes[running]);
}

static inline void __syncwarp() { turn(); }

static inline float __shfl_sync(unsigned, float v, int from) {
  int me = threadIdx.x;
  told[me] = v;
  turn();
  float got = told[from];
  turn();
  return got;
}

static inline float __shfl_xor_sync(unsigned all, float v, int partner) {
  return __shfl_sync(all, v, threadIdx.x ^ partner);
}

static inline unsigned __ballot_sync(unsigned all, bool v) {
  unsigned votes = 0;
  for (int lane = 0; lane < LANES; ++lane) votes |= (unsigned)(__shfl_sync(all, v ? 1.0f : 0.0f, lane) != 0) << lane;
  return votes;
}

static inline float exp2_fast(float x) { return exp2f(x); }
static inline float inverse_fast(float x) { return 1.0f / x; }
static inline void copy16(void *to, const void *from, int bytes) {
  if (bytes) memcpy(to, from, 16);
  else memset(to, 0, 16);
}
static inline unsigned float_bits(float x) {
  unsigned bits;
  memcpy(&bits, &x, 4);
  return bits;
}
static inline float bits_float(unsigned bits) {
  float x;
  memcpy(&x, &bits, 4);
  return x;
}
static inline void copies_end() {}
static inline void copies_wait() {}

static void lane_main() {
  body(given);
  int me = running;
  if (++finished == LANES) setcontext(&outside);
  running = threadIdx.x = (me + 1) % LANES;
  setcontext(&lanes[running]);
}

static void run_blocks(unsigned blocks, void (*kernel)(void *const *), void *const *arguments) {  // one warp each
  body = kernel;
  given = arguments;
  for (blockIdx.x = 0; blockIdx.x < blocks; ++blockIdx.x) {
    finished = 0;
    for (int lane = 0; lane < LANES; ++lane) {
      getcontext(&lanes[lane]);
      lanes[lane].uc_stack.ss_sp = stacks[lane];
      lanes[lane].uc_stack.ss_size = STACK;
      lanes[lane].uc_link = 0;
      makecontext(&lanes[lane], lane_main, 0);
    }
    running = threadIdx.x = 0;
    swapcontext(&outside, &lanes[0]);
  }
}

// A kernel called as a driver would: `arguments` points at each of them.
template <class... A, size_t... I>
static void call(void (*kernel)(A...), void *const *arguments, std::index_sequence<I...>) {
  kernel(*(A *)arguments[I]...);
}

template <class... A>
static void call(void (*kernel)(A...), void *const *arguments) {
  call(kernel, arguments, std::index_sequence_for<A...>());
}

#define EMULATE(kernel)                                                      \
  extern "C" void run_##kernel(unsigned blocks, void *const *arguments) {    \
    run_blocks(blocks, [](void *const *all) { call(kernel, all); }, arguments); \
  }
