"""What a folder may be called: a name from a file, a table or another program stays one step of a path."""

LONGEST = 200  # bytes; file systems take 255, with suffixes
RESERVED = frozenset('/\\<>:"|?*')  # separators here or elsewhere, and what some file systems refuse


def can_name(name: str) -> bool:
    """Whether the name is one folder's: it climbs nowhere, hides no letters and means the same on every system."""
    whole = name == name.strip() and name == name.rstrip(".") and name.isprintable()
    return bool(name) and whole and not RESERVED & set(name) and len(name.encode()) <= LONGEST
