"""Errors and warnings of the package, to be caught as `dygmamba.errors.ConfigError` and so on."""

from dygmamba.core.errors import ConfigError as ConfigError
from dygmamba.core.errors import DownloadError as DownloadError
from dygmamba.core.errors import DygError as DygError
from dygmamba.core.errors import DygWarning as DygWarning
from dygmamba.core.errors import EventError as EventError
from dygmamba.core.errors import FileError as FileError
from dygmamba.core.errors import Interrupted as Interrupted
from dygmamba.core.errors import LockedError as LockedError
from dygmamba.core.errors import NotFoundError as NotFoundError
from dygmamba.core.errors import ScoreError as ScoreError
from dygmamba.core.errors import WriteError as WriteError
