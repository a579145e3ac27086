"""The checksum of bytes: no change of a word is missed."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dygmamba.live.array_file import compute_checksum

contents = st.binary(max_size=100).map(lambda content: np.frombuffer(content, np.uint8))


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
