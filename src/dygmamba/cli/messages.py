"""Messages of the library in the words of the command line, and text that is safe to print."""

import ast
import re
import shlex

# Parameters that the library names in back quotes, and that are options here.
_OPTION_NAMES = (
    "activity append at backbone balance bipartite budget candidates costs data_dir decimal delimiter device "
    "draws drop_duplicates dst encoding epochs events every fail_above fail_below features fill filtered finetune "
    "force format header host hours label late law log loss max_ahead memory metrics model negatives node_features "
    "node_time nodes on_late only_new orders out pairs period port preset processes raw real_share refit resume seed "
    "seeds set setting skip_bad sources split src start state store_negatives studies task threshold time "
    "time_format time_unit tls_cert tls_key to token top top_per_day train_candidates train_negatives trials types "
    "visible window workers"
)
OPTIONS = {name: f"--{name.replace('_', '-')}" for name in _OPTION_NAMES.split()} | {
    "name": "--out",
    "start_from": "--from",
    "trust": "--trust-code",
}
SETTINGS_WITHOUT_OPTION = ("patience", "batch", "query_columns")
# Calls of the library that messages recommend, as commands.
COMMAND_FORMS = {
    "read": "dygmamba data import {}",
    "train": "dygmamba train {} --model {}",
    "resume": "dygmamba train --resume {}",
    "refit": "dygmamba train --resume {} --refit all",
    "evaluate": "dygmamba evaluate {} --model {}",
    "report": "dygmamba report {}",
}


def translate_message(text: object) -> str:
    """Replace parameters and calls in back quotes by options and commands."""
    return re.sub(r"`([^`]+)`", lambda match: _translate_quoted(match[1]), str(text))


def _translate_quoted(quoted: str) -> str:
    """`time_unit='ms'` becomes --time-unit ms, `dygmamba.resume('x')` dygmamba train --resume x, all else stays."""
    name, _, value = quoted.partition("=")
    if name in SETTINGS_WITHOUT_OPTION:
        return f"--set {quoted}"
    if name in OPTIONS and value in ("True", "False"):
        return OPTIONS[name] if value == "True" else f"--no-{OPTIONS[name][2:]}"
    if name in OPTIONS:
        value = value.strip("'")
        return f"{OPTIONS[name]} {shlex.quote(value) if value else ''}".strip()
    call = re.fullmatch(r"dygmamba\.(?:open\((.*)\)\.)?(\w+)\((.*)\)", quoted)
    if call and call[2] in COMMAND_FORMS:
        try:
            values = ast.literal_eval(f"({call[1] or call[3]},)")
            return COMMAND_FORMS[call[2]].format(*(shlex.quote(str(value)) for value in values))
        except (ValueError, SyntaxError, IndexError):  # not only strings, or too few of them
            return f"`{quoted}`"
    return f"`{quoted}`"


def escape_text(text: str) -> str:
    """Escape everything that is not a printable character of one line.

    Control characters, line ends, marks that turn the direction of writing, and stray bytes: a name that holds them can
    neither move the cursor nor look like a line of this program.
    """
    if text.isprintable():
        return text
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape", "surrogatepass").decode()
        for letter in text
    )
