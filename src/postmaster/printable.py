"""Text of other people, made harmless to look at. Pure."""


def printable(text: str, keep: str = "") -> str:
    """Return `text` with what would drive a terminal, break a line or turn the direction of writing made visible.

    Args:
        keep: characters that stay as they are all the same.
    """
    return "".join(c if c.isprintable() or c in keep else c.encode("unicode_escape").decode("ascii") for c in str(text))
