"""Laboratory: reproduction of the paper's studies, audit of datasets and models, benchmarks.

Only the commands and functions `reproduce`, `audit` and `bench` use it; the rest of the package never imports it.
"""

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
