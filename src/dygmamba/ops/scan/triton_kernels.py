"""The scan's Triton kernels: a thread owns a channel, its states stay in registers, time is a plain loop.

A tile of states is [n d]: Triton's default layout then puts the channels of a block on the lanes of a warp and all
states of a channel into one thread, so that sums over n cost no exchange and rows of d coalesce. Pointers to such
tiles carry `opaque`, a zero which the compiler cannot see: were it to see aligned rows, it would give each thread
four channels and a few states, and pay for it in every step.

Exponents are in base 2, which is one instruction: a = A log2(e), x = delta a, e^(delta A) = 2^x.

Backward goes through a chunk (the steps between two kept states) twice: forward, leaving the state before every STEP
steps in a scratch that fits the second-level cache; then tile by tile from the end, where the STEP states and their
coefficients are made once more and stay in registers while the adjoint g walks back over them. With
h' = A h + B u (the state's own equation), every gradient needs h_k only, never h_(k-1).

Legend: q sequences, l steps, d channels, n states; k counts steps in scan order, t in time.
"""

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)
LN2 = tl.constexpr(0.6931471805599453)

# Run-time numbers: a kernel compiled for one length serves all, and `opaque` stays opaque.
NUMBERS = ["count", "length", "interval", "first", "last", "start", "window", "opaque"]
NUMBERS += ["u_batch", "step_batch", "z_batch", "dy_batch"]


@triton.jit
def expm1(x):
    """2^x - 1; the cubic takes over where the difference has lost its digits (both within 3e-6 at the seam)."""
    cubic = x * (0.6931471805599453 + x * (0.2402265069591007 + x * 0.05550410866482158))
    return tl.where(tl.abs(x) < 0.09, cubic, tl.exp2(x) - 1.0)


@triton.jit
def sigmoid(z):
    """1 / (1 + e^-z)."""
    return 1.0 / (1.0 + tl.exp2(z * -LOG2E))


@triton.jit
def sum_channels(p, PADDED: tl.constexpr, BLOCK: tl.constexpr, HALVINGS: tl.constexpr):
    """Sum a tile over its channels; halving moves the tile through shared memory once instead of five exchanges."""
    for i in tl.static_range(HALVINGS):
        even, odd = tl.split(tl.reshape(p, [PADDED, BLOCK >> (i + 1), 2]))
        p = even + odd
    return tl.sum(p, 1)


@triton.jit
def alive(mask, token, k, length):
    """Whether step k, which is number `token` of all tokens, exists and is not masked."""
    here = k < length
    if mask is not None:
        here = here & (tl.load(mask + token, mask=here, other=0) != 0)
    return here


@triton.jit
def any_alive(mask, token, k, length, STEP: tl.constexpr, DIRECTION: tl.constexpr):
    """Whether a tile has a step that counts."""
    here = alive(mask, token, k, length)
    for s in tl.static_range(1, STEP):
        here = here | alive(mask, token + DIRECTION * s, k + s, length)
    return here


@triton.jit
def load_channels(pointer, d, inside, here, GUARD: tl.constexpr):
    """One token's row in float32: zero outside the channels and at steps that do not count, whatever lies there."""
    if GUARD:
        row = tl.load(pointer + d, mask=inside & here, other=0.0)
    else:
        row = tl.load(pointer + d, mask=inside, other=0.0)
    return row.to(tl.float32)


@triton.jit
def load_states(pointer, n, here, STATES: tl.constexpr, PADDED: tl.constexpr, GUARD: tl.constexpr):
    """One token's B or C in float32, zero beyond the states and at steps that do not count."""
    if PADDED > STATES:
        row = load_channels(pointer, n, n < STATES, here, GUARD)
    elif GUARD:
        row = tl.load(pointer + n, mask=here, other=0.0).to(tl.float32)
    else:
        row = tl.load(pointer + n).to(tl.float32)
    return row


@triton.jit
def load_span(pointer, here, GUARD: tl.constexpr):
    """One token's time span in float32, zero at steps that do not count."""
    if GUARD:
        span = tl.load(pointer, mask=here, other=0.0)
    else:
        span = tl.load(pointer)
    return span.to(tl.float32)


@triton.jit
def load_rates(A, tile, whole):
    """A = A log2(e); a state that does not decay gets a rate too small to matter, but with an inverse."""
    a = tl.load(A + tile, mask=whole, other=-1.0).to(tl.float32)
    return tl.where(tl.abs(a) < 1e-18, -1e-18, a) * LOG2E


@triton.jit
def load_vector(pointer, d, inside):
    """A vector of the channels in float32; zeros if it is None."""
    if pointer is None:
        vector = tl.zeros(d.shape, tl.float32)
    else:
        vector = tl.load(pointer + d, mask=inside, other=0.0).to(tl.float32)
    return vector


@triton.jit(do_not_specialize=NUMBERS)
def forward_kernel(
    u,
    step,
    w1,
    w2,
    A,
    B,
    C,
    D,
    z,
    mask,
    state,
    y,
    final,
    kept,
    length,
    interval,
    opaque,
    u_batch,
    step_batch,
    z_batch,
    CHANNELS: tl.constexpr,
    STATES: tl.constexpr,
    PADDED: tl.constexpr,
    BLOCK: tl.constexpr,
    STEP: tl.constexpr,
    U_ROW: tl.constexpr,
    STEP_ROW: tl.constexpr,
    Z_ROW: tl.constexpr,
    ZOH: tl.constexpr,
    REVERSE: tl.constexpr,
    GUARD: tl.constexpr,
):
    """y, the final state, and the state before every `interval` steps but the first (unless `kept` is None)."""
    BLOCKS: tl.constexpr = (CHANNELS + BLOCK - 1) // BLOCK
    DIRECTION: tl.constexpr = -1 if REVERSE else 1
    q = (tl.program_id(0) // BLOCKS).to(tl.int64)
    d = (tl.program_id(0) % BLOCKS) * BLOCK + tl.arange(0, BLOCK)
    n = tl.arange(0, PADDED)
    inside = d < CHANNELS
    whole = (n < STATES)[:, None] & inside[None, :]
    tile = n[:, None] * CHANNELS + d[None, :]
    a = load_rates(A + opaque, tile, whole)
    inverse = 1.0 / a
    v1 = load_vector(w1, d, inside)
    v2 = load_vector(w2, d, inside)
    skip = load_vector(D, d, inside)
    h = tl.zeros([PADDED, BLOCK], tl.float32)
    if state is not None:
        h = tl.load(state + opaque + q * (STATES * CHANNELS) + tile, mask=whole, other=0.0)

    chunks = tl.cdiv(length, interval)
    for c in range(chunks):
        if kept is not None:
            place = kept + opaque + (q * (chunks - 1) + c - 1) * (STATES * CHANNELS)
            tl.store(place + tile, h, mask=whole & (c > 0))
        for k in range(c * interval, tl.minimum(length, (c + 1) * interval), STEP):
            t = tl.cast(length - 1 - k if REVERSE else k, tl.int64)
            token = q * length + t
            busy = True
            if mask is not None:
                busy = any_alive(mask, token, k, length, STEP, DIRECTION)
            out = y + token * CHANNELS + d
            if busy:
                ys = ()
                for s in tl.static_range(STEP):
                    here = alive(mask, token + DIRECTION * s, k + s, length)
                    vu = load_channels(u + q * u_batch + (t + DIRECTION * s) * U_ROW, d, inside, here, GUARD)
                    if w1 is None:
                        place_s = step + q * step_batch + (t + DIRECTION * s) * STEP_ROW
                        delta = load_channels(place_s, d, inside, here, GUARD)
                    else:
                        span = load_span(step + token + DIRECTION * s, here, GUARD)
                        delta = -v1 * expm1(v2 * span * -LOG2E)
                    vB = load_states(B + (token + DIRECTION * s) * STATES, n, here, STATES, PADDED, GUARD)
                    vC = load_states(C + (token + DIRECTION * s) * STATES, n, here, STATES, PADDED, GUARD)
                    x = delta[None, :] * a
                    if ZOH:
                        h = h + expm1(x) * (vB[:, None] * (vu * LOG2E)[None, :] * inverse + h)
                    else:
                        h = tl.exp2(x) * h + vB[:, None] * (delta * vu)[None, :]
                    vy = tl.sum(h * vC[:, None], 0) + skip * vu
                    if z is not None:
                        place_z = z + q * z_batch + (t + DIRECTION * s) * Z_ROW
                        vz = load_channels(place_z, d, inside, here, GUARD)
                        vy = vy * vz * sigmoid(vz)
                    ys = ys + (vy,)
                for s in tl.static_range(STEP):
                    tl.store(out + DIRECTION * s * CHANNELS, ys[s], mask=inside & (k + s < length))
            else:
                for s in tl.static_range(STEP):
                    nothing = tl.zeros([BLOCK], tl.float32)
                    tl.store(out + DIRECTION * s * CHANNELS, nothing, mask=inside & (k + s < length))
    tl.store(final + q * (STATES * CHANNELS) + d[None, :] * STATES + n[:, None], h, mask=whole)


@triton.jit(do_not_specialize=NUMBERS)
def backward_kernel(
    u,
    step,
    w1,
    w2,
    A,
    B,
    C,
    D,
    z,
    mask,
    state,
    kept,
    dy,
    adjoint,
    scratch,
    du,
    ddelta,
    dz,
    dBC,
    dspan,
    dA,
    dvectors,
    count,
    length,
    interval,
    first,
    last,
    start,
    window,
    opaque,
    u_batch,
    step_batch,
    z_batch,
    dy_batch,
    CHANNELS: tl.constexpr,
    STATES: tl.constexpr,
    PADDED: tl.constexpr,
    BLOCK: tl.constexpr,
    STEP: tl.constexpr,
    HALVINGS: tl.constexpr,
    U_ROW: tl.constexpr,
    STEP_ROW: tl.constexpr,
    Z_ROW: tl.constexpr,
    DY_ROW: tl.constexpr,
    DY_COLUMN: tl.constexpr,
    ZOH: tl.constexpr,
    REVERSE: tl.constexpr,
    GUARD: tl.constexpr,
):
    """The gradients of chunks first .. last - 1, the last one first; sums over channels or sequences in parts.

    A program keeps its block of channels and goes through the sequences row, row + rows, ...; what it adds up for A,
    D, w1 and w2 stays in registers. `adjoint` holds g on entry and on return; `start` is the window's first time.
    """
    BLOCKS: tl.constexpr = (CHANNELS + BLOCK - 1) // BLOCK
    DIRECTION: tl.constexpr = -1 if REVERSE else 1
    block = tl.program_id(0)
    row = tl.program_id(1)
    rows = tl.num_programs(1)
    lane = tl.arange(0, BLOCK)
    d = block * BLOCK + lane
    n = tl.arange(0, PADDED)
    inside = d < CHANNELS
    whole = (n < STATES)[:, None] & inside[None, :]
    tile = n[:, None] * CHANNELS + d[None, :]
    a = load_rates(A + opaque, tile, whole)
    inverse = 1.0 / a
    v1 = load_vector(w1, d, inside)
    v2 = load_vector(w2, d, inside)
    skip = load_vector(D, d, inside)
    sA = tl.zeros([PADDED, BLOCK], tl.float32)
    sD = tl.zeros([BLOCK], tl.float32)
    s1 = tl.zeros([BLOCK], tl.float32)
    s2 = tl.zeros([BLOCK], tl.float32)
    own = n[:, None] * BLOCK + lane[None, :]
    places = scratch + opaque + (row * BLOCKS + block).to(tl.int64) * (interval // STEP) * (PADDED * BLOCK)

    for sequence in range(row, count, rows):
        q = tl.cast(sequence, tl.int64)
        g = tl.zeros([PADDED, BLOCK], tl.float32)
        if adjoint is not None:
            g = tl.load(adjoint + opaque + q * (STATES * CHANNELS) + tile, mask=whole, other=0.0)
        for back in range(last - first):
            c = last - 1 - back
            k_first = c * interval
            tiles = tl.cdiv(tl.minimum(length - k_first, interval), STEP)

            # forward over the chunk: the state before every tile, times a under "zoh", which saves a product a step
            h = tl.zeros([PADDED, BLOCK], tl.float32)
            if kept is not None:
                chunks = tl.cdiv(length, interval)
                place = kept + opaque + (q * (chunks - 1) + c - 1) * (STATES * CHANNELS)
                h = tl.load(place + tile, mask=whole & (c > 0), other=0.0)
            if state is not None:
                place = state + opaque + q * (STATES * CHANNELS)
                h = h + tl.load(place + tile, mask=whole & (c == 0), other=0.0)
            if ZOH:
                h = h * a
            tl.store(places + own, h)
            for j in range(tiles - 1):
                k = k_first + j * STEP
                t = tl.cast(length - 1 - k if REVERSE else k, tl.int64)
                token = q * length + t
                busy = True
                if mask is not None:
                    busy = any_alive(mask, token, k, length, STEP, DIRECTION)
                if busy:
                    for s in tl.static_range(STEP):
                        here = alive(mask, token + DIRECTION * s, k + s, length)
                        vu = load_channels(
                            u + q * u_batch + (t + DIRECTION * s) * U_ROW, d, inside, here, GUARD
                        )
                        if w1 is None:
                            place_s = step + q * step_batch + (t + DIRECTION * s) * STEP_ROW
                            delta = load_channels(place_s, d, inside, here, GUARD)
                        else:
                            span = load_span(step + token + DIRECTION * s, here, GUARD)
                            delta = -v1 * expm1(v2 * span * -LOG2E)
                        vB = load_states(B + (token + DIRECTION * s) * STATES, n, here, STATES, PADDED, GUARD)
                        x = delta[None, :] * a
                        if ZOH:
                            h = h + expm1(x) * (vB[:, None] * (vu * LOG2E)[None, :] + h)
                        else:
                            h = tl.exp2(x) * h + vB[:, None] * (delta * vu)[None, :]
                tl.store(places + (j + 1) * (PADDED * BLOCK) + own, h)

            # tile by tile back
            for i in range(tiles):
                j = tiles - 1 - i
                k = k_first + j * STEP
                t = tl.cast(length - 1 - k if REVERSE else k, tl.int64)
                token = q * length + t
                into = token * CHANNELS
                part = (block.to(tl.int64) * count + q) * window + t - start
                busy = True
                if mask is not None:
                    busy = any_alive(mask, token, k, length, STEP, DIRECTION)
                if busy:
                    h = tl.load(places + j * (PADDED * BLOCK) + own)
                    if ZOH:
                        h = h * inverse
                    hs = ()
                    cs = ()
                    us = ()
                    deltas = ()
                    decays = ()
                    spans = ()
                    zs = ()
                    gs = ()
                    for s in tl.static_range(STEP):
                        here = alive(mask, token + DIRECTION * s, k + s, length)
                        vu = load_channels(
                            u + q * u_batch + (t + DIRECTION * s) * U_ROW, d, inside, here, GUARD
                        )
                        place_g = dy + q * dy_batch + (t + DIRECTION * s) * DY_ROW
                        gs = gs + (load_channels(place_g, d * DY_COLUMN, inside, here, GUARD),)
                        if z is not None:
                            place_z = z + q * z_batch + (t + DIRECTION * s) * Z_ROW
                            zs = zs + (load_channels(place_z, d, inside, here, GUARD),)
                        if w1 is None:
                            place_s = step + q * step_batch + (t + DIRECTION * s) * STEP_ROW
                            delta = load_channels(place_s, d, inside, here, GUARD)
                        else:
                            span = load_span(step + token + DIRECTION * s, here, GUARD)
                            decay = expm1(v2 * span * -LOG2E)
                            delta = -v1 * decay
                            decays = decays + (decay,)
                            spans = spans + (span,)
                        vB = load_states(B + (token + DIRECTION * s) * STATES, n, here, STATES, PADDED, GUARD)
                        x = delta[None, :] * a
                        e = tl.exp2(x)
                        if ZOH:
                            # phi(X) - 1, X = x ln 2, right to 1e-5 of itself: A's gradient is made of it
                            r = (1.4426950408889634 / tl.where(delta == 0.0, 1.0, delta))[None, :]
                            series = x * (
                                0.3465735902799726 + x * (0.0800755023197002 + x * 0.0138760271662054)
                            )
                            f = tl.where(tl.abs(x) < 0.17, series, (e * r - r) * inverse - 1.0)
                            b = vB[:, None] * (delta * vu)[None, :]
                            h = e * h + (b + b * f)
                            hs = hs + (h,)
                            cs = cs + (f,)
                        else:
                            h = e * h
                            hs = hs + (h,)
                            cs = cs + (e,)
                            h = h + vB[:, None] * (delta * vu)[None, :]
                        us = us + (vu,)
                        deltas = deltas + (delta,)

                    dus = ()
                    dds = ()
                    dzs = ()
                    dBs = ()
                    dCs = ()
                    dss = ()
                    for s in tl.static_range(STEP - 1, -1, -1):
                        here = alive(mask, token + DIRECTION * s, k + s, length)
                        vB = load_states(B + (token + DIRECTION * s) * STATES, n, here, STATES, PADDED, GUARD)
                        vC = load_states(C + (token + DIRECTION * s) * STATES, n, here, STATES, PADDED, GUARD)
                        vu = us[s]
                        delta = deltas[s]
                        scaled = delta * vu
                        h = hs[s]
                        if not ZOH:
                            h = h + vB[:, None] * scaled[None, :]
                        gy = gs[s]
                        if z is not None:
                            sig = sigmoid(zs[s])
                            vy = tl.sum(h * vC[:, None], 0) + skip * vu
                            dzs = dzs + (gy * vy * sig * (1.0 + zs[s] * (1.0 - sig)),)
                            gy = gy * zs[s] * sig
                        dCs = dCs + (sum_channels(h * gy[None, :], PADDED, BLOCK, HALVINGS),)
                        g = g + vC[:, None] * gy[None, :]
                        gB = g * vB[:, None]
                        if ZOH:
                            f = cs[s]
                            X = (delta * LN2)[None, :] * a
                            gh = g * h
                            gBf = gB * f
                            sA = sA + X * gh
                            sA = sA - gBf * scaled[None, :]
                            gf = g + g * f
                            dBs = dBs + (sum_channels(gf * scaled[None, :], PADDED, BLOCK, HALVINGS),)
                            g = g + X * gf
                            dus = dus + (delta * (tl.sum(gB, 0) + tl.sum(gBf, 0)) + skip * gy,)
                        else:
                            gh = g * hs[s]
                            sA = sA + gh * delta[None, :]
                            dBs = dBs + (sum_channels(g * scaled[None, :], PADDED, BLOCK, HALVINGS),)
                            g = g * cs[s]
                            dus = dus + (delta * tl.sum(gB, 0) + skip * gy,)
                        dd = tl.sum(gh * a, 0) * LN2 + vu * tl.sum(gB, 0)
                        if GUARD:
                            dd = tl.where(here, dd, 0.0)
                        sD += gy * vu
                        if w1 is None:
                            dds = dds + (dd,)
                        else:
                            s1 -= dd * decays[s]
                            rest = dd * v1 * (1.0 + decays[s])
                            s2 += rest * spans[s]
                            if dspan is not None:
                                dss = dss + (tl.sum(rest * v2, 0),)

                    for s in tl.static_range(STEP):
                        exists = k + s < length
                        tl.store(
                            du + into + DIRECTION * s * CHANNELS + d, dus[STEP - 1 - s], mask=inside & exists
                        )
                        if w1 is None:
                            tl.store(
                                ddelta + into + DIRECTION * s * CHANNELS + d,
                                dds[STEP - 1 - s],
                                mask=inside & exists,
                            )
                        if z is not None:
                            tl.store(
                                dz + into + DIRECTION * s * CHANNELS + d,
                                dzs[STEP - 1 - s],
                                mask=inside & exists,
                            )
                        if dspan is not None:
                            tl.store(dspan + part + DIRECTION * s, dss[STEP - 1 - s], mask=exists)
                        to = dBC + (part + DIRECTION * s) * STATES + n
                        tl.store(to, dBs[STEP - 1 - s], mask=(n < STATES) & exists)
                        to += (BLOCKS * STATES) * count.to(tl.int64) * window
                        tl.store(to, dCs[STEP - 1 - s], mask=(n < STATES) & exists)
                else:
                    for s in tl.static_range(STEP):
                        exists = k + s < length
                        nothing = tl.zeros([BLOCK], tl.float32)
                        tl.store(du + into + DIRECTION * s * CHANNELS + d, nothing, mask=inside & exists)
                        if w1 is None:
                            tl.store(
                                ddelta + into + DIRECTION * s * CHANNELS + d, nothing, mask=inside & exists
                            )
                        if z is not None:
                            tl.store(dz + into + DIRECTION * s * CHANNELS + d, nothing, mask=inside & exists)
                        if dspan is not None:
                            tl.store(dspan + part + DIRECTION * s, 0.0, mask=exists)
                        none = tl.zeros([PADDED], tl.float32)
                        to = dBC + (part + DIRECTION * s) * STATES + n
                        tl.store(to, none, mask=(n < STATES) & exists)
                        to += (BLOCKS * STATES) * count.to(tl.int64) * window
                        tl.store(to, none, mask=(n < STATES) & exists)
        if adjoint is not None:
            tl.store(adjoint + opaque + q * (STATES * CHANNELS) + tile, g, mask=whole)

    if ZOH:
        sA = sA * inverse * LOG2E
    place_a = dA + opaque + row.to(tl.int64) * (STATES * CHANNELS) + tile
    tl.store(place_a, tl.load(place_a, mask=whole, other=0.0) + sA, mask=whole)
    place_v = dvectors + row * CHANNELS + d
    tl.store(place_v, tl.load(place_v, mask=inside, other=0.0) + sD, mask=inside)
    if w1 is not None:
        place_v += rows * CHANNELS
        tl.store(place_v, tl.load(place_v, mask=inside, other=0.0) + s1, mask=inside)
        place_v += rows * CHANNELS
        tl.store(place_v, tl.load(place_v, mask=inside, other=0.0) + s2, mask=inside)
