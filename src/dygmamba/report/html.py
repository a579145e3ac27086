"""Templates filled in: what comes from a user is escaped, a name that a template does not know is an error."""

from importlib.resources import files
from typing import Any

from dygmamba.report.charts import draw, style

POLICY = "default-src 'none'; style-src 'unsafe-inline'"  # no script, no request


def fill(name: str, **values: Any) -> str:
    """The page that a template makes of these values."""
    from jinja2 import Environment, FunctionLoader, StrictUndefined
    from markupsafe import Markup

    environment = Environment(
        autoescape=True,
        undefined=StrictUndefined,
        loader=FunctionLoader(_text),
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals |= {
        "draw": lambda picture: Markup(draw(picture)),  # what it draws is escaped there
        "style": Markup(style() + _text("style.css")),
        "policy": POLICY,
    }
    return environment.get_template(name).render(**values)


def _text(name: str) -> str:
    return files("dygmamba.report").joinpath(name).read_text("utf-8")
