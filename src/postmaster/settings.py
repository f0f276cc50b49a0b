"""post-office.yml: reading it, and the commented one that `init` writes."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from postmaster import address, times
from postmaster.errors import ConfigurationFault
from postmaster.office import Office
from postmaster.printable import quoted
from postmaster.recipients import Relay
from postmaster.registry import source
from postmaster.registry.source import Document, Problem
from postmaster.remotes import Remote, Remotes


@dataclass(frozen=True, slots=True)
class Settings:
    """What post-office.yml may set; every value has a default. Sizes in bytes, times in seconds."""

    name: str = "post-office"
    max_message_bytes: int = 10 * 1024 * 1024
    settle_seconds: int = 60
    expire_after_seconds: int = 5 * 24 * 3600
    require_owner: bool = False
    drop_folders: bool = False
    turn_retry_seconds: int = 10
    operator: str = ""
    remotes: tuple[Remote, ...] = ()

    def relay(self, office: Office) -> Relay | None:
        """Return who is elsewhere, if this office has remotes."""
        return Relay(Remotes(self.remotes), office.outgoing) if self.remotes else None


def load_settings(office: Office) -> Settings:
    """Read post-office.yml; all defaults if there is none.

    Raises:
        ConfigurationFault: it cannot be read, has an unknown key or a value out of range; names file and line.
    """
    try:
        raw, _ = source.read_file(office.settings_file, _MAX_BYTES)
    except FileNotFoundError:
        return Settings()
    except OSError as fault:
        raise ConfigurationFault(f"{office.settings_file}: cannot be read: {fault.strerror}") from fault
    except ValueError as fault:
        raise ConfigurationFault(f"{office.settings_file}: {fault}") from fault
    if not any(line.strip() and not line.lstrip().startswith(b"#") for line in raw.splitlines()):
        return Settings()  # all comments, as `init` writes it: spares the YAML parser
    return parse(raw, office.settings_file)


_MAX_BYTES: Final = 1024 * 1024  # of post-office.yml

_NUMBER: Final = re.compile(r"([0-9]{1,15}) ?([A-Za-z]*)", re.ASCII)
SIZES: Final = {
    "": 1,
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
}

_MAX_MESSAGE_BYTES: Final = 2**30
_MAX_SETTLE_SECONDS: Final = 86400
_MAX_EXPIRE_SECONDS: Final = 3650 * 86400
_MAX_TURN_RETRY_SECONDS: Final = 86400


def _name(text: str) -> str:
    if not address.is_name(text):
        raise ValueError("must be letters and digits, with . _ - inside, such as `name: post-office`")
    return text


def _amount(text: str, units: dict[str, int], low: int, high: int, form: str) -> int:
    match = _NUMBER.fullmatch(text)
    factor = units.get(match[2].casefold()) if match else None
    if match is None or factor is None:
        raise ValueError(f"must be {form}")
    amount = int(match[1]) * factor
    if not low <= amount <= high:
        raise ValueError(f"must be from {low} to {high}, and is {amount}")
    return amount


def _max_message_bytes(text: str) -> int:
    form = "a number of bytes, such as `max_message_bytes: 10MiB` (also 512KiB, 10MB, 10485760)"
    return _amount(text, SIZES, 1, _MAX_MESSAGE_BYTES, form)


def _settle_seconds(text: str) -> int:
    form = "a number of seconds, such as `settle_seconds: 60`"
    return _amount(text, times.UNITS, 0, _MAX_SETTLE_SECONDS, form)


def _expire_after(text: str) -> int:
    form = "a time, such as `expire_after: 5d` (also 12h, 30m, 60s, or seconds)"
    return _amount(text, times.UNITS, 1, _MAX_EXPIRE_SECONDS, form)


def _turn_retry_after(text: str) -> int:
    form = "a time, such as `turn_retry_after: 10s` (also 5m, 1h, or seconds)"
    return _amount(text, times.UNITS, 0, _MAX_TURN_RETRY_SECONDS, form)


def _switch(key: str) -> Callable[[str], bool]:
    def read(text: str) -> bool:
        if text.casefold() not in SWITCHES:
            raise ValueError(f"must be true or false, such as `{key}: true`")
        return SWITCHES[text.casefold()]

    return read


SWITCHES: Final = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}


def _operator(text: str) -> str:
    if text and not address.is_mailbox(text):
        raise ValueError("must be an address, such as `operator: operator@council.internal`")
    return text


URL_PATTERN: Final = r"(?:file|ssh|git|https)://[!-~]+|/[!-~]+|[A-Za-z0-9][A-Za-z0-9._@-]*:[!-~]+"
_URL: Final = re.compile(URL_PATTERN)
_DOMAIN_PROBE: Final = "x@"


def _remote(name: str, fields: Any) -> Remote:
    """Return one entry of `remotes`. Raises ValueError."""
    if not address.is_name(name):
        raise ValueError("must be called by a name of letters, digits, and . _ - inside")
    if not isinstance(fields, dict) or not isinstance(fields.get("url"), str):
        raise ValueError("must be a mapping with `url` and `domains`")  # noqa: TRY004
    known = ("url", "domains", "max_messages", "max_bytes", "sign", "verify")
    for key in fields:
        if key not in known and not key.startswith("x-"):
            raise ValueError(f"has the unknown key {quoted(key)}; known here: {', '.join(known)}")
    url, domains = fields["url"], fields.get("domains")
    if not _URL.fullmatch(url) or "::" in url:
        raise ValueError("`url` must be a path (/srv/mail.git), file://, ssh://, git://, https://, or host:path")
    if not isinstance(domains, list) or not domains or not all(_is_domain(one) for one in domains):
        raise ValueError("`domains` must list the domains whose mail it brings, such as [laptop.internal]")
    limits = {key: fields[key] for key in ("max_messages", "max_bytes") if key in fields}
    if not all(isinstance(text, str) for text in limits.values()):
        raise ValueError("`max_messages` and `max_bytes` must be numbers")
    keys = {key: fields[key] for key in ("sign", "verify") if key in fields}
    for key, path in keys.items():
        if not isinstance(path, str) or not path.isprintable() or not path:
            raise ValueError(f"`{key}` must be the path of a file")
    form = "a whole number"
    return Remote(
        name,
        url,
        tuple(dict.fromkeys(address.fold(one) for one in domains)),
        _amount(limits.get("max_messages", "10000"), {"": 1}, 1, 10**7, f"{form} (`max_messages`)"),
        _amount(limits.get("max_bytes", "64MiB"), SIZES, 1, 2**40, f"{form} of bytes (`max_bytes`)"),
        **keys,
    )


def _is_domain(text: Any) -> bool:
    return isinstance(text, str) and address.is_mailbox(_DOMAIN_PROBE + text)


def _remotes(document: Document, data: Any) -> tuple[tuple[Remote, ...], list[Problem]]:
    """Return the remotes, and what is wrong with them."""
    if not isinstance(data, dict):
        why = "`remotes` must be a mapping of names, such as `laptop: {url: ..., domains: [...]}`"
        return (), [document.problem(("remotes",), why)]
    found, problems = [], []
    owner: dict[str, str] = {}
    for name, fields in data.items():
        if name.startswith("x-"):
            continue
        try:
            remote = _remote(name, fields)
        except ValueError as fault:
            problems.append(document.problem(("remotes", name), f"remote {quoted(name)} {fault}"))
            continue
        for domain in remote.domains:
            if owner.setdefault(domain, name) != name:
                why = f"the domain {domain} belongs to two remotes, {owner[domain]} and {name}"
                problems.append(document.problem(("remotes", name), why))
        found.append(remote)
    return tuple(found), problems


# Key in the file -> (field of Settings, how its text is read).
_KEYS: Final[dict[str, tuple[str, Callable[[str], str | int]]]] = {
    "name": ("name", _name),
    "max_message_bytes": ("max_message_bytes", _max_message_bytes),
    "settle_seconds": ("settle_seconds", _settle_seconds),
    "expire_after": ("expire_after_seconds", _expire_after),
    "require_owner": ("require_owner", _switch("require_owner")),
    "drop_folders": ("drop_folders", _switch("drop_folders")),
    "turn_retry_after": ("turn_retry_seconds", _turn_retry_after),
    "operator": ("operator", _operator),
}

TEMPLATE: Final = """\
# yaml-language-server: $schema=schemas/post-office.schema.json
#
# The settings of this post office. Every one has a default, which is what is shown;
# remove the `# ` before a line to change it. Keys of your own begin with x-.

# What this office is called where offices exchange mail: letters, digits, and . _ - inside.
# name: post-office

# The largest message that is carried, header and body (bytes, or 512KiB, 10MB, ...).
# max_message_bytes: 10MiB

# A file that cannot be read as mail is left alone until it has not changed for this many seconds.
# settle_seconds: 60

# Mail that cannot be delivered for this long goes to dead-letter/ (5d, 12h, 30m, 60s, or seconds).
# expire_after: 5d

# Whether every sender must be an agent whose declaration names its account (`user`), and own its letters.
# require_owner: false

# Whether a directory of the outbox that is called as an agent's id takes that agent's letters, and no others.
# drop_folders: false

# How long a message waits after a turn that failed; after each further one twice as long, up to an hour.
# turn_retry_after: 10s

# Who is sent mail by `postmaster carry` when a remote looks wrong: an address, which must accept `carrier.problem`.
# operator: ""

# The offices that `postmaster carry` exchanges mail with: NAME: {url: /srv/mail.git, domains: [laptop.internal]}.
# remotes: {}
"""


def parse(raw: bytes, path: str) -> Settings:
    """Read the bytes of post-office.yml.

    Args:
        path: what to call the file.

    Raises:
        ConfigurationFault: names every problem with its line.
    """
    document, problems = source.parse(raw, path)
    values: dict[str, Any] = {}
    if not problems:
        values, problems = _read(document)
    if len(problems) == 1:
        raise source.fault(str(problems[0]), ())
    if problems:
        raise source.fault(f"{path}: {len(problems)} problems:", problems)
    return Settings(**values)


def _read(document: Document) -> tuple[dict[str, Any], list[Problem]]:
    data = document.data
    if data is None or data == "":
        return {}, []
    if not isinstance(data, dict):
        return {}, [document.problem((), "must be `key: value` lines, such as `settle_seconds: 60`")]
    values: dict[str, Any] = {}
    problems = []
    for key, text in data.items():
        if key.startswith("x-"):
            continue
        if key == "remotes":
            values[key], found = _remotes(document, text)
            problems += found
            continue
        if key not in _KEYS:
            near = address.nearest(key, [*_KEYS, "remotes"])
            hint = f", did you mean {near}?" if near else f"; known here: {', '.join([*_KEYS, 'remotes'])}"
            problems.append(document.problem((key,), f"unknown key {quoted(key)}{hint}", at_key=True))
            continue
        name, read = _KEYS[key]
        if not isinstance(text, str):
            problems.append(document.problem((key,), f"`{key}` must be text or a number, not a list or mapping"))
            continue
        try:
            values[name] = read(text)
        except ValueError as fault:
            problems.append(document.problem((key,), f"`{key}` ({quoted(text)}) {fault}"))
    return values, problems
