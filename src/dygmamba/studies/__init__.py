"""Reproduction of the studies of the paper: `dygmamba reproduce`."""

# names of the studies in `studies.py`, readable without torch
STUDY_NAMES = (
    "paper",
    "link",
    "node",
    "ablation",
    "length",
    "efficiency",
    "convergence",
    "robustness",
    "sensitivity",
    "case-study",
    "large",
)
