"""`registry new`, and the schemas that `init` writes for editors."""

import json
import re

import pytest
from support import Box


def test_a_first_declaration_works_at_once(box: Box) -> None:
    """It passes the strictest check, and once it is merged its agents can write to each other."""
    made = box.run("registry", "new", "council")
    assert made.returncode == 0 and made.stderr == ""
    assert str(box.root / "registry.d" / "council.yml") in made.stdout
    assert box.run("registry", "check", "--strict").returncode == 0
    box.merge()
    sent = box.run(
        *("send", "--from", "desk@council.internal", "--to", "worker@council.internal", "--type", "council.job"),
        *("--subject", "a", "--body", "b", "--now"),
    )
    assert sent.returncode == 0, sent.stderr
    assert len(box.unread("council.worker")) == 1


def test_every_optional_line_works(box: Box) -> None:
    """With the `# ` before each optional key removed it passes the strictest check as well."""
    text = box.run("registry", "new", "council", "--stdout").stdout
    in_use = re.sub(r"^( +)# (?=[a-z]+: )", r"\1", text, flags=re.M).replace("user: ann", "user: root")
    assert in_use != text
    box.declare("council", in_use)
    done = box.run("registry", "check", "--strict")
    assert done.returncode == 0, done.stdout + done.stderr


def test_what_is_there_is_never_replaced(box: Box) -> None:
    """A declaration, or anything else of that name, stays as it is; --stdout writes nothing."""
    mine = box.declare("council", "agents: []\n")
    before = box.snapshot()
    refused = box.run("registry", "new", "council")
    assert refused.returncode == 65 and "is there already" in refused.stderr
    assert box.run("registry", "new", "council", "--stdout").returncode == 0
    assert box.snapshot() == before
    mine.unlink()
    mine.symlink_to("nowhere.yml")
    assert box.run("registry", "new", "council").returncode == 65
    assert mine.is_symlink() and box.tmp_litter() == []


@pytest.mark.parametrize("name", ["../x", "a/b", "a.b", "", "é", "x" * 61, "-a"])
def test_names_that_cannot_be(box: Box, name: str) -> None:
    """What cannot be a plugin's name, or would lead elsewhere, is refused, and nothing is written."""
    before = box.snapshot()
    assert box.run("registry", "new", "--", name).returncode == 65
    assert box.snapshot() == before and box.outside() == []


def test_without_an_office(box: Box) -> None:
    """Where there is no office there is an error; printing needs none."""
    (box.root / "outbox").rmdir()
    assert box.run("registry", "new", "council").returncode == 78
    assert box.run("registry", "new", "council", "--stdout").returncode == 0


def test_init_writes_the_schemas_and_brings_them_up_to_date(box: Box) -> None:
    """The lines for editors lead to the schemas; an old one is replaced, and then there is nothing to do."""
    folder = box.root / "schemas"
    named = {}
    settings = (box.root / "post-office.yml").read_text()
    for text, base in (
        (settings, box.root),
        (box.run("registry", "new", "a", "--stdout").stdout, box.root / "registry.d"),
    ):
        match = re.match(r"# yaml-language-server: \$schema=(\S+)\n", text)
        assert match is not None
        named[(base / match[1]).resolve().name] = json.loads((base / match[1]).read_text())
    assert named["post-office.schema.json"]["properties"] and named["declaration.schema.json"]["$defs"]
    old = folder / "declaration.schema.json"
    printed = box.run("registry", "schema").stdout
    assert old.read_text() == printed
    old.write_text("{}")
    assert str(old) in box.run("init").stdout
    assert old.read_text() == printed
    assert "nothing to do" in box.run("init").stdout
