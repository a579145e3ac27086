"""Text that is safe in a cell of a spreadsheet: other people's words must not be run as formulas."""

FORMULAS = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")  # noqa: RUF001 (full-width ones count too)


def harmless(text: str) -> str:
    """Text that no spreadsheet takes for a formula: what could be one gets a single quote in front (OWASP)."""
    return f"'{text}" if text.startswith(FORMULAS) else text
