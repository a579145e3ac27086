"""Errors and warnings of the package. A message is one sentence: what is wrong, the value, what to do."""


class DygError(Exception):
    """Base class of errors that the user can fix; the command line prints the message and exits with `exit_code`.

    `code` is a stable identifier of the problem, such as "unknown-dataset". Programs and tests rely on it, so that the
    wording of a message can improve freely. It is not part of the message.
    """

    exit_code = 2
    code = "error"

    def __init__(self, *args: object, code: str | None = None) -> None:
        super().__init__(*args)
        if code is not None:
            self.code = code


class EventError(DygError):
    """Events that break the invariants of a stream (order, ids, shapes)."""


class FileError(DygError):
    """A file that cannot be read or written as what it claims to be."""


class WriteError(FileError):
    """A file that could not be written; a previous version of it is intact."""


class LockedError(FileError):
    """A folder that another process is writing to."""


class NotFoundError(DygError):
    """A name (dataset, model, preset, column, node) that does not exist."""


class ConfigError(DygError):
    """A setting that is unknown, of the wrong type or out of range."""


class ScoreError(DygError):
    """A score or a loss that is not a finite number."""


class DownloadError(DygError):
    """A download that failed or is incomplete."""


class Interrupted(DygError):
    """The user stopped the work; what is done is on disk and can be resumed."""

    exit_code = 130
    code = "interrupted"


def first_line(error: BaseException) -> str:
    """Return the first line of another package's error, short enough for a sentence."""
    lines = str(error).split("\n")[0].splitlines() or [""]
    return lines[0][:160] or type(error).__name__


def make_unreadable_error(path: object, error: OSError) -> FileError:
    """Return the error for a file that the system does not let this process read; it need not be damaged."""
    is_forbidden = isinstance(error, PermissionError)
    advice = "allow this user to read it" if is_forbidden else "check the disk and the path"
    return FileError(
        f"{path} cannot be read ({error.strerror or type(error).__name__}); {advice}", code="file-unreadable"
    )


def make_package_error(user: str, package: str, install: str) -> ConfigError:
    """Return the error for a part that needs a package that is not installed; pip installs `install`."""
    return ConfigError(
        f"{user} needs the package {package}, which is not installed; pip install {install}",
        code="package-missing",
    )


class DygWarning(UserWarning):
    """Something the user should know although the work goes on; the command line prints it on stderr."""
