"""How annotated shapes are checked while tests run (see `addopts` in pyproject.toml)."""

from beartype import BeartypeConf, beartype

check = beartype(conf=BeartypeConf(is_pep484_tower=True))  # an int is a float, as in PEP 484
