"""Which names in an outbox are mail. Light, so that a run with nothing to do imports nothing else."""

UNFINISHED = (".tmp", ".part", ".swp", "~")
TAKEN = ".postmaster-taken"  # a letter between its outbox name and its end; only one at a time


def is_mail(name: str) -> bool:
    """Tell whether a name in the outbox is mail, not a writer's private name."""
    return not name.startswith(".") and not name.endswith(UNFINISHED)
