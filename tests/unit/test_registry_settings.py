"""post-office.yml, which is read with the same care as a declaration."""

from dataclasses import fields

import pytest
import yaml

from postmaster.errors import ConfigurationFault
from postmaster.settings import TEMPLATE, Settings, parse


def test_every_setting_is_read() -> None:
    raw = b"name: lab-2\nmax_message_bytes: 512KiB\nsettle_seconds: 5\nexpire_after: 12h\nx-note: {any: thing}\n"
    assert parse(raw, "p.yml") == Settings("lab-2", 512 * 1024, 5, 12 * 3600)


@pytest.mark.parametrize(
    ("text", "value"), [("10MiB", 10 << 20), ("10 MB", 10**7), ("1gib", 1 << 30), ("4096", 4096), ("7b", 7)]
)
def test_sizes(text: str, value: int) -> None:
    assert parse(f"max_message_bytes: {text}".encode(), "p.yml").max_message_bytes == value


@pytest.mark.parametrize(("text", "value"), [("5d", 432000), ("30m", 1800), ("60s", 60), ("90", 90)])
def test_times(text: str, value: int) -> None:
    assert parse(f"expire_after: {text}".encode(), "p.yml").expire_after_seconds == value


@pytest.mark.parametrize("raw", [b"", b"# nothing\n", b"x-a: b\n", TEMPLATE.encode()])
def test_defaults(raw: bytes) -> None:
    assert parse(raw, "p.yml") == Settings()


def test_the_template_shows_every_setting_with_its_default() -> None:
    shown = "\n".join(
        line[2:]
        for line in TEMPLATE.splitlines()
        if line.startswith("# ") and ": " in line and line.split(": ")[0][2:].isidentifier()
    )
    assert parse(shown.encode(), "p.yml") == Settings()
    assert len(yaml.safe_load(shown)) == len(fields(Settings))


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ("expire_after_seconds: 5", "p.yml:1:1: unknown key expire_after_seconds, did you mean expire_after?"),
        ("zzz: 5", "p.yml:1:1: unknown key zzz; known here: name, max_message_bytes, settle_seconds, expire_after"),
        ("name: a b", "p.yml:1:7: `name` ('a b') must be letters and digits"),
        ("max_message_bytes: ten", "p.yml:1:20: `max_message_bytes` (ten) must be a number of bytes, such as"),
        ("max_message_bytes: 0", "must be from 1 to 1073741824, and is 0"),
        ("max_message_bytes: 5d", "must be a number of bytes"),
        ("settle_seconds: -1", "must be a number of seconds"),
        ("expire_after: 0", "must be from 1 to"),
        ("expire_after: 5 days", "must be a time, such as `expire_after: 5d`"),
        ("expire_after: 99999999999999999999", "must be a time"),
        ("name: [a]", "`name` must be text or a number"),
        ("- a", "p.yml:1:1: must be `key: value` lines"),
        ("name: a\nname: b", "p.yml:2:1: the key name stands twice"),
        ("name: [", "p.yml:"),
    ],
)
def test_what_is_refused(raw: str, message: str) -> None:
    """With file, line and a right form."""
    with pytest.raises(ConfigurationFault) as caught:
        parse(raw.encode(), "p.yml")
    assert message in str(caught.value)


def test_all_problems_at_once() -> None:
    with pytest.raises(ConfigurationFault) as caught:
        parse(b"nam: a\nexpire_after: x\nsettle_seconds: y\n", "p.yml")
    lines = str(caught.value).splitlines()
    assert [line.split(": ")[0] for line in lines] == ["p.yml", "p.yml:1:1", "p.yml:2:15", "p.yml:3:17"]
