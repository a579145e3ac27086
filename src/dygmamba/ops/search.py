"""The binary search that look-ups share."""

from dygmamba.ops.compiled import part


@part(inline="always")
def first_not_less(values, low, high, target):
    """The first place in [low, high) whose value is not below the target, or high: where the past of a time ends."""
    while low < high:
        middle = (low + high) >> 1
        if values[middle] < target:
            low = middle + 1
        else:
            high = middle
    return low
