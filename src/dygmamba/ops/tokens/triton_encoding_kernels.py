"""Triton kernels around the one product Z = F W of all encodings.

F has a row per token: cosines of the ages, the hidden layer of the counts, features of two tables, a one. Each of these
sections begins at a multiple of four columns; what lies between is 0. W has a row for each of these columns: the
weights of a section under the output columns of its part, and under the one all biases. The two linear maps behind
the hidden layer, W2 and W3, are one block W2^T W3^T.

For the gradient, two more sections follow in F: H_w and H_b, the derivatives of the hidden layer by its weights and
biases. With P = F^T dZ and the block's part P_w of the rows of H_w, the gradient of weight i is the sum over the
columns c of (W2^T W3^T)_ic (P_w)_ic; nothing else of the tokens is needed.

Legend: TIME, HIDDEN, A and B columns of the four sections of F; X_AT first column of section X in F; X_OUT first column
of its part in Z, -1 without that part; K columns of F that have weights; H columns of H_w and of H_b, with padding; ROW
columns of F in all; D columns of Z; WIDTH columns of a part in Z.
"""

import triton
import triton.language as tl


@triton.jit
def store_section(out, row, here, j, value, AT: tl.constexpr, END: tl.constexpr, ROW: tl.constexpr):
    """Columns AT + j of F that lie before END."""
    inside = here[:, None] & (j < END - AT)[None, :]
    tl.store(out + row[:, None] * ROW + (AT + j)[None, :], value, mask=inside)


@triton.jit
def store_features(
    out, row, here, table, index, present, scale,
    COLUMNS: tl.constexpr, AT: tl.constexpr, END: tl.constexpr, ROW: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Rows of a table, which may lie in pinned host memory; only rows that are present are read."""
    kept = tl.load(present + row, mask=here, other=0) != 0
    source = tl.load(index + row, mask=kept, other=0).to(tl.int64)
    for start in tl.static_range(0, COLUMNS, BLOCK):
        j = start + tl.arange(0, BLOCK)
        at = table + source[:, None] * COLUMNS + j[None, :]
        value = tl.load(at, mask=kept[:, None] & (j < COLUMNS)[None, :], other=0.0)
        if scale is not None:
            value *= tl.load(scale + j, mask=j < COLUMNS, other=0.0)[None, :]
        store_section(out, row, here, j, value, AT, END, ROW)


@triton.jit(do_not_specialize=["count"])
def features_kernel(
    out, age, omega, phase, counts, hidden_weight, hidden_bias,
    a_table, a_index, a_present, a_scale, b_table, b_index, b_present, b_scale, count,
    TIME: tl.constexpr, HIDDEN: tl.constexpr, A: tl.constexpr, B: tl.constexpr, HIDDEN_AT: tl.constexpr,
    A_AT: tl.constexpr, B_AT: tl.constexpr, ONES_AT: tl.constexpr, K: tl.constexpr, H: tl.constexpr,
    ROW: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """ROWS of the `count` rows of F; with the derivatives of the hidden layer if ROW > K."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    here = row < count
    for start in tl.static_range(0, TIME, BLOCK):
        j = start + tl.arange(0, BLOCK)
        frequency = tl.load(omega + j, mask=j < TIME, other=0.0)[None, :]
        angle = tl.load(age + row, mask=here, other=0.0)[:, None] * frequency
        angle += tl.load(phase + j, mask=j < TIME, other=0.0)[None, :]
        value = tl.where((j < TIME)[None, :], tl.cos(angle), 0.0)
        store_section(out, row, here, j, value, 0, HIDDEN_AT, ROW)
    for start in tl.static_range(0, HIDDEN, BLOCK):
        j = start + tl.arange(0, BLOCK)
        weight = tl.load(hidden_weight + j, mask=j < HIDDEN, other=0.0)[None, :]
        bias = tl.load(hidden_bias + j, mask=j < HIDDEN, other=0.0)[None, :]
        x = tl.load(counts + 2 * row, mask=here, other=0).to(tl.float32)[:, None]
        y = tl.load(counts + 2 * row + 1, mask=here, other=0).to(tl.float32)[:, None]
        of_x, of_y = x * weight + bias, y * weight + bias
        value = tl.maximum(of_x, 0.0) + tl.maximum(of_y, 0.0)
        store_section(out, row, here, j, value, HIDDEN_AT, A_AT, ROW)
        if ROW > K:
            by_weight = tl.where(of_x > 0, x, 0.0) + tl.where(of_y > 0, y, 0.0)
            store_section(out, row, here, j, by_weight, K, K + H, ROW)
            by_bias = (of_x > 0).to(tl.float32) + (of_y > 0).to(tl.float32)
            store_section(out, row, here, j, by_bias, K + H, ROW, ROW)
    if A > 0:
        store_features(out, row, here, a_table, a_index, a_present, a_scale, A, A_AT, B_AT, ROW, BLOCK)
    if B > 0:
        store_features(out, row, here, b_table, b_index, b_present, b_scale, B, B_AT, ONES_AT, ROW, BLOCK)
    j = tl.arange(0, 8)  # K is the next multiple of eight behind the one
    store_section(out, row, here, j, tl.where(here[:, None] & (j == 0)[None, :], 1.0, 0.0), ONES_AT, K, ROW)


@triton.jit
def multiply_row(
    row, right, on, j,
    STEP: tl.constexpr, RIGHT_ROW: tl.constexpr, RIGHT_STEP: tl.constexpr, SIZE: tl.constexpr, COLUMNS: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """sum_i row_i right_ij over i < SIZE in float32, whatever the precision of products is; 0 if not `on`."""
    total = tl.zeros([BLOCK], tl.float32)
    for start in range(0, SIZE, 16):
        i = start + tl.arange(0, 16)
        value = tl.load(row + i * STEP, mask=on & (i < SIZE), other=0.0)
        inside = (i < SIZE)[:, None] & (j < COLUMNS)[None, :]
        at = right + i[:, None] * RIGHT_ROW + j[None, :] * RIGHT_STEP
        total += tl.sum(value[:, None] * tl.load(at, mask=inside, other=0.0), 0)
    return total


@triton.jit
def dot(left, right, on, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    """sum_i left_i right_i over i < SIZE in float32; 0 if not `on`."""
    total = tl.zeros([BLOCK], tl.float32)
    for start in range(0, SIZE, BLOCK):
        i = start + tl.arange(0, BLOCK)
        inside = on & (i < SIZE)
        total += tl.load(left + i, mask=inside, other=0.0) * tl.load(right + i, mask=inside, other=0.0)
    return tl.sum(total, 0)


@triton.jit
def load_weights(
    weight, bias, i, ones, j, SIZE: tl.constexpr, STEP_I: tl.constexpr, STEP_J: tl.constexpr, WIDTH: tl.constexpr
):  # fmt: skip
    """Row i of a part's weights, 0 outside of it, or its biases in the row of ones."""
    value = tl.load(weight + i * STEP_I + j * STEP_J, mask=(i >= 0) & (i < SIZE) & (j < WIDTH), other=0.0)
    return value + tl.load(bias + j, mask=ones & (j < WIDTH), other=0.0)


@triton.jit
def weights_kernel(
    out, time_weight, time_bias, second_weight, second_bias, count_weight, count_bias,
    a_weight, a_bias, b_weight, b_bias,
    TIME: tl.constexpr, HIDDEN: tl.constexpr, A: tl.constexpr, B: tl.constexpr, HIDDEN_AT: tl.constexpr,
    A_AT: tl.constexpr, B_AT: tl.constexpr, ONES_AT: tl.constexpr, TIME_OUT: tl.constexpr,
    HIDDEN_OUT: tl.constexpr, A_OUT: tl.constexpr, B_OUT: tl.constexpr, WIDTH: tl.constexpr,
    D: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """A row of W [K D], a block of columns of each part."""
    row = tl.program_id(0)
    ones = row == ONES_AT
    j = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    at = out + row * D + j
    if TIME_OUT >= 0:
        value = load_weights(time_weight, time_bias, row, ones, j, TIME, 1, TIME, WIDTH)
        tl.store(at + TIME_OUT, value, mask=j < WIDTH)
    if A_OUT >= 0:
        value = load_weights(a_weight, a_bias, row - A_AT, ones, j, A, WIDTH, 1, WIDTH)
        tl.store(at + A_OUT, value, mask=j < WIDTH)
    if B_OUT >= 0:
        value = load_weights(b_weight, b_bias, row - B_AT, ones, j, B, WIDTH, 1, WIDTH)
        tl.store(at + B_OUT, value, mask=j < WIDTH)
    if HIDDEN_OUT >= 0:
        i = row - HIDDEN_AT
        hidden = (i >= 0) & (i < HIDDEN)
        value = tl.load(count_bias + j, mask=ones & (j < WIDTH), other=0.0)
        value += multiply_row(
            second_weight + i, count_weight, hidden, j, HIDDEN, 1, HIDDEN, HIDDEN, WIDTH, BLOCK
        )
        # f(a) + f(b) has the bias of the second layer twice
        value += 2.0 * multiply_row(second_bias, count_weight, ones, j, 1, 1, HIDDEN, HIDDEN, WIDTH, BLOCK)
        tl.store(at + HIDDEN_OUT, value, mask=j < WIDTH)


@triton.jit
def store_gradients(
    p, dweight, dbias, i, ones, j, SIZE: tl.constexpr, STEP_I: tl.constexpr, STEP_J: tl.constexpr, WIDTH: tl.constexpr
):  # fmt: skip
    """The gradients of row i of a part's weights, or of its biases in the row of ones."""
    own = (i >= 0) & (i < SIZE) & (j < WIDTH)
    value = tl.load(p + j, mask=own | (ones & (j < WIDTH)), other=0.0)
    tl.store(dweight + i * STEP_I + j * STEP_J, value, mask=own)
    tl.store(dbias + j, value, mask=ones & (j < WIDTH))


@triton.jit
def gradients_kernel(
    p, product, second_weight, second_bias, count_weight,
    dtime_weight, dtime_bias, dhidden_weight, dhidden_bias, dsecond_weight, dsecond_bias, dcount_weight, dcount_bias,
    da_weight, da_bias, db_weight, db_bias,
    TIME: tl.constexpr, HIDDEN: tl.constexpr, A: tl.constexpr, B: tl.constexpr, HIDDEN_AT: tl.constexpr,
    A_AT: tl.constexpr, B_AT: tl.constexpr, ONES_AT: tl.constexpr, TIME_OUT: tl.constexpr,
    HIDDEN_OUT: tl.constexpr, A_OUT: tl.constexpr, B_OUT: tl.constexpr, WIDTH: tl.constexpr,
    D: tl.constexpr, K: tl.constexpr, H: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The gradients in a row of P = F^T dZ; `product` is W, and row c of dW3 is computed with row c of P."""
    row = tl.program_id(0)
    ones = row == ONES_AT
    j = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    own = p + row * D
    if TIME_OUT >= 0:
        store_gradients(own + TIME_OUT, dtime_weight, dtime_bias, row, ones, j, TIME, 1, TIME, WIDTH)
    if A_OUT >= 0:
        i = row - A_AT
        store_gradients(own + A_OUT, da_weight, da_bias, i, ones, j, A, WIDTH, 1, WIDTH)
    if B_OUT >= 0:
        i = row - B_AT
        store_gradients(own + B_OUT, db_weight, db_bias, i, ones, j, B, WIDTH, 1, WIDTH)
    if HIDDEN_OUT >= 0:
        i = row - HIDDEN_AT
        hidden = (i >= 0) & (i < HIDDEN)
        bias = ones & (j < WIDTH)
        tl.store(dcount_bias + j, tl.load(own + HIDDEN_OUT + j, mask=bias), mask=bias)
        back = multiply_row(
            own + HIDDEN_OUT, count_weight, hidden | ones, j, 1, HIDDEN, 1, WIDTH, HIDDEN, BLOCK
        )
        tl.store(dsecond_weight + j * HIDDEN + i, back, mask=hidden & (j < HIDDEN))
        tl.store(dsecond_bias + j, 2.0 * back, mask=ones & (j < HIDDEN))
        # row c of dW3: its column of the block's gradient times W2, and its bias gradient times 2 b2
        column = p + HIDDEN_OUT + row
        value = multiply_row(
            column + HIDDEN_AT * D, second_weight, row < WIDTH, j, D, 1, HIDDEN, HIDDEN, HIDDEN, BLOCK
        )
        value += (
            2.0
            * tl.load(second_bias + j, mask=j < HIDDEN, other=0.0)
            * tl.load(column + ONES_AT * D, mask=row < WIDTH, other=0.0)
        )
        tl.store(dcount_weight + row * HIDDEN + j, value, mask=(row < WIDTH) & (j < HIDDEN))
        once = hidden & (tl.program_id(1) == 0)
        block, of_block = product + row * D + HIDDEN_OUT, p + (K + i) * D + HIDDEN_OUT
        tl.store(dhidden_weight + i, dot(block, of_block, once, WIDTH, BLOCK), mask=once)
        tl.store(dhidden_bias + i, dot(block, of_block + H * D, once, WIDTH, BLOCK), mask=once)
