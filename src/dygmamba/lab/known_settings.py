"""Generates known.json (`make known`): models, training loops and names that options accept, readable without torch."""

import json
from pathlib import Path
from typing import Any

from dygmamba.core.files.writing import write_text
from dygmamba.data.generate.stream import LAWS, GeneratorConfig
from dygmamba.data.readers.options import FORMATS, TIME_UNITS
from dygmamba.engine.fit_config import LinkFitConfig, NodeFitConfig
from dygmamba.known import FILE, described
from dygmamba.lab.studies import STUDIES
from dygmamba.models import MODELS
from dygmamba.sampling.negatives import SAMPLERS
from dygmamba.tasks.link import SETTINGS, SPLITS


def collect_known_settings() -> dict[str, Any]:
    """Return the content of known.json, collected from where each name is declared."""
    return {
        "models": {
            name: {
                "config": spec.config.__name__,
                "title": spec.title,
                "looks_at": spec.looks_at,
                "cost": spec.cost,
                "trainable": spec.trainable,
                "settings": described(spec.config),
            }
            for name, spec in MODELS.items()
        },
        "loops": {
            name: {"config": kind.__name__, "settings": described(kind)}
            for name, kind in (("link", LinkFitConfig), ("node", NodeFitConfig))
        },
        "generator": {"config": GeneratorConfig.__name__, "settings": described(GeneratorConfig)},
        "names": {
            "negatives": list(SAMPLERS),
            "split": list(SPLITS),
            "setting": list(SETTINGS),
            "format": list(FORMATS),
            "time_unit": list(TIME_UNITS),
            "law": list(LAWS),
            "study": list(STUDIES),
        },
    }


def render_known_settings() -> str:
    """Return the text of known.json, one line per value so that diffs are small."""
    return json.dumps(collect_known_settings(), indent=1) + "\n"


if __name__ == "__main__":
    write_text(Path(__file__).parents[1] / FILE, render_known_settings())
