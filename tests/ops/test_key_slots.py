import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dygmamba.ops.key_slots import KeySlots


@given(
    batches=st.lists(st.lists(st.integers(0, 80) | st.integers(2**40, 2**40 + 9), max_size=12), max_size=30)
)
def test_slots_are_those_of_a_dictionary(batches):
    """For all sequences of insertions, slots are those of a dict filled in the same order."""
    table, expected = KeySlots(), {}
    for keys in batches:
        slots = table.insert(np.asarray(keys, dtype=np.int64))
        for key in keys:
            expected.setdefault(key, len(expected))
        assert slots.tolist() == [expected[key] for key in keys]
        asked = np.asarray([-1, -(2**40), 0, 7, 2**40, *keys], dtype=np.int64)
        assert table.slots(asked).tolist() == [expected.get(key, -1) for key in asked.tolist()]
        assert table.keys().tolist() == list(expected)
