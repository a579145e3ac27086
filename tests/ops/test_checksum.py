"""The checksum of bytes: the kernel equals the reference, and no change of a word is missed."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dygmamba.ops.checksum import compute_checksum

contents = st.binary(max_size=100).map(lambda content: np.frombuffer(content, np.uint8))


def by_definition(content):
    """The checksum in integers of Python, a word at a time."""
    filled = content.tobytes() + bytes(-len(content) % 8)
    words = np.frombuffer(filled, np.uint64).tolist()
    whole, rest = words[: len(content) // 8], (words[len(content) // 8 :] or [0])[0]
    return hashed([*(hashed(whole[lane::4]) for lane in range(4)), rest, len(content)])


def hashed(words):
    joined = 0xCBF29CE484222325
    for word in words:
        joined = (joined ^ word) * 0x00000100000001B3 % 2**64
    return joined


@given(contents)
def test_the_kernel_equals_the_definition(content):
    found = compute_checksum(content)
    assert 0 <= found < 2**64
    assert by_definition(content) == found


@given(contents.filter(len), st.data())
def test_every_flipped_bit_is_noticed(content, data):
    """For all bytes and all bits of them; also a byte more, even if it is zero."""
    bit = data.draw(st.integers(0, 8 * len(content) - 1))
    flipped = content.copy()
    flipped[bit // 8] ^= 1 << bit % 8
    assert compute_checksum(flipped) != compute_checksum(content)
    assert compute_checksum(np.append(content, np.uint8(0))) != compute_checksum(content)


def test_words_in_another_order_have_another_checksum():
    words = np.arange(64, dtype=np.uint64)
    assert compute_checksum(words.view(np.uint8)) != compute_checksum(words[::-1].copy().view(np.uint8))
