from contextlib import nullcontext

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dygmamba.ops.dispatch import use_reference
from dygmamba.ops.hash_map import HashMap


@given(
    batches=st.lists(st.lists(st.integers(0, 40) | st.integers(2**40, 2**40 + 9), max_size=12), max_size=30)
)
def test_keymap_equals_a_dictionary(batches):
    """For all sequences of insertions, slots are those of a dict filled in the same order."""
    table, expected = HashMap(capacity=1), {}
    for keys in batches:
        slots = table.insert(np.asarray(keys, dtype=np.int64))
        for key in keys:
            expected.setdefault(key, len(expected))
        assert slots.tolist() == [expected[key] for key in keys]
        asked = np.asarray([0, 7, 2**40, *keys], dtype=np.int64)
        assert table.slots(asked).tolist() == [expected.get(key, -1) for key in asked.tolist()]
        assert len(table) == len(expected)


@given(batches=st.lists(st.lists(st.integers(0, 40), max_size=12), max_size=12))
def test_a_map_survives_being_used_by_definition_and_compiled(batches):
    """For all sequences of insertions, every other one as a dictionary: keys keep their slots."""
    table, expected = HashMap(capacity=1), {}
    for turn, keys in enumerate(batches):
        with use_reference() if turn % 2 else nullcontext():
            slots = table.insert(np.asarray(keys, dtype=np.int64))
        for key in keys:
            expected.setdefault(key, len(expected))
        assert slots.tolist() == [expected[key] for key in keys]
        assert len(table) == len(expected)
