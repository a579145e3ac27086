"""Tables of settings: published (paper), for CPUs (small), for minutes on a GPU (short), and for other purposes.

These are node classification, ablations, and search spaces for tuning.
"""
