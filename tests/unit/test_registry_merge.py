"""The merge: all or nothing, stable, and loud about mail that is left behind."""

import itertools
import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from postmaster import durable, maildir
from postmaster.errors import CannotCreate
from postmaster.office import Office
from postmaster.registry import compiled, database, merge, source, stamp
from postmaster.registry.merge import Move


def make(root: Path) -> Office:
    for name in ("registry.d", "outbox"):
        (root / name).mkdir(parents=True)
    return Office(str(root))


@pytest.fixture
def office(tmp_path: Path) -> Office:
    return make(tmp_path / "office")


def declare(office: Office, name: str, *agents: str) -> None:
    Path(office.declarations, name).write_text("".join(f"- {{{agent}}}\n" for agent in agents) or "[]\n")


def registry(office: Office) -> Path:
    return Path(office.registry)


A = "id: a, address: a@x"
B = "id: b, address: b@x"


def test_merge_writes_registry_inboxes_and_lookup(office: Office) -> None:
    declare(office, "two.yml", B)
    declare(office, "one.yml", A)
    report = merge.merge(office)
    assert (report.added, report.problems, report.warnings) == (("a", "b"), (), ())
    assert report.made == ("inboxes/a", "inboxes/b")
    assert not report.unchanged
    text = registry(office).read_text()
    assert text.startswith("# written by `postmaster registry merge`; edit registry.d/ instead\nagents:\n  - id: a\n")
    assert "declared_in: registry.d/one.yml" in text
    assert "inbox: inboxes/b" in text
    for folder in maildir.FOLDERS:
        assert Path(office.inboxes, "a", folder).is_dir()
    assert stamp.is_current(office)
    assert sorted(os.listdir(office.root)) == [".postmaster", "agent-registry.yml", "inboxes", "outbox", "registry.d"]


def test_nothing_changed_is_the_same_file(office: Office) -> None:
    """Not rewritten: same inode and time, so that the compiled lookup stays current."""
    declare(office, "one.yml", A)
    merge.merge(office)
    before = os.stat(office.registry)
    report = merge.merge(office)
    after = os.stat(office.registry)
    assert report.unchanged
    assert report.agents == 1
    assert (before.st_ino, before.st_mtime_ns, before.st_ctime_ns) == (
        after.st_ino,
        after.st_mtime_ns,
        after.st_ctime_ns,
    )


def test_an_unchanged_merge_makes_a_lost_inbox_again(office: Office) -> None:
    declare(office, "one.yml", A)
    merge.merge(office)
    shutil.rmtree(Path(office.inboxes, "a", "tmp"))
    assert merge.merge(office).made == ("inboxes/a",)
    assert merge.merge(office).made == ()


def test_problems_keep_the_old_registry(office: Office) -> None:
    declare(office, "one.yml", A)
    merge.merge(office)
    before = registry(office).read_bytes()
    declare(office, "two.yml", "id: c, address: c@x", "id: A, address: d@x")
    report = merge.merge(office)
    assert len(report.problems) == 1
    assert report.added == ()
    assert registry(office).read_bytes() == before
    assert not Path(office.inboxes, "c").exists()


def test_what_changed_is_told(office: Office) -> None:
    declare(office, "one.yml", A, B, "id: c, address: c@x", "id: d, address: d@x")
    merge.merge(office)
    declare(
        office,
        "one.yml",
        "id: a, address: a2@x",
        "id: b, address: b@x, inbox: post/b",
        "id: c, address: c@x, roles: [r]",
    )
    declare(office, "two.yml", "id: e, address: e@x")
    dry = merge.merge(office, dry_run=True)
    report = merge.merge(office)
    for seen in (dry, report):
        assert seen.added == ("e",)
        assert seen.removed == ("d",)
        assert seen.changed == ("c",)
        assert seen.moved == (Move("a", "address", "a@x", "a2@x"), Move("b", "inbox", "inboxes/b", "post/b"))
    assert sorted(report.made) == ["inboxes/e", "post/b"]


def test_a_dry_run_touches_nothing(office: Office) -> None:
    declare(office, "one.yml", A)
    assert merge.merge(office, dry_run=True).added == ("a",)
    assert sorted(os.listdir(office.root)) == ["outbox", "registry.d"]


def test_unread_mail_that_is_left_behind_is_said(office: Office) -> None:
    """For a removed agent, and for one whose inbox moves; not where nothing is unread."""
    declare(office, "one.yml", A, B, "id: c, address: c@x")
    merge.merge(office)
    Path(office.inboxes, "a", "unread", "m1.md").write_text("x")
    Path(office.inboxes, "a", "unread", "m2.md").write_text("x")
    Path(office.inboxes, "b", "unread", "m1.md").write_text("x")
    Path(office.inboxes, "c", "read", "m1.md").write_text("x")
    declare(office, "one.yml", "id: b, address: b@x, inbox: post/b")
    report = merge.merge(office)
    assert report.warnings == (
        "UNREAD MAIL: a is removed and leaves 2 unread messages in inboxes/a/unread: "
        "the mail is kept, but nobody reads there now",
        "UNREAD MAIL: b has moved to post/b and leaves 1 unread message in inboxes/b/unread: "
        "the mail is kept, but nobody reads there now",
    )
    assert Path(office.inboxes, "a", "unread", "m1.md").exists()


def test_a_rename_that_keeps_the_inbox_names_the_heir(office: Office) -> None:
    declare(office, "one.yml", A)
    merge.merge(office)
    Path(office.inboxes, "a", "unread", "m1.md").write_text("x")
    declare(office, "one.yml", "id: z, address: a@x, inbox: inboxes/a")
    (warning,) = merge.merge(office).warnings
    assert warning.endswith("1 unread message in inboxes/a/unread: the inbox is now that of z")


def test_an_inbox_written_another_way_is_not_left(office: Office) -> None:
    declare(office, "one.yml", A)
    merge.merge(office)
    Path(office.inboxes, "a", "unread", "m1.md").write_text("x")
    declare(office, "one.yml", f"id: a, address: a@x, inbox: {office.inboxes}/a")
    assert merge.merge(office).warnings == ()


def test_an_empty_directory_gives_an_empty_registry(office: Office) -> None:
    report = merge.merge(office)
    assert report.warnings == ("registry.d/ holds no declarations: the registry is empty",)
    with compiled.open_view(office) as view:
        assert len(view) == 0


def test_a_damaged_old_registry_is_replaced_with_a_warning(office: Office) -> None:
    declare(office, "one.yml", A)
    registry(office).write_text("agents: [")
    report = merge.merge(office)
    assert "what the old registry said is not known" in report.warnings[0]
    assert report.added == ("a",)


def test_an_inbox_that_cannot_be_made_fails_alone(office: Office) -> None:
    Path(office.root, "file").write_text("")
    declare(office, "one.yml", A, "id: b, address: b@x, inbox: file/b")
    report = merge.merge(office)
    assert len(report.failures) == 1
    assert report.failures[0].startswith("b: its inbox file/b cannot be made: Not a directory")
    assert report.made == ("inboxes/a",)
    with compiled.open_view(office) as view:
        assert len(view) == 2


def test_a_registry_that_cannot_be_written(office: Office) -> None:
    declare(office, "one.yml", A)
    registry(office).mkdir()
    with pytest.raises(CannotCreate, match=r"agent-registry.yml: cannot be written"):
        merge.merge(office)
    assert not [name for name in os.listdir(office.root) if name.endswith(".tmp")]


@pytest.mark.parametrize("call", ["os.rename", "os.fsync", "os.write"])
def test_a_crash_keeps_the_old_registry_and_the_next_merge_mends(
    office: Office, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """Killed at any step before the rename, the old registry stands; nothing is left behind by the next merge."""
    declare(office, "one.yml", A)
    merge.merge(office)
    before = registry(office).read_bytes()
    declare(office, "one.yml", A, B)
    Path(office.inboxes, "b").mkdir()
    for folder in maildir.FOLDERS:
        Path(office.inboxes, "b", folder).mkdir()

    def killed(*_: object, **__: object) -> None:
        raise SystemExit

    with monkeypatch.context() as patched, pytest.raises(SystemExit):
        patched.setattr(call, killed)
        patched.setattr(durable, "remove", lambda path: None)  # a killed process removes nothing
        merge.merge(office)
    assert registry(office).read_bytes() == before
    assert merge.merge(office).added == ("b",)
    assert not [name for name in os.listdir(office.root) if name.endswith(".tmp")]
    assert stamp.is_current(office)


def test_merges_at_once_leave_one_whole_registry(office: Office) -> None:
    declare(office, "one.yml", *(f"id: a{n}, address: a{n}@x" for n in range(30)))
    reports: list[merge.MergeReport] = []
    threads = [threading.Thread(target=lambda: reports.append(merge.merge(office))) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(not report.unchanged for report in reports) == 1
    with compiled.open_view(office) as view:
        assert len(view) == 30


NAMES = st.lists(st.from_regex(r"[a-d]{1,3}", fullmatch=True), min_size=1, max_size=6, unique=True)


def declarations_of(names: list[str]) -> Iterator[str]:
    for number, name in enumerate(names):
        roles = ["odd", "Even"][number % 2 :]
        accepts = f"[{{type: t.{name}, accepts_from: ['*@x', 'role:odd']}}, u.*]"
        yield (
            f"id: {name}, address: {name}@x, aliases: [{name}2@y], roles: {roles}, accepts: {accepts}, "
            f"accepts_from: {names[0]}@x, emits: [{{type: u.v, to: {names[-1]}@x}}], x-n: '0{number}'"
        )


@settings(max_examples=20, deadline=None)
@given(names=NAMES, order=st.randoms())
def test_merging_is_idempotent_and_order_of_files_is_irrelevant(
    tmp_path_factory: pytest.TempPathFactory, names: list[str], order: object
) -> None:
    """One file an agent, in any order of names: the same agents; merged again: the same bytes."""
    texts = list(declarations_of(names))
    results = []
    for permutation in itertools.islice(itertools.permutations(texts), 3):
        office = make(tmp_path_factory.mktemp("office") / "office")
        for number, text in enumerate(permutation):
            declare(office, f"{number}.yml", text)
        merge.merge(office)
        raw = registry(office).read_bytes()
        assert merge.merge(office).unchanged
        assert registry(office).read_bytes() == raw
        parsed = source.parse(raw, "f")[0].data["agents"]
        for entry in parsed:
            del entry["declared_in"], entry["plugin"]
        results.append(parsed)
        with compiled.open_view(office) as view:
            assert [agent.id for agent in view.all_agents()] == sorted(names)
    assert all(result == results[0] for result in results)


def test_a_faulty_database_does_not_stop_a_merge(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    """The compiled lookup is a convenience: the next run makes it."""
    declare(office, "one.yml", A)

    def fails(path: str, entries: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(database, "write", fails)
    assert merge.merge(office).added == ("a",)
    assert not stamp.is_current(office)
