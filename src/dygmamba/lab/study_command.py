"""The command that a study was run with, as its results store it."""

import shlex

PATH_OPTIONS = ("--out", "--data-dir")  # folders of the machine that runs a command


def drop_path_options(command: str) -> str:
    """Return a command without the options that name folders."""
    kept, words = [], iter(shlex.split(command))
    for word in words:
        if word in PATH_OPTIONS:
            next(words, None)
        elif not word.startswith(tuple(f"{option}=" for option in PATH_OPTIONS)):
            kept.append(word)
    return shlex.join(kept)
