"""Laboratory: reproduction of the paper's studies, audit of datasets and models, benchmarks.

Only the commands and functions `reproduce`, `audit` and `bench` use it; the rest of the package never imports it.
"""
