"""Text of other people, made harmless to look at. Pure."""


def printable(text: str, keep: str = "") -> str:
    """Return `text` with what would drive a terminal, break a line or turn the direction of writing made visible.

    Args:
        keep: characters that stay as they are all the same.
    """
    return "".join(c if c.isprintable() or c in keep else c.encode("unicode_escape").decode("ascii") for c in str(text))


def quoted(text: str, limit: int = 80) -> str:
    """Return `text` fit to stand in a detail: short, printable, in quotes if it is odd."""
    shown = text if len(text) <= limit else text[: limit - 3] + "..."
    plain = shown.isprintable() and shown and " " not in shown
    return shown if plain else ascii(shown)


def brief(names: list[str], limit: int = 5) -> str:
    """Return the first few of `names` as a comma-separated list that says how many it leaves out."""
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more
