"""What a warm run may be told to do differently (warm.Warm.run, `patch`). Nothing here is part of the program."""

from typing import Any

from postmaster import commit, delivery_log, durable, history, journal, outbox


def index_every_line() -> None:
    """Write the history index after every record, so that small runs write it too. Not wrong, only slow."""
    history._KEEP_IN_MEMORY = 1  # type: ignore[misc]


def clear_before_publishing() -> None:
    """Clear the outbox before anything is published: for a moment the mail is nowhere to be seen."""
    publish = commit.publish

    def wrong(office: Any, batch: Any, *, again: bool) -> Any:
        _clear_outbox(office, batch)
        return publish(office, batch, again=again)

    commit.publish = wrong


def _clear_outbox(office: Any, batch: Any) -> None:
    outbox.take_all(office.outbox, [entry.source for entry in batch.entries if entry.ending == journal.REMOVE])
    durable.sync_directory(office.outbox)


def drop_the_journal_early() -> None:
    """Drop the journal before the log is written: a kill between the two loses lines, and numbers with them."""
    append = delivery_log.append

    def wrong(office: Any, *arguments: Any, **options: Any) -> Any:
        durable.remove(office.journal)
        return append(office, *arguments, **options)

    delivery_log.append = wrong


def forget_the_journal() -> None:
    """Throw the journal of a killed run away instead of carrying it out."""

    def wrong(office: Any) -> None:
        durable.remove(office.journal)

    journal.load = wrong


def forget_to_sync() -> None:
    """Sync nothing."""

    def nothing(*_: object) -> None:
        return

    durable.sync_directory = durable.sync_file = durable.sync_filesystem = nothing  # type: ignore[assignment]


def unlink_before_logging() -> None:
    """Clear the outbox after publishing, but before the log is written."""
    append = delivery_log.append

    def wrong(office: Any, *arguments: Any, **options: Any) -> Any:
        batch = journal.load(office)
        assert batch is not None
        _clear_outbox(office, batch)
        return append(office, *arguments, **options)

    delivery_log.append = wrong


def forget_to_sync_copies() -> None:
    """Sync no bytes of what is written new; names and the log are synced as ever."""
    write_new = durable.write_new

    def wrong(path: str, data: bytes, *, sync: bool, mode: int = 0o666) -> int:
        return write_new(path, data, sync=False, mode=mode)

    durable.write_new = wrong
