"""DyG-Mamba and its field: learning from timestamped interactions, leak-free.

DyG-Mamba here is the NeurIPS 2025 paper (openreview ja2wA4UncJ), not DyGMamba (arXiv 2408.04713).
"""

__version__ = "0.1.0"
