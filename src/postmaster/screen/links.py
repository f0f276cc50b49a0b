"""The addresses of the pages. They can be shared: nothing of a view is kept anywhere else. Pure."""

from urllib.parse import quote, urlencode


def _link(path: str, **query: str | int | None) -> str:
    asked = {key: value for key, value in query.items() if value not in (None, "", 1)}
    return path + (f"?{urlencode(asked)}" if asked else "")


def box(agent: str, q: str = "", page: int = 1) -> str:
    """Return the address of a mailbox."""
    return _link(f"/box/{quote(agent, safe='')}", q=q, page=page)


def message(agent: str, name: str, q: str = "", page: int = 1, form: str = "") -> str:
    """Return the address of a message in a mailbox. `form` is ``text`` for its body as written."""
    return _link(f"/box/{quote(agent, safe='')}/{quote(name, safe='')}", q=q, page=page, form=form)


def outbox(name: str = "") -> str:
    """Return the address of the outbox, or of a letter in it (in a drop folder: ``folder/name``)."""
    return f"/outbox/{quote(name)}" if name else "/outbox"


def dead(name: str = "", reason: str = "", q: str = "", page: int = 1, form: str = "") -> str:
    """Return the address of the dead letters, or of one of them."""
    path = f"/dead/{quote(name, safe='')}" if name else "/dead"
    return _link(path, reason=reason, q=q, page=page, form=form)


def flows(q: str = "", page: int = 1) -> str:
    """Return the address of the flows."""
    return _link("/flows", q=q, page=page)


def flow(name: str, q: str = "", page: int = 1, part: int = 1) -> str:
    """Return the address of one flow; `part` is the page of its messages."""
    return _link("/flow", name=name, q=q, page=page, part=part)


def timeline(name: str) -> str:
    """Return the address of a flow's timeline as data."""
    return _link("/flow.json", name=name)
