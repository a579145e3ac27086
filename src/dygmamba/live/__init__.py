"""Live runs: trained runs that take events while they are queried.

The package can be called: `dygmamba.live(run, path)` is `dygmamba.api.live.live`. A function of that name would hide
the package.

>>> import dygmamba as dm
>>> live = dm.live(run, "state")  # doctest: +SKIP
"""

import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dygmamba.live.live_run import LiveRun


class _CallablePackage(ModuleType):
    def __call__(
        self,
        run: object,
        path: Path | str,
        *,
        late: str | float | None = None,
        on_late: str | None = None,
        max_ahead: str | float | None = None,
        fill: float | None = None,
        device: str = "auto",
        data_dir: Path | str | None = None,
    ) -> "LiveRun":
        """Open a run for live use; see `dygmamba.api.live.live`."""
        function = import_module("dygmamba.api.live").live  # by name: the api is above this package
        return function(
            run, path, late=late, on_late=on_late, max_ahead=max_ahead, fill=fill, device=device, data_dir=data_dir
        )  # fmt: skip


sys.modules[__name__].__class__ = _CallablePackage
