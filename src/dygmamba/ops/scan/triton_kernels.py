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
    """2^x - 1; a cubic takes over where the difference has lost its digits (both within 3e-6 at the seam)."""
    cubic = x * (0.6931471805599453 + x * (0.2402849 + x * 0.05550411))
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
    """Return whether step k, which is number `token` of all tokens, exists and is not masked."""
    here = k < length
    if mask is not None:
        here = here & (tl.load(mask + token, mask=here, other=0) != 0)
    return here


@triton.jit
def any_alive(mask, token, k, length, STEP: tl.constexpr, DIRECTION: tl.constexpr):
    """Return whether a tile has a step that counts."""
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


@triton.jit
def load_token(
    u, step, B, v1, rate, token, u_at, step_at, d, n, inside, here,
    SPANS: tl.constexpr, STATES: tl.constexpr, PADDED: tl.constexpr, GUARD: tl.constexpr,
):  # fmt: skip
    """A token's u, delta and B, and what its delta is made of: delta = -w1 decay, decay = e^(-w2 span) - 1 (Eq. 11)."""
    vu = load_channels(u + u_at, d, inside, here, GUARD)
    vB = load_states(B + token * STATES, n, here, STATES, PADDED, GUARD)
    if SPANS:
        if GUARD:
            span = tl.load(step + token, mask=here, other=0.0).to(tl.float32)
        else:
            span = tl.load(step + token).to(tl.float32)
        decay = expm1(rate * span)
        delta = -v1 * decay
    else:
        span = 0.0
        delta = load_channels(step + step_at, d, inside, here, GUARD)
        decay = delta
    return vu, delta, vB, decay, span


@triton.jit(do_not_specialize=NUMBERS)
def forward_kernel(
    u, step, w1, w2, A, B, C, D, z, mask, state, y, final, kept,
    length, interval, opaque, u_batch, step_batch, z_batch,
    CHANNELS: tl.constexpr, STATES: tl.constexpr, PADDED: tl.constexpr, BLOCK: tl.constexpr, STEP: tl.constexpr,
    U_ROW: tl.constexpr, STEP_ROW: tl.constexpr, Z_ROW: tl.constexpr,
    ZOH: tl.constexpr, REVERSE: tl.constexpr, GUARD: tl.constexpr,
):  # fmt: skip
    """y, the final state, and the state before every `interval` steps but the first (unless `kept` is None)."""
    BLOCKS: tl.constexpr = (CHANNELS + BLOCK - 1) // BLOCK
    SPANS: tl.constexpr = w1 is not None
    SIGN: tl.constexpr = -1 if REVERSE else 1
    q = (tl.program_id(0) // BLOCKS).to(tl.int64)
    d = (tl.program_id(0) % BLOCKS) * BLOCK + tl.arange(0, BLOCK)
    n = tl.arange(0, PADDED)
    inside = d < CHANNELS
    whole = (n < STATES)[:, None] & inside[None, :]
    tile = n[:, None] * CHANNELS + d[None, :]
    a = load_rates(A + opaque, tile, whole)
    inverse = 1.0 / a
    v1 = load_vector(w1, d, inside)
    rate = load_vector(w2, d, inside) * -LOG2E
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
            u_at = q * u_batch + t * U_ROW
            step_at = q * step_batch + t * STEP_ROW
            z_at = q * z_batch + t * Z_ROW
            out = y + token * CHANNELS + d
            busy = True
            if mask is not None:
                busy = any_alive(mask, token, k, length, STEP, SIGN)
            if busy:
                ys = ()
                for s in tl.static_range(STEP):
                    here = alive(mask, token + SIGN * s, k + s, length)
                    vu, delta, vB, _decay, _span = load_token(
                        u, step, B, v1, rate, token + SIGN * s, u_at + SIGN * s * U_ROW, step_at + SIGN * s * STEP_ROW,
                        d, n, inside, here, SPANS, STATES, PADDED, GUARD,
                    )  # fmt: skip
                    vC = load_states(C + (token + SIGN * s) * STATES, n, here, STATES, PADDED, GUARD)
                    x = delta[None, :] * a
                    if ZOH:
                        h = h + expm1(x) * (vB[:, None] * (vu * LOG2E)[None, :] * inverse + h)
                    else:
                        h = tl.exp2(x) * h + vB[:, None] * (delta * vu)[None, :]
                    vy = tl.sum(h * vC[:, None], 0) + skip * vu
                    if z is not None:
                        vz = load_channels(z + z_at + SIGN * s * Z_ROW, d, inside, here, GUARD)
                        vy = vy * vz * sigmoid(vz)
                    ys = ys + (vy,)
                # stores last: the loads of all steps may then overtake each other's waiting
                for s in tl.static_range(STEP):
                    tl.store(out + SIGN * s * CHANNELS, ys[s], mask=inside & (k + s < length))
            else:
                for s in tl.static_range(STEP):
                    nothing = tl.zeros([BLOCK], tl.float32)
                    tl.store(out + SIGN * s * CHANNELS, nothing, mask=inside & (k + s < length))
    tl.store(final + q * (STATES * CHANNELS) + d[None, :] * STATES + n[:, None], h, mask=whole)


@triton.jit(do_not_specialize=NUMBERS)
def backward_kernel(
    u, step, w1, w2, A, B, C, D, z, mask, state, kept, dy, adjoint, scratch,
    du, ddelta, dz, dBC, dspan, dA, dvectors,
    count, length, interval, first, last, start, window, opaque, u_batch, step_batch, z_batch, dy_batch,
    CHANNELS: tl.constexpr, STATES: tl.constexpr, PADDED: tl.constexpr, BLOCK: tl.constexpr, STEP: tl.constexpr,
    HALVINGS: tl.constexpr, U_ROW: tl.constexpr, STEP_ROW: tl.constexpr, Z_ROW: tl.constexpr,
    DY_ROW: tl.constexpr, DY_COLUMN: tl.constexpr, ZOH: tl.constexpr, REVERSE: tl.constexpr, GUARD: tl.constexpr,
):  # fmt: skip
    """The gradients of chunks first .. last - 1, the last one first; sums over channels or sequences in parts.

    A program keeps its block of channels and goes through the sequences row, row + rows, ...; what it adds up for A,
    D, w1 and w2 stays in registers. `adjoint` holds g on entry and on return; `start` is the window's first time.
    """
    BLOCKS: tl.constexpr = (CHANNELS + BLOCK - 1) // BLOCK
    SPANS: tl.constexpr = w1 is not None
    SIGN: tl.constexpr = -1 if REVERSE else 1
    block = tl.program_id(0)
    row = tl.program_id(1)
    rows = tl.num_programs(1)
    lane = tl.arange(0, BLOCK)
    d = block * BLOCK + lane
    n = tl.arange(0, PADDED)
    inside = d < CHANNELS
    whole = (n < STATES)[:, None] & inside[None, :]
    tile = n[:, None] * CHANNELS + d[None, :]
    own = n[:, None] * BLOCK + lane[None, :]
    places = scratch + opaque + (row * BLOCKS + block).to(tl.int64) * (interval // STEP) * (PADDED * BLOCK)
    a = load_rates(A + opaque, tile, whole)
    inverse = 1.0 / a
    v1 = load_vector(w1, d, inside)
    v2 = load_vector(w2, d, inside)
    rate = v2 * -LOG2E
    skip = load_vector(D, d, inside)
    sA = tl.zeros([PADDED, BLOCK], tl.float32)
    sD = tl.zeros([BLOCK], tl.float32)
    s1 = tl.zeros([BLOCK], tl.float32)
    s2 = tl.zeros([BLOCK], tl.float32)

    for sequence in range(row, count, rows):
        q = tl.cast(sequence, tl.int64)
        g = tl.zeros([PADDED, BLOCK], tl.float32)
        if adjoint is not None:
            g = tl.load(adjoint + opaque + q * (STATES * CHANNELS) + tile, mask=whole, other=0.0)
        for back in range(last - first):
            c = last - 1 - back
            tiles = tl.cdiv(tl.minimum(length - c * interval, interval), STEP)

            # 1. forward: leave the state before every tile, under "zoh" times a, which saves a product a step
            h = tl.zeros([PADDED, BLOCK], tl.float32)
            if kept is not None:
                place = kept + opaque + (q * (tl.cdiv(length, interval) - 1) + c - 1) * (STATES * CHANNELS)
                h = tl.load(place + tile, mask=whole & (c > 0), other=0.0)
            if state is not None:
                place = state + opaque + q * (STATES * CHANNELS)
                h = h + tl.load(place + tile, mask=whole & (c == 0), other=0.0)
            if ZOH:
                h = h * a
            for j in range(tiles - 1):
                tl.store(places + j * (PADDED * BLOCK) + own, h)
                k = c * interval + j * STEP
                t = tl.cast(length - 1 - k if REVERSE else k, tl.int64)
                token = q * length + t
                u_at = q * u_batch + t * U_ROW
                step_at = q * step_batch + t * STEP_ROW
                busy = True
                if mask is not None:
                    busy = any_alive(mask, token, k, length, STEP, SIGN)
                if busy:
                    for s in tl.static_range(STEP):
                        here = alive(mask, token + SIGN * s, k + s, length)
                        vu, delta, vB, _decay, _span = load_token(
                            u, step, B, v1, rate, token + SIGN * s, u_at + SIGN * s * U_ROW,
                            step_at + SIGN * s * STEP_ROW, d, n, inside, here, SPANS, STATES, PADDED, GUARD,
                        )  # fmt: skip
                        x = delta[None, :] * a
                        if ZOH:
                            h = h + expm1(x) * (vB[:, None] * (vu * LOG2E)[None, :] + h)
                        else:
                            h = tl.exp2(x) * h + vB[:, None] * (delta * vu)[None, :]

            # 2. tile by tile back; `ahead` is the state before the next tile, on its way from the scratch
            ahead = h
            for i in range(tiles):
                j = tiles - 1 - i
                k = c * interval + j * STEP
                t = tl.cast(length - 1 - k if REVERSE else k, tl.int64)
                token = q * length + t
                u_at = q * u_batch + t * U_ROW
                step_at = q * step_batch + t * STEP_ROW
                z_at = q * z_batch + t * Z_ROW
                dy_at = q * dy_batch + t * DY_ROW
                row_at = token * CHANNELS + d
                part = (block.to(tl.int64) * count + q) * window + t - start
                h = ahead
                ahead = tl.load(places + tl.maximum(j - 1, 0) * (PADDED * BLOCK) + own)
                busy = True
                if mask is not None:
                    busy = any_alive(mask, token, k, length, STEP, SIGN)
                if busy:
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
                        here = alive(mask, token + SIGN * s, k + s, length)
                        vu, delta, vB, decay, span = load_token(
                            u, step, B, v1, rate, token + SIGN * s, u_at + SIGN * s * U_ROW,
                            step_at + SIGN * s * STEP_ROW, d, n, inside, here, SPANS, STATES, PADDED, GUARD,
                        )  # fmt: skip
                        gs = gs + (
                            load_channels(dy + dy_at + SIGN * s * DY_ROW, d * DY_COLUMN, inside, here, GUARD),
                        )
                        if z is not None:
                            zs = zs + (load_channels(z + z_at + SIGN * s * Z_ROW, d, inside, here, GUARD),)
                        x = delta[None, :] * a
                        e = tl.exp2(x)
                        if ZOH:
                            # f = phi(X) - 1 with X = x ln 2, to 1e-5 of itself: the gradient of A is made of it
                            series = x * (0.3465735902799726 + x * (0.0801275845 + x * 0.0138760272))
                            r = (1.4426950408889634 / tl.where(delta == 0.0, 1.0, delta))[None, :]
                            f = tl.where(tl.abs(x) < 0.19, series, (e * r - r) * inverse - 1.0)
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
                        decays = decays + (decay,)
                        spans = spans + (span,)

                    dus = ()
                    dds = ()
                    dzs = ()
                    dBs = ()
                    dCs = ()
                    dss = ()
                    for s in tl.static_range(STEP - 1, -1, -1):
                        here = alive(mask, token + SIGN * s, k + s, length)
                        vB = load_states(B + (token + SIGN * s) * STATES, n, here, STATES, PADDED, GUARD)
                        vC = load_states(C + (token + SIGN * s) * STATES, n, here, STATES, PADDED, GUARD)
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
                        sgB = tl.sum(gB, 0)
                        if ZOH:
                            # d h / d A = (X h - f B delta u) / A,  d h / d (B u) = delta (1 + f)
                            X = (delta * LN2)[None, :] * a
                            gh = g * h
                            gBf = gB * cs[s]
                            gf = g + g * cs[s]
                            sA = sA + X * gh
                            sA = sA - gBf * scaled[None, :]
                            dBs = dBs + (sum_channels(gf * scaled[None, :], PADDED, BLOCK, HALVINGS),)
                            dus = dus + (delta * (sgB + tl.sum(gBf, 0)) + skip * gy,)
                            g = g + X * gf
                        else:
                            # d h / d A = delta e h_(k-1), and e h_(k-1) is what was kept
                            gh = g * hs[s]
                            sA = sA + gh * delta[None, :]
                            dBs = dBs + (sum_channels(g * scaled[None, :], PADDED, BLOCK, HALVINGS),)
                            dus = dus + (delta * sgB + skip * gy,)
                            g = g * cs[s]
                        # d h / d delta = A h + B u under "zoh", A e h_(k-1) + B u under "euler"
                        dd = tl.sum(gh * a, 0) * LN2 + vu * sgB
                        if GUARD:
                            dd = tl.where(here, dd, 0.0)
                        sD += gy * vu
                        if SPANS:
                            rest = dd * v1 * (1.0 + decays[s])
                            s1 -= dd * decays[s]
                            s2 += rest * spans[s]
                            if dspan is not None:
                                dss = dss + (tl.sum(rest * v2, 0),)
                        else:
                            dds = dds + (dd,)

                    for s in tl.static_range(STEP):
                        exists = k + s < length
                        tl.store(du + row_at + SIGN * s * CHANNELS, dus[STEP - 1 - s], mask=inside & exists)
                        if not SPANS:
                            tl.store(
                                ddelta + row_at + SIGN * s * CHANNELS, dds[STEP - 1 - s], mask=inside & exists
                            )
                        if z is not None:
                            tl.store(
                                dz + row_at + SIGN * s * CHANNELS, dzs[STEP - 1 - s], mask=inside & exists
                            )
                        if dspan is not None:
                            tl.store(dspan + part + SIGN * s, dss[STEP - 1 - s], mask=exists)
                        to = dBC + (part + SIGN * s) * STATES + n
                        tl.store(to, dBs[STEP - 1 - s], mask=(n < STATES) & exists)
                        to += (BLOCKS * STATES) * count.to(tl.int64) * window
                        tl.store(to, dCs[STEP - 1 - s], mask=(n < STATES) & exists)
                else:
                    for s in tl.static_range(STEP):
                        exists = k + s < length
                        nothing = tl.zeros([BLOCK], tl.float32)
                        tl.store(du + row_at + SIGN * s * CHANNELS, nothing, mask=inside & exists)
                        if not SPANS:
                            tl.store(ddelta + row_at + SIGN * s * CHANNELS, nothing, mask=inside & exists)
                        if z is not None:
                            tl.store(dz + row_at + SIGN * s * CHANNELS, nothing, mask=inside & exists)
                        if dspan is not None:
                            tl.store(dspan + part + SIGN * s, 0.0, mask=exists)
                        none = tl.zeros([PADDED], tl.float32)
                        to = dBC + (part + SIGN * s) * STATES + n
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
    if SPANS:
        place_v += rows * CHANNELS
        tl.store(place_v, tl.load(place_v, mask=inside, other=0.0) + s1, mask=inside)
        place_v += rows * CHANNELS
        tl.store(place_v, tl.load(place_v, mask=inside, other=0.0) + s2, mask=inside)
