// The scan for 16 states: a warp owns a sequence and 32 of its channels. It computes in float32; u, delta, z, y and
// their gradients are float32 or, with HALF, bfloat16.
//
// A lane owns 4 channels x 4 states, so that a token's B and C cost one 16-byte read each for 16 states, and sums over
// states or channels begin inside the lane. Lane = 4 j + i holds channels 4 j + c and states 4 i + m; of a channel's
// sums it ends up with those of channel `lane`. Tokens come in chunks of TOKENS, copied to shared memory one chunk
// ahead; rows that do not count (masked, or past the end) arrive as zeros whatever lies there, and are harmless: their
// step is 0, so the state passes, and u, B, C, z and dy are 0.
//
// Forward leaves the state before every chunk but the first in `kept` [2 q l d]: state n before chunk c lies in row
// n % 8 of chunk c - 1, in half n / 8. Backward, going from the last chunk to the first, has read a chunk's rows before
// it writes the gradients of u (half 0) and z (half 1) over them: what backward needs costs no memory of its own. With
// HALF the gradients are narrower than the states and have a place of their own.
//
// Backward runs through a chunk forward, keeping the state before every second step in shared memory, then back pair by
// pair: two states and their coefficients are made once more in registers, and the adjoint g walks over them.
// With h' = A h + B u (the state's own equation) every gradient needs h_k only, never h_(k-1).
//
// Exponents are in base 2: a = A log2(e), x = delta a, e^(delta A) = 2^x. From spans, delta = -w1 decay with
// decay = e^(-w2 span) - 1 (Eq. 11).
//
// Set by whoever compiles: ZOH, SPANS, GATE, REVERSE, SPAN_GRADIENT, HALF (0 or 1).

#define TOKENS 8
#define STATES 16
#define WIDTH 32  // channels of a warp
#define ALL 0xffffffffu
#define LOG2E 1.4426950408889634f
#define LN2 0.6931471805599453f

typedef long long Offset;

#if HALF
struct Number {  // bfloat16: the upper half of a float32, rounded to the nearest, ties to even
  unsigned short bits;
};
#else
typedef float Number;
#endif

#define COPIED ((int)(16 / sizeof(Number)))  // channels of a copy
#define LANES_OF_ROW (WIDTH / COPIED)        // that copy a token's row
#define ROUND (32 / LANES_OF_ROW)            // tokens that a warp copies at once
#define ROUNDS (TOKENS / ROUND)

#ifndef EMULATED  // tests run this file on a CPU and bring their own
__device__ __forceinline__ float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

__device__ __forceinline__ float inverse_fast(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// 16 bytes to shared memory, in the background; zeros if `bytes` is 0, and then nothing is read.
__device__ __forceinline__ void copy16(void *to, const void *from, int bytes) {
  unsigned place = (unsigned)__cvta_generic_to_shared(to);
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(place), "l"(from), "r"(bytes) : "memory");
}

__device__ __forceinline__ unsigned float_bits(float x) { return __float_as_uint(x); }

__device__ __forceinline__ float bits_float(unsigned x) { return __uint_as_float(x); }

__device__ __forceinline__ void copies_end() { asm volatile("cp.async.commit_group;" ::: "memory"); }

__device__ __forceinline__ void copies_wait() { asm volatile("cp.async.wait_group 1;" ::: "memory"); }
#endif

#if HALF
__device__ __forceinline__ float widen(Number x) { return bits_float((unsigned)x.bits << 16); }

__device__ __forceinline__ Number narrow(float x) {
  unsigned bits = float_bits(x);
  Number y;
  y.bits = x == x ? (bits + 0x7fff + (bits >> 16 & 1)) >> 16 : 0x7fc0;
  return y;
}
#else
__device__ __forceinline__ float widen(Number x) { return x; }

__device__ __forceinline__ Number narrow(float x) { return x; }
#endif

// 2^x - 1; a cubic takes over where the difference has lost its digits (both within 3e-6 at the seam).
__device__ __forceinline__ float expm1_base2(float x) {
  float cubic = x * (0.6931471805599453f + x * (0.2402849f + x * 0.05550411f));
  return fabsf(x) < 0.09f ? cubic : exp2_fast(x) - 1.0f;
}

// The same to 1e-6, where it is computed once for a token and channel.
__device__ __forceinline__ float expm1_fine(float x) {
  float high = 0.0555041087f + x * (0.0096181291f + x * 0.0013333558f);
  float series = x * (0.6931471806f + x * (0.2402265070f + x * high));
  return fabsf(x) < 0.25f ? series : exp2_fast(x) - 1.0f;
}

// A gate of 0 becomes a tiny one, so that y before the gate can be had from y.
__device__ __forceinline__ float open_gate(float z) { return fabsf(z) < 1e-18f ? 1e-18f : z; }

__device__ __forceinline__ float sigmoid(float z) { return inverse_fast(1.0f + exp2_fast(z * -LOG2E)); }

__device__ __forceinline__ void unpack(const float4 v, float (&out)[4]) {
  out[0] = v.x, out[1] = v.y, out[2] = v.z, out[3] = v.w;
}

// The same for four rows, of which each holds a state of the lane's four channels.
__device__ __forceinline__ void unpack_state(const float4 v, float (&h)[4][4], int m) {
  h[0][m] = v.x, h[1][m] = v.y, h[2][m] = v.z, h[3][m] = v.w;
}

__device__ __forceinline__ float4 pack(const float (&v)[4]) { return make_float4(v[0], v[1], v[2], v[3]); }

// Of two values, this lane keeps one and its partner the other, each summed over both lanes.
__device__ __forceinline__ float halve(float first, float second, bool upper, int partner) {
  float sent = upper ? first : second, own = upper ? second : first;
  return own + __shfl_xor_sync(ALL, sent, partner);
}

// Sums over the states of a lane's 4 channels; each lane gets that of its own channel.
__device__ __forceinline__ float sum_states(const float (&part)[4], int lane) {
  float left = halve(part[0], part[2], lane & 2, 2), right = halve(part[1], part[3], lane & 2, 2);
  return halve(left, right, lane & 1, 1);
}

// Where a warp stands; k counts steps in scan order.
struct Place {
  int lane, i, j, length, channels, first;  // `first` channel of this warp
  Offset q;

  __device__ __forceinline__ Place(int length, int channels) : length(length), channels(channels) {
    int blocks = (channels + WIDTH - 1) / WIDTH;
    lane = threadIdx.x, i = lane & 3, j = lane >> 2;
    q = blockIdx.x / blocks;
    first = (int)(blockIdx.x % blocks) * WIDTH;
  }
  __device__ __forceinline__ bool inside() const { return first + lane < channels; }        // the lane's own channel
  __device__ __forceinline__ bool inside_quad() const { return first + 4 * j < channels; }  // its four channels
  __device__ __forceinline__ int time(int k) const { return REVERSE ? length - 1 - k : k; }
  __device__ __forceinline__ Offset token(int k) const { return q * length + time(k); }
  // Step k in a dense [q l d] tensor, at the lane's own channel.
  __device__ __forceinline__ Offset own(int k) const { return token(k) * channels + first + lane; }
  // States 4 i .. before the chunk which begins at step k, for the lane's four channels; each in a row of its own.
  __device__ __forceinline__ Offset kept(int k, Offset half) const {
    return (4 * i / TOKENS) * half + token(k - TOKENS + 4 * i % TOKENS) * channels + first + 4 * j;
  }
  // States 4 i .. for the lane's four channels in a [q n d] state; each in a row of its own.
  __device__ __forceinline__ Offset states() const { return (q * STATES + 4 * i) * channels + first + 4 * j; }
  // Channel 4 j + c, states 4 i ..: in A [d n], and in a [q d n] tensor.
  __device__ __forceinline__ Offset rates(int c) const { return (Offset)(first + 4 * j + c) * STATES + 4 * i; }
  __device__ __forceinline__ Offset sums(int c) const { return q * channels * STATES + rates(c); }
};

// A step further in scan order is SIGN steps further in time.
#define SIGN (REVERSE ? -1 : 1)

// What a token's lanes share, loaded a chunk before its rows are asked for, into the lane of that number.
struct Ahead {
  float span;
  unsigned counts;

  __device__ __forceinline__ void load(const Place &at, int k, const void *step, const unsigned char *mask) {
    k += at.lane;
    counts = at.lane < TOKENS && k >= 0 && k < at.length;
    span = 0.0f;
    if (counts) {
      if (SPANS) span = ((const float *)step)[at.token(k)];
      if (mask) counts = mask[at.token(k)];
    }
  }
};

// The rows of one tensor, on their way to shared memory: a lane copies 16 bytes of one or two of a chunk's 8 tokens.
struct Rows {
  const Number *from;
  int round;  // ROUND rows further, in numbers

  __device__ __forceinline__ Rows(const Place &at, int k, const Number *base, int batch, int row) {
    int token = at.lane / LANES_OF_ROW, channel = at.first + COPIED * (at.lane % LANES_OF_ROW);
    from = base + at.q * batch + (Offset)at.time(k + token) * row + channel;
    round = ROUND * SIGN * row;
  }
  // `to` is the first row's place, and the next one's `stride` numbers further.
  __device__ __forceinline__ void copy(Number *to, int stride, int lane, const int (&bytes)[ROUNDS]) const {
    to += lane / LANES_OF_ROW * stride + COPIED * (lane % LANES_OF_ROW);
#pragma unroll
    for (int r = 0; r < ROUNDS; ++r) copy16(to + r * ROUND * stride, from + r * round, bytes[r]);
  }
  __device__ __forceinline__ void move(int chunks) { from += ROUNDS * chunks * round; }
};

// The lane's share of A, and its own channel's vectors.
struct Weights {
  float a[4][4], w1, w2, skip;

  __device__ __forceinline__ Weights(const Place &at, const float *A, const float *v1, const float *v2, const float *D) {
    bool quad = at.inside_quad(), mine = at.inside();
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      unpack(quad ? *(const float4 *)(A + at.rates(c)) : make_float4(-1, -1, -1, -1), a[c]);
#pragma unroll
      for (int m = 0; m < 4; ++m) {  // a state that does not decay gets a rate too small to matter, with an inverse
        a[c][m] = (fabsf(a[c][m]) < 1e-18f ? -1e-18f : a[c][m]) * LOG2E;
      }
    }
    w1 = SPANS && mine ? v1[at.first + at.lane] : 1.0f;
    w1 = fabsf(w1) < 1e-30f ? 1e-30f : w1;  // so that decay = -delta / w1 exists
    w2 = SPANS && mine ? v2[at.first + at.lane] : 0.0f;
    skip = D && mine ? D[at.first + at.lane] : 0.0f;
  }
  __device__ __forceinline__ float delta(float span) const { return -w1 * expm1_fine(w2 * -LOG2E * span); }
};

// One step of the lane's 16 states. `input` is delta u under Euler, u log2(e) under ZOH.
__device__ __forceinline__ void advance(float (&h)[4][4], const float (&a)[4][4], const float (&inverse)[4][4],
                                        const float (&b)[4], const float (&delta)[4], const float (&input)[4]) {
#pragma unroll
  for (int c = 0; c < 4; ++c)
#pragma unroll
    for (int m = 0; m < 4; ++m) {
      float x = delta[c] * a[c][m];
#if ZOH
      h[c][m] += expm1_base2(x) * (b[m] * input[c] * inverse[c][m] + h[c][m]);
#else
      h[c][m] = exp2_fast(x) * h[c][m] + b[m] * input[c];
#endif
    }
}

// What is read of a token. Forward has a chunk of these in use while the next one is on its way; backward, short of shared
// memory, makes what it needs of a chunk at once.
struct alignas(16) Token {
  Number u[WIDTH], z[WIDTH];
  float B[STATES], C[STATES];
#if !SPANS
  Number delta[WIDTH];
#endif
};

struct TokenBack : Token {
  Number y[WIDTH], dy[WIDTH];
};

// What is made of it.
struct alignas(16) Made {
  float delta[WIDTH], input[WIDTH];
};

struct MadeBack : Made {
  float u[WIDTH], gy[WIDTH], B[STATES], C[STATES];  // gy: the gradient of y before the gate
};

// All that is read of the tokens, a chunk ahead of its use.
struct Reader {
  Rows u, z, delta;
  const float *B, *C;
  Ahead next;

  __device__ __forceinline__ Reader(const Place &at, int k, const Number *u, int u_batch, int u_row, const Number *z,
                                    int z_batch, int z_row, const void *step, int step_batch, int step_row,
                                    const float *B, const float *C)
      : u(at, k, u, u_batch, u_row), z(at, k, z, z_batch, z_row),
        delta(at, k, (const Number *)step, step_batch, step_row) {
    Offset states = at.token(k + at.j) * STATES + 4 * at.i;
    this->B = B + states, this->C = C + states;
  }
  // Ask for the chunk where the reader stands; which of its tokens count. `bytes`: what a lane reads of its rows.
  template <class T>
  __device__ __forceinline__ unsigned ask(const Place &at, T *to, int (&bytes)[ROUNDS]) const {
    const int stride = sizeof(T) / sizeof(Number);
    unsigned live = __ballot_sync(ALL, next.counts != 0);
    bool real = at.first + COPIED * (at.lane % LANES_OF_ROW) < at.channels;
#pragma unroll
    for (int r = 0; r < ROUNDS; ++r) bytes[r] = real && live >> (at.lane / LANES_OF_ROW + r * ROUND) & 1 ? 16 : 0;
    u.copy(to->u, stride, at.lane, bytes);
    if (GATE) z.copy(to->z, stride, at.lane, bytes);
#if !SPANS
    delta.copy(to->delta, stride, at.lane, bytes);
#endif
    int state_bytes = live >> at.j & 1 ? 16 : 0;
    copy16(&to[at.j].B[4 * at.i], B, state_bytes);
    copy16(&to[at.j].C[4 * at.i], C, state_bytes);
    return live;
  }
  __device__ __forceinline__ void move(int chunks) {
    u.move(chunks);
    if (GATE) z.move(chunks);
    if (!SPANS) delta.move(chunks);
    B += chunks * SIGN * TOKENS * STATES;
    C += chunks * SIGN * TOKENS * STATES;
  }
};

// A token's step, at the lane's own channel.
__device__ __forceinline__ float own_step(const Weights &w, const Token &token, int lane, float span, int r) {
#if SPANS
  return w.delta(__shfl_sync(ALL, span, r));
#else
  return widen(token.delta[lane]);
#endif
}

extern "C" __global__ void
    scan_forward(const Number *u, const void *step, const float *w1, const float *w2, const float *A, const float *B,
                 const float *C, const float *D, const Number *z, const unsigned char *mask, const float *state,
                 Number *y, float *final, float *kept, int length, int channels, int sequences, int u_batch, int u_row,
                 int step_batch, int step_row, int z_batch, int z_row) {
  __shared__ Token chunks[2][TOKENS];
  __shared__ Made made[TOKENS];
  const Place at(length, channels);
  const Weights w(at, A, w1, w2, D);
  const int lane = at.lane, row = SIGN * channels;
  const bool inside = at.inside(), quad = at.inside_quad();
  float h[4][4], inverse[4][4];
#pragma unroll
  for (int c = 0; c < 4; ++c) {
    const float4 *row_of = (const float4 *)(state + at.states() + c * channels);
    unpack_state(state && quad ? *row_of : make_float4(0, 0, 0, 0), h, c);
#pragma unroll
    for (int m = 0; m < 4; ++m) inverse[c][m] = ZOH ? 1.0f / w.a[c][m] : 0.0f;
  }
  Number *out = y + at.own(0);
  float *keep = kept + at.kept(TOKENS, (Offset)sequences * length * channels);

  Reader reader(at, 0, u, u_batch, u_row, z, z_batch, z_row, step, step_batch, step_row, B, C);
  int bytes[ROUNDS];
  reader.next.load(at, 0, step, mask);
  unsigned live_next = reader.ask(at, chunks[0], bytes);
  float span_next = live_next >> lane & 1 ? reader.next.span : 0.0f;
  copies_end();
  reader.next.load(at, TOKENS, step, mask);

  for (int k = 0, side = 0; k < length; k += TOKENS, side ^= 1) {
    const unsigned live = live_next;
    const float span = span_next;
    if (k + TOKENS < length) {
      reader.move(1);
      live_next = reader.ask(at, chunks[side ^ 1], bytes);
      span_next = live_next >> lane & 1 ? reader.next.span : 0.0f;
      reader.next.load(at, k + 2 * TOKENS, step, mask);
    }
    copies_end();
    if (kept && k > 0) {
#pragma unroll
      for (int m = 0; m < 4; ++m)
        if (quad) *(float4 *)(keep + m * row) = make_float4(h[0][m], h[1][m], h[2][m], h[3][m]);
      keep += TOKENS * row;
    }
    copies_wait();  // for all but the newest
    __syncwarp();
    const Token *chunk = chunks[side];
    const int mine = inside ? length - k : 0;  // of the rows that the lane writes
    if (live) {
#pragma unroll 4
      for (int r = 0; r < TOKENS; ++r) {
        float delta = own_step(w, chunk[r], lane, span, r);
        made[r].delta[lane] = delta;
        made[r].input[lane] = widen(chunk[r].u[lane]) * (ZOH ? LOG2E : delta);
      }
      __syncwarp();
#pragma unroll 2
      for (int r = 0; r < TOKENS; ++r, out += row) {
        float b[4], cs[4], delta[4], input[4], part[4] = {0, 0, 0, 0};
        unpack(*(const float4 *)&chunk[r].B[4 * at.i], b);
        unpack(*(const float4 *)&chunk[r].C[4 * at.i], cs);
        unpack(*(const float4 *)&made[r].delta[4 * at.j], delta);
        unpack(*(const float4 *)&made[r].input[4 * at.j], input);
        advance(h, w.a, inverse, b, delta, input);
#pragma unroll
        for (int c = 0; c < 4; ++c)
#pragma unroll
          for (int m = 0; m < 4; ++m) part[c] += cs[m] * h[c][m];
        float sum = sum_states(part, lane) + w.skip * widen(chunk[r].u[lane]);
        if (GATE) {
          float gate = open_gate(widen(chunk[r].z[lane]));
          sum *= gate * sigmoid(gate);
        }
        if (r < mine) *out = narrow(sum);
      }
    } else {
      for (int r = 0; r < TOKENS; ++r, out += row)
        if (r < mine) *out = narrow(0.0f);
    }
    __syncwarp();  // the chunk's place may be filled again
  }
#pragma unroll
  for (int c = 0; c < 4; ++c)
    if (quad) *(float4 *)(final + at.sums(c)) = pack(h[c]);
}

// What backward holds of a step: the state after it (under Euler without its input), and f = phi(X) - 1 with
// phi(X) = (e^X - 1) / X (under Euler e^X).
struct Step {
  float h[4][4], f[4][4];
};

// A step made once more, with what its adjoint needs; `h` advances.
__device__ __forceinline__ void remake(Step &step, float (&h)[4][4], const float (&a)[4][4],
                                       const float (&inverse)[4][4], const float (&b)[4], const float (&delta)[4],
                                       const float (&scaled)[4]) {
#pragma unroll
  for (int c = 0; c < 4; ++c) {
#if ZOH
    float r = LOG2E * inverse_fast(delta[c]);
#endif
#pragma unroll
    for (int m = 0; m < 4; ++m) {
      float x = delta[c] * a[c][m], e = exp2_fast(x), input = b[m] * scaled[c];
#if ZOH
      // to 1e-5 of itself: the gradient of A is made of it
      float series = x * (0.3465735902799726f + x * (0.0801275845f + x * 0.0138760272f));
      step.f[c][m] = fabsf(x) < 0.19f ? series : (e * r - r) * inverse[c][m] - 1.0f;
      h[c][m] = e * h[c][m] + (input + input * step.f[c][m]);
      step.h[c][m] = h[c][m];
#else
      step.f[c][m] = e;
      step.h[c][m] = e * h[c][m];
      h[c][m] = step.h[c][m] + input;
#endif
    }
  }
}

extern "C" __global__ void
    scan_backward(const Number *u, const void *step, const float *w1, const float *w2, const float *A, const float *B,
                  const float *C, const float *D, const Number *z, const unsigned char *mask, const float *state,
                  const Number *y, const Number *dy, const float *adjoint, const float *kept, Number *gradients,
                  float *adjoint_out, Number *ddelta, float *dBC, float *dspan, float *dA, float *dvectors, int length,
                  int channels, int sequences, int u_batch, int u_row, int step_batch, int step_row, int z_batch,
                  int z_row, int dy_batch, int dy_row, int begin, int end, int start, int window, int fresh) {
  // Chunks begin .. end - 1 (in scan order), the last first; `start` is the window's first time. `adjoint` [q d n] is g
  // on entry, zero if it is null. dA [q d n] and dvectors [3 q d] are added to unless `fresh`. dBC is [2 blocks q
  // window n], dspan [blocks q window]. `gradients` [2 q l d], of u and z, is `kept` itself or, with HALF, another one.
  __shared__ TokenBack chunk[TOKENS];
  __shared__ MadeBack made[TOKENS];
  __shared__ float4 states[TOKENS / 2][4][32];  // before every second step
  const Place at(length, channels);
  const Weights w(at, A, w1, w2, D);
  const Offset half = (Offset)sequences * length * channels;
  const int lane = at.lane, row = SIGN * channels;
  const int blocks = (channels + WIDTH - 1) / WIDTH, block = at.first / WIDTH;
  const bool inside = at.inside(), quad = at.inside_quad();
  float inverse[4][4], g[4][4], sA[4][4], h[4][4], sD = 0, s1 = 0, s2 = 0;
#pragma unroll
  for (int c = 0; c < 4; ++c) {
    unpack(quad && adjoint ? *(const float4 *)(adjoint + at.sums(c)) : make_float4(0, 0, 0, 0), g[c]);
#pragma unroll
    for (int m = 0; m < 4; ++m) {
      inverse[c][m] = ZOH ? 1.0f / w.a[c][m] : 0.0f;
      sA[c][m] = 0.0f;
    }
  }
  const int last = (end - 1) * TOKENS, stop = begin * TOKENS;
  Number *du = gradients + at.own(last), *dd_out = ddelta + at.own(last);
  const float *keep = kept + at.kept(last, half);
  const Offset span_place = ((Offset)block * sequences + at.q) * window + at.time(last) - start;
  float *dspan_out = dspan + span_place;
  // the lane adds up the parts of B (lower half of the warp) or C for state lane % 16
  float *parts = dBC + (lane >> 4) * ((Offset)blocks * sequences * window * STATES) + span_place * STATES + (lane & 15);

  auto ask_state = [&](int k) {  // before a chunk; into the place of that before its first step
    const float *from = k > 0 ? keep : state + at.states();
    const int next_row = k > 0 ? row : channels, given = quad && (k > 0 || state) ? 16 : 0;
#pragma unroll
    for (int m = 0; m < 4; ++m) copy16(&states[0][m][lane].x, from + m * next_row, given);
    keep -= TOKENS * row;
  };

  Reader reader(at, last, u, u_batch, u_row, z, z_batch, z_row, step, step_batch, step_row, B, C);
  Rows ys(at, last, y, length * channels, channels), dys(at, last, dy, dy_batch, dy_row);
  unsigned live_next;
  float span_next;
  auto ask_rows = [&]() {
    const int stride = sizeof(TokenBack) / sizeof(Number);
    int bytes[ROUNDS];
    live_next = reader.ask(at, chunk, bytes);
    dys.copy(chunk->dy, stride, lane, bytes);
    if (GATE) ys.copy(chunk->y, stride, lane, bytes);
    span_next = live_next >> lane & 1 ? reader.next.span : 0.0f;
  };
  reader.next.load(at, last, step, mask);
  ask_rows();
  copies_end();
  ask_state(last);
  copies_end();
  reader.next.load(at, last - TOKENS, step, mask);

  for (int k = last; k >= stop; k -= TOKENS) {
    const unsigned live = live_next;
    const float span = span_next;
    const int rows = length - k, mine = inside ? rows : 0;  // that exist, and that the lane writes
    copies_wait();                                          // for the rows; the state may still be on its way
    __syncwarp();
    if (live) {
#pragma unroll
      for (int r = 0; r < TOKENS; ++r) {
        const float delta = own_step(w, chunk[r], lane, span, r), u = widen(chunk[r].u[lane]);
        float gy = widen(chunk[r].dy[lane]);
        if (GATE) {
          const float gate = open_gate(widen(chunk[r].z[lane])), sig = sigmoid(gate);
          const float slope = inverse_fast(gate) + (1.0f - sig);
          if (r < mine) du[half + r * row] = narrow(gy * widen(chunk[r].y[lane]) * slope);  // of z
          gy *= gate * sig;
        }
        made[r].delta[lane] = delta;
        made[r].input[lane] = delta * u;
        made[r].u[lane] = u;
        made[r].gy[lane] = gy;
      }
      *(float4 *)&made[at.j].B[4 * at.i] = *(const float4 *)&chunk[at.j].B[4 * at.i];
      *(float4 *)&made[at.j].C[4 * at.i] = *(const float4 *)&chunk[at.j].C[4 * at.i];
    }
    __syncwarp();
    if (k > stop) {
      reader.move(-1);
      dys.move(-1);
      if (GATE) ys.move(-1);
      ask_rows();
      reader.next.load(at, k - 2 * TOKENS, step, mask);
    }
    copies_end();
    copies_wait();  // for the state
    if (live) {
#pragma unroll
      for (int m = 0; m < 4; ++m) unpack_state(states[0][m][lane], h, m);

      // forward: the state before every second step
#pragma unroll
      for (int r = 0; r < TOKENS; r += 2) {
#pragma unroll
        for (int c = 0; c < 4; ++c) states[r / 2][c][lane] = pack(h[c]);
        if (r == TOKENS - 2) break;
#pragma unroll
        for (int p = 0; p < 2; ++p) {
          float b[4], delta[4], input[4];
          unpack(*(const float4 *)&made[r + p].B[4 * at.i], b);
          unpack(*(const float4 *)&made[r + p].delta[4 * at.j], delta);
#if ZOH
          unpack(*(const float4 *)&made[r + p].u[4 * at.j], input);
#pragma unroll
          for (int c = 0; c < 4; ++c) input[c] *= LOG2E;
#else
          unpack(*(const float4 *)&made[r + p].input[4 * at.j], input);
#endif
          advance(h, w.a, inverse, b, delta, input);
        }
      }

      // back, pair by pair
#pragma unroll 1
      for (int r = TOKENS - 2; r >= 0; r -= 2) {
        Step remade[2];
        float4(*place)[32] = states[r / 2];
#pragma unroll
        for (int c = 0; c < 4; ++c) unpack(place[c][lane], h[c]);
        __syncwarp();  // the place now takes this pair's shares of dB and dC
#pragma unroll
        for (int p = 0; p < 2; ++p) {
          float b[4], delta[4], scaled[4];
          unpack(*(const float4 *)&made[r + p].B[4 * at.i], b);
          unpack(*(const float4 *)&made[r + p].delta[4 * at.j], delta);
          unpack(*(const float4 *)&made[r + p].input[4 * at.j], scaled);
          remake(remade[p], h, w.a, inverse, b, delta, scaled);
        }
#pragma unroll
        for (int p = 1; p >= 0; --p) {
          const int t = r + p;
          const MadeBack &token = made[t];
          float b[4], cs[4], delta[4], scaled[4], gy[4];
          float gB[4] = {0, 0, 0, 0}, gA[4] = {0, 0, 0, 0}, gF[4] = {0, 0, 0, 0};
          float dB[4] = {0, 0, 0, 0}, dC[4] = {0, 0, 0, 0};
          unpack(*(const float4 *)&token.B[4 * at.i], b);
          unpack(*(const float4 *)&token.C[4 * at.i], cs);
          unpack(*(const float4 *)&token.delta[4 * at.j], delta);
          unpack(*(const float4 *)&token.input[4 * at.j], scaled);
          unpack(*(const float4 *)&token.gy[4 * at.j], gy);
#pragma unroll
          for (int c = 0; c < 4; ++c)
#pragma unroll
            for (int m = 0; m < 4; ++m) {
              float f = remade[p].f[c][m], old = remade[p].h[c][m];
              dC[m] += old * gy[c];
              float gn = g[c][m] + cs[m] * gy[c], gh = gn * old;
              gB[c] += gn * b[m];
              gA[c] += gh * w.a[c][m];
#if ZOH
              // d h / d A = (X h - f B delta u) / A,  d h / d (B u) = delta (1 + f)
              float X = delta[c] * LN2 * w.a[c][m], gf = gn * f, whole = gn + gf;
              sA[c][m] += X * gh;
              sA[c][m] -= gf * b[m] * scaled[c];
              dB[m] += whole * scaled[c];
              gF[c] += whole * b[m];
              g[c][m] = gn + X * whole;
#else
              // d h / d A = delta e h_(k-1), and e h_(k-1) is what was kept
              sA[c][m] += gh * delta[c];
              dB[m] += gn * scaled[c];
              g[c][m] = gn * f;
#endif
            }
#if !ZOH
          float missing = 0.0f;  // from the states, the input
#pragma unroll
          for (int c = 0; c < 4; ++c) missing += scaled[c] * gy[c];
#pragma unroll
          for (int m = 0; m < 4; ++m) dC[m] += b[m] * missing;
#endif
          place[2 * p][lane] = pack(dB);
          place[2 * p + 1][lane] = pack(dC);
          const float own_u = token.u[lane], own_gy = token.gy[lane], own_delta = token.delta[lane];
          const float own_gB = sum_states(gB, lane), own_gF = ZOH ? sum_states(gF, lane) : own_gB;
          // d h / d delta = A h + B u under ZOH, A e h_(k-1) + B u under Euler
          const float dd = sum_states(gA, lane) * LN2 + own_u * own_gB;
          if (t < mine) du[t * row] = narrow(own_delta * own_gF + w.skip * own_gy);
          sD += own_gy * own_u;
#if SPANS
          const float rest = dd * (w.w1 - own_delta);  // w1 (1 + decay)
          s1 += dd * own_delta;                        // times 1 / w1 in the end
          s2 += rest * __shfl_sync(ALL, span, t);
#if SPAN_GRADIENT
          float total = live >> t & 1 ? rest * w.w2 : 0.0f;
#pragma unroll
          for (int partner = 16; partner; partner /= 2) total += __shfl_xor_sync(ALL, total, partner);
          if (lane == 0 && t < rows) dspan_out[SIGN * t] = total;
#endif
#else
          if (t < mine) dd_out[t * row] = narrow(live >> t & 1 ? dd : 0.0f);
#endif
        }
        __syncwarp();
        const float *share = (const float *)place + (lane & 15) + (lane >> 4) * (4 * 32);
        const int flip = lane & 16;  // the upper half of the warp reads neighbours in turn, for the sake of the banks
#pragma unroll
        for (int p = 0; p < 2; ++p) {
          float total = 0.0f;
#pragma unroll
          for (int j = 0; j < 8; j += 2)
            total += share[p * (8 * 32) + 16 * j + flip] + share[p * (8 * 32) + 16 * (j + 1) - flip];
          if (r + p < rows) parts[SIGN * (r + p) * STATES] = total;
        }
      }
    } else {
      for (int t = 0; t < TOKENS; ++t) {
        if (t < mine) {
          du[t * row] = narrow(0.0f);
          if (GATE) du[half + t * row] = narrow(0.0f);
          if (!SPANS) dd_out[t * row] = narrow(0.0f);
        }
        if (t < rows) {
          if (SPAN_GRADIENT && lane == 0) dspan_out[SIGN * t] = 0.0f;
          parts[SIGN * t * STATES] = 0.0f;
        }
      }
    }
    du -= TOKENS * row;
    if (!SPANS) dd_out -= TOKENS * row;
    if (SPAN_GRADIENT) dspan_out -= SIGN * TOKENS;
    parts -= SIGN * TOKENS * STATES;
    __syncwarp();  // the first place is free
    if (k > stop) ask_state(k - TOKENS);
    copies_end();
  }
#pragma unroll
  for (int c = 0; c < 4; ++c) {
    if (!quad) break;
    float4 *to = (float4 *)(dA + at.sums(c));
    float before[4] = {0, 0, 0, 0};
    if (!fresh) unpack(*to, before);
#pragma unroll
    for (int m = 0; m < 4; ++m) before[m] += ZOH ? sA[c][m] * inverse[c][m] * LOG2E : sA[c][m];
    *to = pack(before);
    *(float4 *)(adjoint_out + at.sums(c)) = pack(g[c]);
  }
  if (inside) {
    const Offset all = (Offset)sequences * channels;
    float *to = dvectors + at.q * channels + at.first + lane;
    to[0] = sD + (fresh ? 0.0f : to[0]);
    to[all] = s1 / w.w1 + (fresh ? 0.0f : to[all]);
    to[2 * all] = s2 + (fresh ? 0.0f : to[2 * all]);
  }
}
