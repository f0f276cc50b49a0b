"""The claims on disk: what a fault in the middle leaves, and who brings it to its end."""

import json
import os
from pathlib import Path

import pytest

from postmaster import delivery_log, setup
from postmaster.directory import open_view, registration, store
from postmaster.errors import CannotCreate, DiskFault
from postmaster.office import Office
from postmaster.registry import merge
from postmaster.registry.compiled import CompiledRegistry

_ENTRY = "- {id: lab.one, address: one@lab.internal, instances: many, accepts: [x], accepts_from: ['*']}\n"


@pytest.fixture
def office(tmp_path: Path) -> Office:
    """An office with one class."""
    made = Office(str(tmp_path / "office"))
    setup.make_office(made)
    Path(made.declarations, "lab.yml").write_text(_ENTRY)
    assert not merge.merge(made).problems
    return made


def told(office: Office) -> list[str]:
    """Return what the log says was done."""
    return [f"{record['action']} {record['agent']}" for record in delivery_log.records(office)]


def fail(*_: object, **__: object) -> None:
    """A disk that is full."""
    raise DiskFault("no space left")


@pytest.mark.parametrize("step", ["registered", "archived"])
def test_a_run_that_meets_mail_logs_what_was_not_logged(
    office: Office, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """A view that may write ends what was cut off after the rename; one that may not leaves it; the line comes once."""
    if step == "archived":
        registration.register(office, "lab.one", "alice", ())
    before = told(office)
    with monkeypatch.context() as patch:
        patch.setattr(delivery_log, "append", fail)
        with pytest.raises(DiskFault, match="is " + step):
            if step == "archived":
                registration.archive(office, "alice")
            else:
                registration.register(office, "lab.one", "alice", ())
    with open_view(office, write=False):
        assert told(office) == before and store.is_unfinished(office)
    for _ in range(2):
        with open_view(office):
            assert told(office) == [*before, f"{step} lab.one+alice"]
    assert not store.is_unfinished(office)
    assert os.path.exists(office.live) == (step == "registered")


def test_nobody_alive_is_the_registry_itself(office: Office) -> None:
    """Without live instances the core's own view is given; with one it is asked through another."""
    with open_view(office) as view:
        assert isinstance(view, CompiledRegistry)
    registration.register(office, "lab.one", "alice", ())
    with open_view(office) as view:
        assert not isinstance(view, CompiledRegistry)
        assert [agent.id for agent in view.all_agents()] == ["lab.one", "lab.one+alice"]


def test_a_fault_before_the_claim_leaves_nothing(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    """The name stays free, the directory clean, the log silent."""

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("postmaster.durable.rename_new", full)
        with pytest.raises(CannotCreate):
            registration.register(office, "lab.one", "alice", ())
    assert os.listdir(office.directory) == [] and told(office) == []
    assert registration.register(office, "lab.one", "alice", ()).id == "lab.one+alice"


def test_who_may_not_lock_is_not_stopped(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sender of another account sends while somebody registers."""
    registration.register(office, "lab.one", "alice", ())
    Path(office.pending).write_text("{}")
    os.mkdir(office.directory_lock + ".d")
    monkeypatch.setattr(office, "directory_lock", office.directory_lock + ".d")
    with open_view(office) as view:
        assert view.find("alice") is not None


def test_an_unreadable_disk_makes_nobody_unknown(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    """EIO is a fault; a file that is closed to us, a link or a directory is no claim."""
    registration.register(office, "lab.one", "alice", ())

    def broken(path: str) -> int:
        raise OSError(5, "Input/output error", path)

    with open_view(office) as view, monkeypatch.context() as patch:
        patch.setattr("postmaster.durable.open_regular", broken)
        with pytest.raises(DiskFault):
            view.find("alice@lab.internal")
    path = store.live_path(office, "alice")
    moved = path + ".away"
    os.rename(path, moved)
    os.symlink(moved, path)
    assert store.holder(office, "alice") is None and store.damaged(office) == [path]


def test_a_damaged_pending_is_told_of(office: Office) -> None:
    """It is not ours to guess what it meant."""
    registration.register(office, "lab.one", "alice", ())
    Path(office.pending).write_text(json.dumps({"id": "x"}))
    with pytest.raises(DiskFault, match="damaged"):
        registration.register(office, "lab.one", "bob", ())
