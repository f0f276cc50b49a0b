"""`postmaster doctor`: every mistake is made, found with its fix, and gone once the fix was done."""

import os
import pwd
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from clinic import Clinic, booted
from support import HOUR, Box, letter, mounted, obeying_permissions, permissions_count

ROOT = os.geteuid() == 0
PAGE = Path(__file__).parents[2] / "docs" / "doctor.md"
Mistake = Callable[[Clinic], None]
MISTAKES: list[tuple[str, str, Mistake]] = []


@pytest.fixture(scope="session")
def clinic_world(lab_world: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """An office that has routed, and its crontab line."""
    world = tmp_path_factory.mktemp("clinic") / "world"
    shutil.copytree(lab_world, world, symlinks=True)
    box = Box(world)
    box.route()
    return world, box.run("cron").stdout.replace(str(box.root), "ROOT")


@pytest.fixture
def clinic(clinic_world: tuple[Path, str], tmp_path: Path) -> Iterator[Clinic]:
    """An office that is well."""
    shutil.copytree(clinic_world[0], tmp_path / "world", symlinks=True)
    made = Clinic(Box(tmp_path / "world"), clinic_world[1])
    yield made
    made.close()


def mistake(name: str, where: str = "") -> Callable[[Mistake], Mistake]:
    """Register a mistake: the check that finds it, and a part of where it is found. The commands mend it."""

    def register(make: Mistake) -> Mistake:
        MISTAKES.append((name, where, make))
        return make

    return register


def test_a_healthy_office_has_no_findings(clinic: Clinic) -> None:
    """Nothing is found where nothing is wrong, with mail in every place."""
    clinic.box.drop("m.md", letter())
    clinic.box.drop("nobody.md", letter(to="nobody@lab.internal"))
    clinic.box.route()
    clinic.box.drop("waits.md", letter(body="waits\n"), age_seconds=60)
    assert clinic.findings() == []
    done = clinic.run("doctor")
    assert re.fullmatch(rf"office {re.escape(str(clinic.root))}: \d+ checks, nothing found\n", done.stdout)


# -- mistakes that the commands mend -------------------------------------------------------------------------------


@mistake("no-office")
def _(clinic: Clinic) -> None:
    (clinic.root / "outbox").rmdir()


@mistake("part-missing", "dead-letter")
def _(clinic: Clinic) -> None:
    (clinic.root / "dead-letter").rmdir()


@mistake("office-open", "registry.d")
def _(clinic: Clinic) -> None:
    (clinic.root / "registry.d").chmod(0o1777)


@mistake("office-open", "agent-registry.yml")
def _(clinic: Clinic) -> None:
    (clinic.root / "agent-registry.yml").chmod(0o666)


@mistake("outbox-open", "outbox")
def _(clinic: Clinic) -> None:
    (clinic.root / "outbox").chmod(0o777)


@mistake("outbox-closed", "outbox")
def _(clinic: Clinic) -> None:
    closed(clinic, clinic.root / "outbox", 0o555)


@mistake("part-closed", "dead-letter")
def _(clinic: Clinic) -> None:
    closed(clinic, clinic.root / "dead-letter", 0o555)


@mistake("registry-missing")
def _(clinic: Clinic) -> None:
    (clinic.root / "agent-registry.yml").unlink()


@mistake("registry-invalid")
def _(clinic: Clinic) -> None:
    path = clinic.root / "agent-registry.yml"
    path.write_bytes(path.read_bytes()[:-60])


@mistake("registry-edited")
def _(clinic: Clinic) -> None:
    path = clinic.root / "agent-registry.yml"
    path.write_text(path.read_text().replace("mason@", "smith@"))


@mistake("declaration-in-folder", "registry.d/team/more.yml")
def _(clinic: Clinic) -> None:
    clinic.declare("late", "", merge=False)
    (clinic.root / "registry.d" / "team").mkdir()
    (clinic.root / "registry.d" / "more.yml").rename(clinic.root / "registry.d" / "team" / "more.yml")


@mistake("mail-in-maildir", "inboxes/lab.echo/new/1764.host")
def _(clinic: Clinic) -> None:
    (clinic.box.inbox("lab.echo") / "new").mkdir()
    (clinic.box.inbox("lab.echo") / "new" / "1764.host").write_bytes(letter())


@mistake("registry-stale")
def _(clinic: Clinic) -> None:
    clinic.declare("late", "", merge=False)


@mistake("declaration-ignored", "registry.d/more.yml.txt")
def _(clinic: Clinic) -> None:
    clinic.declare("late", "", merge=False)
    (clinic.root / "registry.d" / "more.yml").rename(clinic.root / "registry.d" / "more.yml.txt")


@mistake("inbox-missing", "inboxes/lab.echo")
def _(clinic: Clinic) -> None:
    shutil.rmtree(clinic.box.inbox("lab.echo"))


@mistake("inbox-missing", "/far")
def _(clinic: Clinic) -> None:
    shutil.rmtree(outside(clinic))


@mistake("inbox-unmounted", "/far")
def _(clinic: Clinic) -> None:
    far = outside(clinic)
    shutil.rmtree(far)
    far.mkdir()


@mistake("inbox-obstructed", "inboxes/lab.echo/unread")
def _(clinic: Clinic) -> None:
    unread = clinic.box.inbox("lab.echo") / "unread"
    unread.rename(clinic.box.world / "scratch" / "unread")
    unread.symlink_to(clinic.box.world / "scratch" / "unread")


@mistake("inbox-closed", "inboxes/lab.echo/unread")
def _(clinic: Clinic) -> None:
    closed(clinic, clinic.box.inbox("lab.echo") / "unread", 0o555)


@mistake("inbox-of-nobody", "inboxes/lab.gone")
def _(clinic: Clinic) -> None:
    shutil.copytree(clinic.box.inbox("lab.echo"), clinic.box.inbox("lab.gone"))
    (clinic.box.inbox("lab.gone") / "unread" / "m.md").write_bytes(letter())


@mistake("temporaries-left", "inboxes/lab.echo/tmp")
def _(clinic: Clinic) -> None:
    (clinic.box.inbox("lab.echo") / "tmp" / "postmaster-999999999-1").touch()


@mistake("not-run", "outbox")
def _(clinic: Clinic) -> None:
    clinic.box.drop("m.md", letter())
    lock = clinic.root / ".postmaster" / "lock"
    os.utime(lock, (time.time() - HOUR,) * 2)


@mistake("not-started", "crontab of ")
def _(clinic: Clinic) -> None:
    clinic.crontab("17 * * * * backup\n")


@mistake("cron-other-office", "crontab of ")
def _(clinic: Clinic) -> None:
    clinic.crontab(clinic.line().replace(str(clinic.root), "/srv/other"))


@mistake("cron-command-missing", "crontab of ")
def _(clinic: Clinic) -> None:
    clinic.crontab(clinic.line().replace(sys.executable, "/opt/gone/bin/python"))


@mistake("started-twice", "crontab of ")
def _(clinic: Clinic) -> None:
    other = clinic.box.world / "scratch" / "link"
    other.symlink_to(clinic.root)
    clinic.crontab(f"{clinic.line()}5 * * * * cd {other} && {clinic.folder}/postmaster --root . route\n")


@mistake("turns-not-taken", "crontab of ")
def _(clinic: Clinic) -> None:
    clinic.declare("cat", "    run: [cat]\n")


@mistake("mail-not-carried", "crontab of ")
def _(clinic: Clinic) -> None:
    remote(clinic)


@mistake("unfinished", "carrier/unfinished")
def _(clinic: Clinic) -> None:
    remote(clinic)
    clinic.crontab(clinic.run("cron", "--carry").stdout)
    (clinic.root / "carrier").mkdir()
    (clinic.root / "carrier" / "unfinished").write_text("[0, 0]")


@mistake("letter-misplaced", "letter.md")
def _(clinic: Clinic) -> None:
    (clinic.root / "letter.md").write_bytes(letter())


@mistake("letter-misplaced", "inboxes/letter.md")
def _(clinic: Clinic) -> None:
    (clinic.root / "inboxes" / "letter.md").write_bytes(letter())


@mistake("letter-misplaced", "inboxes/lab.echo/letter.md")
def _(clinic: Clinic) -> None:
    (clinic.box.inbox("lab.echo") / "letter.md").write_bytes(letter())


@mistake("letter-in-folder", "outbox/today")
def _(clinic: Clinic) -> None:
    (clinic.root / "outbox" / "today").mkdir()
    (clinic.root / "outbox" / "today" / "it's.md").write_bytes(letter())


@mistake("letter-link", "outbox/link.md")
def _(clinic: Clinic) -> None:
    (clinic.root / "outbox" / "link.md").symlink_to("/etc/passwd")


@mistake("letter-without-suffix", "outbox/letter.txt")
def _(clinic: Clinic) -> None:
    clinic.box.drop("letter.txt", letter(), age_seconds=60)


@mistake("letter-unfinished", "outbox/letter.md.part")
def _(clinic: Clinic) -> None:
    clinic.box.drop("letter.md.part", letter(), age_seconds=1.5 * HOUR)


@mistake("clock-of-files", "outbox/m.md")
def _(clinic: Clinic) -> None:
    clinic.box.drop("m.md", letter(), age_seconds=-2 * HOUR)


@mistake("clock-of-files", "inboxes/lab.builder/unread/")
def _(clinic: Clinic) -> None:
    clinic.box.drop("m.md", letter())
    clinic.box.route()
    [mail] = (clinic.box.inbox("lab.builder") / "unread").iterdir()
    os.utime(mail, (time.time() + 2 * HOUR,) * 2)


@mistake("clock-of-run", ".postmaster/lock")
def _(clinic: Clinic) -> None:
    os.utime(clinic.root / ".postmaster" / "lock", (time.time() + 2 * HOUR,) * 2)


@mistake("log-closed", "logs/delivery-log.jsonl")
def _(clinic: Clinic) -> None:
    clinic.box.drop("m.md", letter())
    clinic.box.route()
    closed(clinic, clinic.root / "logs" / "delivery-log.jsonl", 0o444)


@mistake("log-large", "logs/delivery-log.jsonl")
def _(clinic: Clinic) -> None:
    with open(clinic.root / "logs" / "delivery-log.jsonl", "ab") as stream:
        stream.truncate(300 * 2**20)  # a hole: it takes no room


@mistake("command-missing", "registry.d/more.yml")
def _(clinic: Clinic) -> None:
    path = clinic.program("tell", "#!/bin/sh\n")
    path.chmod(0o644)
    clinic.declare("told", f"    nudge: [{path}]\n")


@mistake("key-missing", "office.key")
def _(clinic: Clinic) -> None:
    needs("ssh-keygen")
    remote(clinic, f"sign: {clinic.box.world}/scratch/keys/office.key")


@mistake("key-open", "office.key")
def _(clinic: Clinic) -> None:
    needs("ssh-keygen")
    key = clinic.box.world / "scratch" / "office.key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
    key.chmod(0o644)
    remote(clinic, f"sign: {key}")


@mistake("remote-missing", "hub.git")
def _(clinic: Clinic) -> None:
    shutil.rmtree(remote(clinic))


@pytest.mark.parametrize(
    ("name", "where", "make"), MISTAKES, ids=[f"{name}-{number}" for number, (name, _, _) in enumerate(MISTAKES)]
)
def test_a_mistake_and_its_fix(clinic: Clinic, name: str, where: str, make: Mistake) -> None:
    """The mistake is found, in its place; what the doctor says mends it."""
    make(clinic)
    found = clinic.found(name)
    assert len(found) == 1, found
    assert where in found[0]["where"], found
    clinic.mend(found)
    assert clinic.found(name) == []


def closed(clinic: Clinic, path: Path, mode: int) -> None:
    """Close something, to root too."""
    if not permissions_count(clinic.box):
        pytest.skip("permission bits cannot be made to count for this user")
    path.chmod(mode)
    clinic.prefix = obeying_permissions()


def outside(clinic: Clinic) -> Path:
    """Declare an agent whose inbox is outside the office, and return that."""
    far = clinic.box.world / "scratch" / "far"
    clinic.declare("far", f"    inbox: {far}\n")
    return far


def remote(clinic: Clinic, more: str = "") -> Path:
    """Exchange mail with another office, and return its repository."""
    needs("git")
    hub = clinic.box.world / "scratch" / "hub.git"
    subprocess.run(["git", "init", "-q", "--bare", hub], check=True)
    clinic.settings(f"remotes: {{hub: {{url: {hub}, domains: [far.internal]{', ' if more else ''}{more}}}}}\n")
    return hub


def needs(program: str) -> None:
    """Skip where a program is not installed."""
    if shutil.which(program) is None:
        pytest.skip(f"{program} is not installed")


def timer(clinic: Clinic, command: str) -> Path:
    """Enable a timer of systemd for the account."""
    units = clinic.box.world / "home" / ".config" / "systemd" / "user"
    (units / "timers.target.wants").mkdir(parents=True)
    (units / "mail.timer").write_text("[Timer]\nOnCalendar=*:0/10\n")
    (units / "mail.service").write_text(f"[Service]\nExecStart={command}\n")
    (units / "timers.target.wants" / "mail.timer").symlink_to(units / "mail.timer")
    return units / "mail.timer"


# -- mistakes that only a person can mend, or that take more to be made --------------------------------------------


def test_something_in_the_place_of_a_directory(clinic: Clinic) -> None:
    """A file where logs/ should be is moved away; then the directory is missing, and is made."""
    shutil.rmtree(clinic.root / "logs")
    (clinic.root / "logs").write_text("")
    for what in ("is no directory", "is missing"):
        [one] = clinic.found("part-missing")
        assert one["what"] == what
        clinic.mend([one])
    assert clinic.findings() == []


def test_two_offices(clinic: Clinic, tmp_path: Path) -> None:
    """$POSTMASTER_ROOT, the current directory, and the default may each be another office."""
    name = "two-offices"
    other = Box(tmp_path / "other")
    other.init()
    other.drop("lost.md", letter())
    clinic.env["POSTMASTER_ROOT"] = str(other.root)
    [one] = clinic.found(name)
    assert one["where"] == "$POSTMASTER_ROOT" and str(other.root) in one["what"]
    [command] = one["commands"]
    assert command == f"export POSTMASTER_ROOT={clinic.root}"
    clinic.env["POSTMASTER_ROOT"] = shlex.split(command)[1].partition("=")[2]
    assert clinic.found(name) == []
    place = clinic.box.world / "home" / ".dna" / "post-office"
    place.parent.mkdir()
    other.root.rename(place)
    [one] = clinic.found(name)
    assert one["where"] == "the default" and str(place) in one["what"]
    (place / "outbox" / "lost.md").unlink()  # an office without mail does no harm
    assert clinic.found(name) == []
    (place / "outbox" / "lost.md").write_bytes(letter())
    clinic.prefix = ["sh", "-c", f'cd {shlex.quote(str(place))} && exec "$@"', "sh"]
    assert [one["where"] for one in clinic.found(name)] == ["the current directory"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("expire_afer: 5d\n", "did you mean expire_after?"),
        ("settle_seconds: soon\n", "must be a number of seconds"),
    ],
)
def test_settings(clinic: Clinic, text: str, said: str) -> None:
    """A setting that cannot be used is found with its line; each by itself."""
    path = clinic.root / "post-office.yml"
    before = path.read_text()
    path.write_text(text + "nonsense: 1\n")
    found = clinic.found("settings-faulty")
    assert [one["where"].endswith(f"post-office.yml:{line}:1") or line for line, one in enumerate(found, 1)]
    assert len(found) == 2 and said in found[0]["what"] and "nonsense" in found[1]["what"]
    path.write_text(before)
    assert clinic.findings() == []


def test_declarations(clinic: Clinic) -> None:
    """Every line of a declaration that holds up the merge is found."""
    path = clinic.box.declare("broken", "plugin: broken\nagents:\n  - {id: broken.a, adress: a@b.internal}\n")
    found = clinic.found("declaration-faulty")
    assert found and all(one["where"].startswith("registry.d/broken.yml:3:") for one in found)
    assert any("address" in one["what"] for one in found)
    path.unlink()
    assert clinic.findings() == []


@pytest.mark.skipif(not ROOT, reason="only root asks for others")
def test_accounts(clinic: Clinic) -> None:
    """An office that belongs to somebody else than who asks, or than who routes, is found with whose it is."""
    os.chown(clinic.root, 65534, -1)
    owner = pwd.getpwuid(65534).pw_name
    [one] = clinic.found("cron-wrong-account")
    assert one["where"] == "crontab of root" and f"the office belongs to {owner!r}" in one["what"]
    assert one["commands"][1].startswith(f"runuser -u {owner} -- postmaster --root {clinic.root} cron --install")
    clinic.mend([one | {"commands": one["commands"][:1]}])
    assert clinic.found("cron-wrong-account") == []
    clinic.box.world.chmod(0o755)


@pytest.mark.skipif(not ROOT, reason="only root asks for others")
def test_root_asks_for_the_owner(clinic: Clinic) -> None:
    """Asked by root, the rights of the account that the office belongs to count, and not those of root."""
    for path in (clinic.root, *clinic.root.rglob("*")):
        os.chown(path, 65534, -1, follow_symlinks=False)
    echo = clinic.box.inbox("lab.echo") / "unread"
    for path in (clinic.root / "outbox", clinic.root / "logs", echo):
        os.chown(path, 0, 0)
    found = {one["where"]: one["check"] for one in clinic.findings() if "'nobody' may not write here" in one["what"]}
    assert found == {"outbox": "outbox-closed", "logs": "part-closed", "inboxes/lab.echo/unread": "inbox-closed"}


@pytest.mark.skipif(not ROOT, reason="only root makes the files of another account")
def test_what_root_has_left_is_given_back(clinic: Clinic) -> None:
    """After `sudo postmaster ...` files belong to root: they are given back, not opened."""
    clinic.declare("one", "")
    clinic.box.drop("first.md", letter())
    clinic.box.route()
    for path in (clinic.root, *clinic.root.rglob("*")):
        os.chown(path, 65534, -1, follow_symlinks=False)
    letter_of_root = clinic.box.drop("m.md", letter())
    lock, log = clinic.root / ".postmaster" / "lock", clinic.root / "logs" / "delivery-log.jsonl"
    declaration = clinic.root / "registry.d" / "more.yml"
    for path in (lock, log, letter_of_root, declaration):
        os.chown(path, 0, 0)
        path.chmod(0o600)
    echo = clinic.box.inbox("lab.echo") / "unread"
    os.chown(echo, 0, 0)
    names = {"private-closed": lock, "log-closed": log, "inbox-closed": echo}
    found = {one["check"]: one for one in clinic.findings()}
    for name, path in names.items():
        assert found[name]["commands"] == [f"chown nobody {path}"] and "as root" in found[name]["fix"]
    for name, path in (("letter-closed", letter_of_root), ("declaration-closed", declaration)):
        assert found[name]["commands"] == [f"chgrp nogroup {path}", f"chmod g+r {path}"]
    assert "declaration-faulty" not in found
    mended = [*names, "letter-closed", "declaration-closed"]
    clinic.mend([found[name] for name in mended])
    assert {one["check"] for one in clinic.findings()}.isdisjoint(mended)


@pytest.mark.parametrize("root", ["/nonexistent/office", "/etc/passwd", "/", "/proc"])
def test_what_is_no_office(box: Box, root: str) -> None:
    """Any path can be asked about; one that is no office is a finding."""
    done = box.run("--root", root, "doctor")
    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout.startswith(f"no-office: {root}: is ")


@pytest.fixture
def public(clinic: Clinic) -> Iterator[Path]:
    """The office at a place that other accounts can come to, with an agent whose account is `nobody`."""
    if not ROOT or shutil.which("runuser") is None:
        pytest.skip("takes root, and runuser")
    clinic.declare("nobody", "    user: nobody\n")
    with tempfile.TemporaryDirectory() as place:
        Path(place).chmod(0o755)
        moved = Path(place) / "office"
        shutil.copytree(clinic.root, moved, symlinks=True)
        clinic.box.root = moved
        clinic.crontab(clinic.line())
        yield moved


def as_nobody(*command: str) -> bool:
    """Tell whether a command succeeds as the account `nobody`."""
    return subprocess.run(["runuser", "-u", "nobody", "--", *command], capture_output=True, check=False).returncode == 0


def test_the_inbox_of_another_account(clinic: Clinic, public: Path) -> None:
    """What keeps an agent's account from its inbox and its mail is found; with the fix the account can read it."""
    [one] = clinic.found("inbox-unreadable")
    assert one["where"].startswith("inboxes/more.nobody") and "'nobody' may not enter or write here" in one["what"]
    clinic.mend([one])
    assert clinic.findings() == []
    clinic.box.drop("m.md", letter(to="nobody@more.internal"))
    clinic.run("route", prefix=["sh", "-c", 'umask 077; exec "$@"', "sh"])
    [mail] = (public / "inboxes" / "more.nobody" / "unread").iterdir()
    assert not as_nobody("cat", str(mail))
    [one] = clinic.found("mail-unreadable")
    assert "umask" in one["what"]
    clinic.mend([one])
    assert clinic.findings() == []
    assert as_nobody("cat", str(mail))
    assert as_nobody("mv", str(mail), str(mail.parent.parent / "read" / mail.name))


def test_another_account_asks(clinic: Clinic, public: Path) -> None:
    """Who is not the owner is told so, and whom to ask as."""
    name = "wrong-account"
    assert clinic.found(name) == []
    capabilities = "--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search"  # to come to Python itself
    clinic.prefix = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", *capabilities]
    if subprocess.run([*clinic.prefix, sys.executable, "-V"], capture_output=True, check=False).returncode:
        pytest.skip("there is no setpriv here")
    [one] = clinic.found(name)
    assert one["where"] == str(public) and "belongs to 'root', and this is 'nobody'" in one["what"]
    assert one["commands"] == [] and one["look"] == [f"runuser -u root -- postmaster --root {public} doctor"]


def test_an_account_that_is_none(clinic: Clinic) -> None:
    """A `user` that no account has is found, with the declaration."""
    clinic.declare("ghost", "    user: no-such-account\n")
    [one] = clinic.found("user-unknown")
    assert one["where"] == "registry.d/more.yml" and one["commands"] == ["useradd no-such-account"]
    clinic.declare("ghost", f"    user: {pwd.getpwuid(os.geteuid()).pw_name}\n")
    assert clinic.findings() == []


def test_a_disk_that_fstab_wants(clinic: Clinic) -> None:
    """For an inbox on a disk that is not mounted, the place to mount is named."""
    place = clinic.box.world / "scratch" / "disk"
    place.mkdir()
    clinic.declare("far", f"    inbox: {place}/a\n")
    shutil.rmtree(place / "a")
    fstab = clinic.box.world / "scratch" / "fstab"
    fstab.write_text(f"# disks\n/dev/sdz1 {place} ext4 defaults 0 2\n")
    script = f'mount --bind {shlex.quote(str(fstab))} /etc/fstab && exec "$@"'
    clinic.prefix = ["unshare", "-m", "sh", "-c", script, "sh"]
    if subprocess.run([*clinic.prefix, "true"], capture_output=True, check=False).returncode:
        pytest.skip("nothing can be mounted here")
    [one] = clinic.found("inbox-unmounted")
    assert f"is on {place}, which is not mounted" in one["what"] and one["commands"] == [f"mount {place}"]
    assert clinic.found("inbox-missing") == []


def test_no_cron_daemon(clinic: Clinic) -> None:
    """A crontab line is of no use where no cron runs: seen in a world without other processes."""
    clinic.prefix = ["unshare", "--pid", "--fork", "--mount-proc"]
    if subprocess.run([*clinic.prefix, "true"], capture_output=True, check=False).returncode:
        pytest.skip("there is no unshare here")
    [one] = clinic.found("no-cron-daemon")
    assert one["where"].startswith("crontab of ") and one["commands"] == ["service cron start"]
    clinic.prefix = []
    assert clinic.found("no-cron-daemon") == []


def test_a_timer_is_enough(clinic: Clinic) -> None:
    """With a timer and no crontab line nothing is missing; neither is with another office in the crontab."""
    unit = timer(clinic, f"{sys.executable} -m postmaster --root {clinic.root} route")
    clinic.crontab(clinic.line().replace(str(clinic.root), "/srv/other"))
    account = pwd.getpwuid(os.geteuid()).pw_name
    if not (prefix := booted(account)):
        pytest.skip("nothing can be mounted here")
    clinic.prefix = prefix
    assert clinic.findings() == []
    clinic.prefix = booted()  # the account does not linger
    found = {one["check"]: one for one in clinic.findings()}
    assert found["unit-not-lingering"]["commands"] == [f"loginctl enable-linger {account}"]
    assert set(found) == {"unit-not-lingering", "cron-other-office"}
    clinic.prefix = prefix
    service = unit.with_name("mail.service")
    service.write_text(service.read_text().replace(sys.executable, "/opt/gone/bin/python"))
    found = {one["check"]: one for one in clinic.findings()}
    assert set(found) == {"unit-program-missing", "cron-other-office"}
    assert found["unit-program-missing"]["where"] == str(unit) and found["unit-program-missing"]["commands"] == []


@pytest.mark.skipif(Path("/run/systemd/system").exists(), reason="systemd runs here")
def test_no_systemd(clinic: Clinic) -> None:
    """A timer starts nothing where systemd does not run."""
    unit = timer(clinic, f"{sys.executable} -m postmaster --root {clinic.root} route")
    clinic.crontab("")
    found = {one["check"]: one for one in clinic.findings()}
    assert set(found) == {"no-systemd", "not-started"} and found["no-systemd"]["where"] == str(unit)
    clinic.mend([found["no-systemd"]])
    assert clinic.found("not-started") == []


def test_what_a_crontab_line_is_about(clinic: Clinic) -> None:
    """The office of a line is read as the shell would; what nobody can tell is not asserted."""
    root, program = clinic.root, f"{clinic.folder}/postmaster"
    home = clinic.box.world / "home"
    (home / "mail").symlink_to(root)
    (home / "venv" / "bin").mkdir(parents=True)
    (home / "venv" / "bin" / "postmaster").symlink_to(program)
    well = (
        f"{program} --root ${{HOME}}/mail route",
        f"cd {root} && {program} --root . route",
        f"env POSTMASTER_ROOT={root} {program} route >/dev/null 2>&1",
        f"export POSTMASTER_ROOT=$HOME/mail; nice -n 5 {program} cycle",
        f". venv/bin/activate; postmaster --root {root} route",
        f"bash -lc 'postmaster --root {root} route'",
        f"if true; then flock -n /tmp/l timeout -k 5 60 {program} --root {root} route; fi",
        f"{program} --root $ELSEWHERE route",  # nobody can tell
        "bash -lc 'postmaster route'",
        "/opt/bin/all-of-postmaster.sh",
    )
    for line in well:
        clinic.crontab(f"*/10 * * * * {line}\n")
        assert clinic.findings() == [], line
    told = clinic.run("status", "--json").stdout
    assert '"crontab": "unknown"' in told and "cannot tell which office" in told
    for fields, line in (
        ("@reboot", f"{program} --root {root} route"),
        ("*/5 * * * *", f"{program} --root {root} route --dry-run"),
        ("*/5 * * * *", f"{program} --root {root} status route"),
    ):
        clinic.crontab(f"{fields} {line}\n")
        assert [one["check"] for one in clinic.findings()] == ["not-started"], line


def test_a_watch_that_is_stopped(clinic: Clinic) -> None:
    """A `watch` starts runs, and not while it is stopped."""
    clinic.crontab("")
    watch = clinic.box.start("watch", "--poll", "1")
    try:
        deadline = time.monotonic() + 20
        while '"not-started"' in clinic.run("doctor", "--json").stdout:  # it still makes its files
            assert time.monotonic() < deadline
            time.sleep(0.1)
        watch.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, watch.pid, os.WSTOPPED | os.WNOWAIT)
        found = {one["check"]: one for one in clinic.findings()}
        assert found["not-started"] and found["watch-stopped"]["where"] == f"process {watch.pid}"
        clinic.mend([found["watch-stopped"]])
        assert '"watch-stopped"' not in clinic.run("doctor", "--json").stdout
    finally:
        watch.send_signal(signal.SIGCONT)
        watch.send_signal(signal.SIGTERM)
        watch.communicate(timeout=20)


def test_a_stopped_process_holds_the_lock(clinic: Clinic) -> None:
    """Who holds the lock and is stopped is named, and goes on."""
    lock = clinic.root / ".postmaster" / "lock"
    code = "import fcntl, signal, sys; f = open(sys.argv[1], 'a'); fcntl.flock(f, 2); print(flush=True); signal.pause()"
    holder = subprocess.Popen([sys.executable, "-c", code, str(lock)], stdout=subprocess.PIPE)
    try:
        assert holder.stdout is not None
        holder.stdout.readline()
        if str(lock.stat().st_ino) not in Path("/proc/locks").read_text():
            pytest.skip("the kernel does not list locks here")
        assert clinic.found("lock-stopped") == []
        holder.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, holder.pid, os.WSTOPPED | os.WNOWAIT)
        [one] = clinic.found("lock-stopped")
        assert one["where"] == ".postmaster/lock" and f"process {holder.pid}" in one["what"]
        clinic.mend([one])
        assert clinic.found("lock-stopped") == []
    finally:
        holder.kill()
        holder.communicate()


def test_the_log_is_ahead(clinic: Clinic) -> None:
    """A last line from the future means that a clock is wrong."""
    clinic.box.drop("m.md", letter())
    clinic.box.route()
    log = clinic.root / "logs" / "delivery-log.jsonl"
    text = log.read_text()
    log.write_text(re.sub(r'"time":"\d{4}', '"time":"2099', text))
    [one] = clinic.found("clock-of-log")
    assert one["where"] == "logs/delivery-log.jsonl" and one["commands"] == ["timedatectl set-ntp true"]
    log.write_text(text)
    assert clinic.findings() == []


def test_little_room(clinic: Clinic) -> None:
    """A disk that is nearly full is found, also that of an inbox."""
    place = clinic.box.world / "scratch" / "disk"
    with mounted(place, "4m") as made:
        if not made:
            pytest.skip("nothing can be mounted here")
        clinic.declare("far", f"    inbox: {place}/a\n")
        assert clinic.findings() == []
        (place / "full").write_bytes(bytes(4_000_000))
        [one] = clinic.found("disk-full")
        assert one["where"] == f"{place}/a" and "% of its file system is left" in one["what"]
        (place / "full").unlink()
        assert clinic.findings() == []


def test_a_file_system_that_forgets(clinic: Clinic) -> None:
    """A file system on which mail does not stay, or locks do not hold, is named."""
    place = clinic.box.world / "scratch" / "disk"
    place.mkdir()
    made = subprocess.run(["mount", "-t", "ramfs", "ramfs", place], capture_output=True, check=False)
    if made.returncode:
        pytest.skip("nothing can be mounted here")
    try:
        clinic.declare("far", f"    inbox: {place}/a\n")
        [one] = clinic.found("file-system")
        assert one["where"] == f"{place}/a" and "is on ramfs" in one["what"] and one["commands"] == []
    finally:
        subprocess.run(["umount", place], check=True)


def test_what_is_kept_in_memory(clinic: Clinic) -> None:
    """An inbox in memory is named, unless it is where everybody knows that things go: the office of this test."""
    script = 'mount -t tmpfs none /mnt && mkdir -p /mnt/a/tmp /mnt/a/unread /mnt/a/read && exec "$@"'
    clinic.prefix = ["unshare", "-m", "sh", "-c", script, "sh"]
    if subprocess.run([*clinic.prefix, "true"], capture_output=True, check=False).returncode:
        pytest.skip("nothing can be mounted here")
    clinic.declare("far", "    inbox: /mnt/a\n", merge=False)
    clinic.run("registry", "merge", prefix=clinic.prefix)
    [one] = clinic.findings()
    assert one["check"] == "file-system" and one["where"] == "/mnt/a" and "on tmpfs, which is gone" in one["what"]


def test_programs(clinic: Clinic) -> None:
    """A program that is not there, or that cron will not find, is found with the declaration."""
    clinic.declare("told", "    nudge: [no-such-program]\n    idle: [/no/such/program]\n")
    found = clinic.found("command-missing")
    assert [one["where"] for one in found] == ["registry.d/more.yml"] * 2
    assert "which is not found in PATH" in found[0]["what"] and "which is not there" in found[1]["what"]
    path = clinic.program("tell", "#!/bin/sh\n")
    clinic.declare("told", "    nudge: [tell]\n")
    [one] = clinic.found("command-not-in-cron")
    assert "not in cron's PATH (/usr/bin:/bin)" in one["what"] and str(path) in one["fix"]
    assert clinic.found("command-missing") == []
    for text, said, mends in (
        ("echo\n", "has no `#!` line", False),
        ("#!/bin/sh\r\necho\r\n", "carriage return", True),
        ("#!/opt/gone/bin/python\n", "is run by /opt/gone/bin/python, which is not there", False),
        ("#!/usr/bin/env no-such-python\n", "is run by no-such-python, which is not found", False),
    ):
        clinic.program("tell", text)
        [one] = clinic.found("command-missing")
        assert said in one["what"] and bool(one["commands"]) is mends
        if mends:
            clinic.mend([one])
            assert clinic.found("command-missing") == []
    clinic.program("tell", "#!/usr/bin/env -S sh -e\n")
    clinic.declare("told", f"    nudge: [sh -c true]\n    idle: [{clinic.folder}]\n")
    blank, folder = clinic.found("command-missing")
    assert "[sh, -c, true]: arguments are separate items" in blank["fix"] and "is a directory" in folder["what"]
    clinic.declare("told", "    nudge: [tell]\n")
    clinic.crontab(f"PATH={clinic.folder}:/usr/bin:/bin\n{clinic.line()}")
    assert clinic.findings() == []


def test_tools(clinic: Clinic) -> None:
    """A program that the settings call for, and that is not installed, is found."""
    remote(clinic)
    clinic.crontab(clinic.run("cron", "--carry").stdout)
    assert clinic.findings() == []
    for name in ("sh", "cat", "id"):
        (clinic.folder / name).symlink_to(str(shutil.which(name)))
    clinic.env["PATH"] = str(clinic.folder)
    [one] = clinic.found("tool-missing")
    assert "calls for git" in one["what"] and one["commands"] == ["apt-get install -y git"]


def test_hosts(clinic: Clinic) -> None:
    """A host whose key ssh does not know is found; not once it is known, or where ssh is configured for it."""
    needs("ssh-keygen")
    clinic.settings("remotes: {hub: {url: 'ssh://mail@hub.example:2222/srv/mail.git', domains: [far.internal]}}\n")
    clinic.crontab(clinic.run("cron", "--carry").stdout)
    [one] = clinic.found("host-unknown")
    assert one["where"] == "remote hub" and "hub.example" in one["look"][0]
    key = clinic.box.world / "scratch" / "host.key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
    ssh = clinic.box.world / "home" / ".ssh"
    ssh.mkdir()
    (ssh / "known_hosts").write_text(f"[hub.example]:2222 {key.with_suffix('.key.pub').read_text()}")
    assert clinic.found("host-unknown") == []
    (ssh / "known_hosts").write_text("")
    (ssh / "config").write_text("Host hub.example\n  HostName 10.0.0.1\n")
    assert clinic.found("host-unknown") == []


def test_who_the_carrier_writes_to(clinic: Clinic) -> None:
    """An `operator` that gets no mail, and a remote that is to bring mail of our own domain, are found."""
    remote(clinic)
    clinic.crontab(clinic.run("cron", "--carry").stdout)
    path = clinic.root / "post-office.yml"
    text = path.read_text()
    path.write_text(f"{text}operator: nobody@lab.internal\n")
    [one] = clinic.findings()
    assert one["check"] == "operator-unreached" and "no agent of the registry has this address" in one["what"]
    clinic.declare("boss", "")
    path.write_text(f"{text}operator: boss@more.internal\n")
    assert "does not accept type" in clinic.found("operator-unreached")[0]["what"]
    more = clinic.root / "registry.d" / "more.yml"
    more.write_text(more.read_text().replace("job.*", "carrier.*"))
    clinic.box.merge()
    assert clinic.findings() == []
    path.write_text(text.replace("far.internal", "far.internal, more.internal"))
    [one] = clinic.findings()
    assert one["check"] == "remote-own-domain" and "more.internal" in one["what"] and one["commands"] == []


def test_a_socket_is_no_letter(clinic: Clinic) -> None:
    """Anything that is no regular file is found."""
    os.chdir(clinic.root / "outbox")
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind("s.md")
        assert [one["where"] for one in clinic.found("letter-link")] == ["outbox/s.md"]


def test_nothing_in_a_name_reaches_the_terminal_or_the_shell(clinic: Clinic) -> None:
    """Names are quoted in commands, and escaped for the terminal."""
    clinic.box.drop("a $(touch x)\x1b[31m.txt", letter(), age_seconds=60)
    done = clinic.run("doctor")
    assert "\x1b" not in done.stdout and "letter-without-suffix" in done.stdout
    clinic.mend(clinic.found("letter-without-suffix"))
    assert clinic.findings() == []
    assert os.listdir(clinic.box.world / "cwd") == []


def test_the_page_has_every_check() -> None:
    """The table in docs/doctor.md is the program's table, and every check has a test here."""
    code = "from postmaster.doctor.catalogue import CHECKS; [print(f'{c.name}|{c.mistake}') for c in CHECKS]"
    listed = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    known = dict(line.split("|") for line in listed)
    rows = dict(re.findall(r"^\| `([a-z-]+)` \| ([^|]+?) \|", PAGE.read_text("utf-8"), re.M))
    assert rows == known
    text = Path(__file__).read_text("utf-8")
    assert [name for name in known if f'"{name}"' not in text] == []
