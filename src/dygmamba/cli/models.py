"""`dygmamba models`: list the models, or show the settings of one."""

from pathlib import Path

from dygmamba.api.formatting import build_model_document, build_model_list
from dygmamba.cli.console import emit_json, print_document
from dygmamba.cli.options import AS_JSON, DATA_DIR, argument, optional


def models(
    name: str | None = argument("Show the settings of this model: default, allowed values, meaning.", None),
    data: str | None = optional(
        "Show the sizes of the models on this dataset, with its published settings.", default="uci"
    ),
    data_dir: Path | None = DATA_DIR,
    as_json: bool = AS_JSON,
) -> None:
    """List the models: what each looks at, its trained parameters, and the events it reads per query."""
    if name is not None:
        from dygmamba.api.model_descriptions import describe_model

        about = describe_model(name)
        if as_json:
            emit_json(about)
        else:
            print_document(build_model_document(about))
        return
    if data is not None:
        from dygmamba.api.requests.base import check_data

        check_data(data, data_dir)

    from dygmamba.api.models import DEFAULT_DATASET, list_models

    rows = list_models(data, data_dir)
    if as_json:
        emit_json({"models": rows})
    else:
        print_document(build_model_list(rows, data or DEFAULT_DATASET))
