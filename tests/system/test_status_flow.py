"""`postmaster status`: the first line says whether mail flows; `--check` and `--format prometheus` for monitoring."""

import json
import os
import pwd
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from clinic import booted
from prometheus_client.parser import text_string_to_metric_families
from support import HOUR, Box, letter, mounted

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


@pytest.fixture(autouse=True)
def crontab(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """A crontab that refuses, so that nobody can tell whether it starts runs."""
    program = tmp_path_factory.mktemp("bin") / "crontab"
    program.write_text("#!/bin/sh\nexit 2\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")


def check(box: Box, *args: str, env: dict[str, str] | None = None) -> tuple[int, str]:
    """Return the exit code of `status --check`, and its first line, having checked that asking changed nothing."""
    before = box.snapshot(private=True)
    done = box.run("status", "--check", *args, env=env)
    assert done.stderr == ""
    assert box.snapshot(private=True) == before
    return done.returncode, done.stdout.splitlines()[0]


def routed(box: Box, hours: float) -> None:
    """Set the time of the last run."""
    then = time.time() - hours * HOUR
    os.utime(box.root / ".postmaster" / "lock", (then, then))


def metrics(box: Box, *args: str) -> Samples:
    """Return the metrics, read by the parser of the Prometheus project, without the label `office`."""
    done = box.run("status", "--format", "prometheus", *args)
    assert (done.returncode, done.stderr) == (0, "")
    return parsed(box, done.stdout)


def parsed(box: Box, text: str) -> Samples:
    """Read metrics; each is a gauge with a help text and is about this office."""
    found: Samples = {}
    for family in text_string_to_metric_families(text):
        assert family.type == "gauge" and family.documentation and family.name.startswith("postmaster_")
        for sample in family.samples:
            labels = dict(sample.labels)
            assert labels.pop("office") == str(box.root)
            found[family.name.removeprefix("postmaster_"), tuple(sorted(labels.items()))] = sample.value
    if promtool := shutil.which("promtool"):
        done = subprocess.run([promtool, "check", "metrics"], input=text, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    return found


def test_mail_flows(lab: Box) -> None:
    """An office whose mail was routed is well, with unread mail and dead letters as they come."""
    assert check(lab) == (0, "mail flows")
    lab.drop("m.md", letter())
    lab.drop("nobody.md", letter(to="nobody@lab.internal"))
    lab.route()
    assert check(lab) == (0, "mail flows")
    answer = json.loads(lab.run("status", "--json").stdout)
    assert (answer["flows"], answer["level"], answer["concerns"]) == (True, "ok", [])


def test_no_run_while_mail_waits(lab: Box) -> None:
    """Mail that waits longer than it should, with no run since, does not flow; the limit is an option."""
    lab.route()
    routed(lab, 2)
    assert check(lab)[0] == 0  # nothing waits
    lab.drop("m.md", letter())
    code, line = check(lab)
    assert code == 2
    assert line.startswith("mail does not flow: no run for 2 hours while 1 letter waits in the outbox; ")
    assert "cron --install" in line
    assert check(lab, "--max-run-age", "3h") == (0, "mail flows")
    assert check(lab, "--max-run-age", "off") == (0, "mail flows")
    lab.route()
    assert check(lab) == (0, "mail flows")


def test_never_routed(lab: Box) -> None:
    """Before the first run a letter has half an hour."""
    lab.drop("m.md", letter(), age_seconds=60)
    assert check(lab)[0] == 0
    lab.age(HOUR)
    assert "no run yet while 1 letter waits" in check(lab)[1]


def test_a_letter_that_runs_leave(lab: Box) -> None:
    """Runs that leave a letter where it is, without calling it deferred, do not pass for mail that flows."""
    lab.drop("m.md", letter())
    (lab.root / ".postmaster" / "lock").touch()
    later = time.time() + 120  # a run that began after the letter came
    os.utime(lab.root / ".postmaster" / "lock", (later, later))
    code, line = check(lab)
    assert code == 2 and "though a run was made since (m.md)" in line


def test_deferred_mail(lab: Box) -> None:
    """Deferred mail is a warning at first, and keeps mail from flowing after an hour; says why and whose."""
    inbox = lab.inbox("lab.checker")
    shutil.rmtree(inbox)
    inbox.write_bytes(b"")
    lab.drop("late.md", letter(to="checker@lab.internal"))
    lab.route(check=75)
    code, line = check(lab)
    assert code == 1
    assert line.startswith("mail flows, but look: 1 letter is deferred: inbox-unavailable, for ")
    assert "(lab.checker)" in line
    code, line = check(lab, "--max-deferred-age", "0")
    assert code == 2 and line.startswith("mail does not flow: 1 letter is deferred")


def test_unread_and_dead_mail_have_limits_if_wanted(lab: Box) -> None:
    """How old unread mail may be, and how many dead letters a day may have, is judged on request."""
    lab.drop("m.md", letter())
    for number in range(3):
        lab.drop(f"{number}.md", letter(to="nobody@lab.internal", body=f"{number}\n"))
    lab.route()
    [mail] = (lab.inbox("lab.builder") / "unread").iterdir()
    os.utime(mail, (time.time() - 3 * HOUR,) * 2)
    code, line = check(lab, "--max-unread-age", "2h")
    assert code == 1 and "unread for 3 hours" in line and "for lab.builder" in line
    code, line = check(lab, "--max-dead", "2")
    assert code == 1 and "3 dead letters in the last day" in line
    assert check(lab, "--max-dead", "3", "--max-unread-age", "4h") == (0, "mail flows")
    os.utime(lab.root / "dead-letter" / "1.md.reason.yml", (time.time() - 25 * HOUR,) * 2)
    answer = json.loads(lab.run("status", "--json").stdout)
    assert answer["dead_letters"] == {"unknown-recipient": 3}
    assert answer["dead_letters_last_day"] == {"unknown-recipient": 2}
    assert "in the last 24 hours 2 unknown-recipient" in lab.run("status").stdout


def test_without_a_registry(box: Box) -> None:
    """Without a registry nothing is routed."""
    code, line = check(box)
    assert code == 2 and line.startswith("mail does not flow: the registry is missing")


def test_registry_and_log(lab: Box) -> None:
    """A registry that lags behind is a warning; without the log nothing should be routed."""
    path = lab.root / "registry.d" / "lab.yml"
    path.write_text(path.read_text().replace("mason@", "smith@"))
    code, line = check(lab)
    assert code == 1 and "the declarations have changed since the merge" in line
    lab.merge()
    lab.drop("m.md", letter())
    lab.route()
    (lab.root / "logs" / "delivery-log.jsonl").unlink()
    code, line = check(lab)
    assert code == 2 and "the delivery log is gone" in line


def test_what_is_unfinished(lab: Box) -> None:
    """What a run, a register or an exchange has left is told, and how it is ended; not while somebody is at work."""
    lab.route()
    journal = lab.root / ".postmaster" / "journal"
    journal.write_bytes(b"{}")
    code, line = check(lab)
    assert code == 1 and ".postmaster/journal: a run was cut off in the middle" in line and "route --now" in line
    routed(lab, 1)
    assert check(lab)[0] == 2
    holder = subprocess.Popen(["flock", lab.root / ".postmaster" / "lock", "sleep", "60"], start_new_session=True)
    try:
        deadline = time.monotonic() + 20
        while not json.loads(lab.run("status", "--json").stdout)["at_work"]:
            assert time.monotonic() < deadline
        assert check(lab) == (0, "mail flows")
    finally:
        os.killpg(holder.pid, signal.SIGKILL)
        holder.wait()
    journal.unlink()
    (lab.root / "directory" / "live").mkdir(parents=True)
    (lab.root / "directory" / "live" / "pending").write_text("{}")
    (lab.root / "carrier").mkdir()
    (lab.root / "carrier" / "unfinished").write_text("[0, 0]")
    found = {one["path"] for one in json.loads(lab.run("status", "--json").stdout)["unfinished"]}
    assert found == {"directory/live/pending", "carrier/unfinished"}


def test_disks(lab: Box, tmp_path: Path) -> None:
    """A disk without room for a message stops mail; one with little left is a warning; each is told once."""
    assert check(lab, "--min-free", "100")[0] == 1
    [disk] = json.loads(lab.run("status", "--json").stdout)["disks"]
    assert disk["places"][0] == "office" and disk["bytes_free"] > 0 and 0 < disk["percent_free"] <= 100
    far = tmp_path / "disk"
    with mounted(far, "4m") as made:
        if not made:
            pytest.skip("nothing can be mounted here")
        text = f"plugin: far\nagents:\n  - id: far.a\n    address: a@far.internal\n    inbox: {far}/a\n"
        lab.declare("far", text + "    accepts: [{type: job.run, accepts_from: ['*']}]\n")
        lab.merge()
        code, line = check(lab)
        assert code == 2 and f"{far}/a: " in line and "no room for the largest message" in line
        assert len(json.loads(lab.run("status", "--json").stdout)["disks"]) == 2


def test_remotes(lab: Box) -> None:
    """A remote that does not answer is told, with why; once mail has waited for it, mail does not flow."""
    hub = lab.world / "scratch" / "hub.git"
    (lab.root / "post-office.yml").write_text(f"remotes: {{hub: {{url: {hub}, domains: [far.internal]}}}}\n")
    lab.drop("m.md", letter(to="agent@far.internal"))
    lab.route()
    [remote] = json.loads(lab.run("status", "--json").stdout)["remotes"]
    assert (remote["waiting"], remote["failures"]) == (1, 0)
    code, line = check(lab, "--max-deferred-age", "0")
    assert code == 2 and "1 letter waits for remote hub" in line and "postmaster carry" in line
    lab.run("carry")
    [remote] = json.loads(lab.run("status", "--json").stdout)["remotes"]
    assert (remote["waiting"], remote["failures"], remote["wrong"]) == (0, 1, None)
    assert remote["next_try"] and remote["why"]
    code, line = check(lab)
    assert code == 1 and line.startswith("mail flows, but look: remote hub does not answer (1 times: ")
    assert check(lab, "--max-deferred-age", "0")[0] == 2
    subprocess.run(["git", "init", "-q", "--bare", hub], check=True)
    lab.run("carry", "hub")
    assert check(lab) == (0, "mail flows")


def test_what_starts_runs(lab: Box) -> None:
    """The crontab line, a timer and a `watch` that is at work are named."""

    def started_by() -> list[str]:
        found = json.loads(lab.run("status", "--json", env=env, prefix=prefix).stdout)["starters"]
        return [one["source"] for one in found["started_by"]]

    program = lab.world / "scratch" / "bin" / "crontab"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\necho 'no crontab for x' >&2\nexit 1\n")
    program.chmod(0o755)
    env = {"PATH": f"{program.parent}:{os.environ['PATH']}"}
    prefix = booted(pwd.getpwuid(os.geteuid()).pw_name)
    assert started_by() == []
    assert check(lab, env=env) == (1, "mail flows, but look: nothing starts runs: `postmaster cron --install`")
    assert "started by   nothing that is known" in lab.run("status", env=env).stdout
    line = lab.run("cron").stdout
    program.write_text(f"#!/bin/sh\ncat <<'X'\n17 * * * * backup\n{line}X\n")
    assert started_by() == ["crontab"]
    assert "started by   crontab of " in lab.run("status", env=env).stdout
    units = lab.world / "home" / ".config" / "systemd" / "user"
    (units / "timers.target.wants").mkdir(parents=True)
    (units / "mail.timer").write_text("[Timer]\nOnCalendar=*:0/10\n")
    (units / "mail.service").write_text(
        f"[Service]\nExecStart={sys.executable} -m postmaster --root {lab.root} route\n"
    )
    assert started_by() == ["crontab"]  # it is not enabled
    (units / "timers.target.wants" / "mail.timer").symlink_to(units / "mail.timer")
    timers = [str(units / "mail.timer")] if prefix else []  # else systemd does not run
    assert started_by() == ["crontab", *timers]
    watch = lab.start("watch", "--poll", "1")
    try:
        deadline = time.monotonic() + 20
        while started_by()[1 + len(timers) :] != [f"process {watch.pid}"]:
            assert time.monotonic() < deadline
            time.sleep(0.1)
    finally:
        watch.send_signal(signal.SIGTERM)
        watch.communicate(timeout=20)


def test_a_crontab_that_cannot_be_told(lab: Box) -> None:
    """Where crontab refuses, or does not end, that is said, and nothing fails."""
    done = lab.run("status", env={"PATH": str(lab.world / "home")})
    assert done.returncode == 0
    assert "crontab` cannot be run" in done.stdout


def test_no_office(box: Box) -> None:
    """What cannot be looked at ends with 78, and with 3 where a monitor asks."""
    shutil.rmtree(box.root / "outbox")
    assert box.run("status").returncode == 78
    done = box.run("status", "--check")
    assert done.returncode == 3 and done.stdout.startswith("nobody can tell whether mail flows: ")
    done = box.run("status", "--format", "prometheus")
    assert done.returncode == 78
    assert parsed(box, done.stdout)["up", ()] == 0


def test_metrics(lab: Box) -> None:
    """Everything that is counted is a metric, whatever the names hold."""
    lab.drop("m.md", letter())
    lab.drop("nobody.md", letter(to="nobody@lab.internal"))
    lab.route()
    lab.drop("next.md", letter(body="next\n"))
    (lab.root / "inboxes" / 'odd "\\\n\u202e').mkdir()
    (lab.root / "inboxes" / os.fsdecode(b"caf\xe9")).mkdir()
    found = metrics(lab)
    assert found["up", ()] == found["mail_flows", ()] == 1
    assert found["level", ()] == 0
    assert abs(found["status_timestamp_seconds", ()] - time.time()) < 60
    assert abs(found["last_run_timestamp_seconds", ()] - time.time()) < 60
    assert found["outbox_messages", ()] == 1
    assert abs(found["outbox_oldest_timestamp_seconds", ()] - time.time() + HOUR) < 60
    assert abs(found["unread_oldest_timestamp_seconds", ()] - time.time()) < 60
    builder = (("agent", "lab.builder"), ("inbox", "inboxes/lab.builder"))
    assert found["unread_messages", builder] == 1
    assert found["dead_letters", (("reason", "unknown-recipient"),)] == 1
    assert found["dead_letters_last_day", (("reason", "unknown-recipient"),)] == 1
    assert found["disk_free_bytes", (("path", str(lab.root)),)] > 0
    assert found["concerns", (("level", "critical"),)] == 0
    assert any("caf" in value for _, labels in found for _, value in labels)


def test_a_file_for_the_collector(lab: Box) -> None:
    """--output replaces a file as a whole, readable for others, and leaves nothing beside it; a fault keeps the old."""
    target = lab.world / "scratch" / "postmaster.prom"
    for umask in ("077", "022"):
        command = ["sh", "-c", f'umask {umask}; exec "$@"', "sh"]
        done = lab.run("status", "--format", "prometheus", "--output", str(target), prefix=command)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
        assert parsed(lab, target.read_text())["up", ()] == 1
        assert target.stat().st_mode & 0o777 == 0o644
    assert os.listdir(target.parent) == [target.name]
    done = lab.run("status", "--format", "prometheus", "--output", str(target / "x"))
    assert done.returncode == 73 and "cannot be written" in done.stderr
    shutil.rmtree(lab.root / "outbox")
    done = lab.run("status", "--format", "prometheus", "--output", str(target), "--check")
    assert done.returncode == 3
    assert parsed(lab, target.read_text())["up", ()] == 0


def test_an_output_that_is_no_new_file(lab: Box) -> None:
    """--output keeps the mode of a file, takes `-` for standard output, and replaces regular files only."""
    place = lab.world / "scratch"
    (place / "file").write_text("old")
    (place / "file").chmod(0o600)
    (place / "link").symlink_to("file")
    os.mkfifo(place / "pipe")
    assert lab.run("status", "--output", str(place / "file")).returncode == 0
    assert (place / "file").stat().st_mode & 0o777 == 0o600
    kept = (place / "file").read_text()
    assert kept.startswith("mail ")
    for name in ("link", "pipe", "/dev/null"):
        done = lab.run("status", "--output", str(place / name))
        assert done.returncode == 73 and "not a regular file" in done.stderr
    assert (place / "link").is_symlink() and (place / "pipe").is_fifo() and Path("/dev/null").is_char_device()
    done = lab.run("status", "--output", "")
    assert done.returncode == 64 and "it is empty" in done.stderr
    assert lab.run("status", "--output", "-").stdout.startswith("mail ")
    assert sorted(os.listdir(place)) == ["file", "link", "pipe"]


def test_the_page_has_every_metric() -> None:
    """The table of metrics in docs/operations.md is the program's."""
    text = (Path(__file__).parents[2] / "docs" / "operations.md").read_text("utf-8")
    rows = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `postmaster_")]
    code = "from postmaster.metrics import _HELP; print(*_HELP)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert sorted(re.findall(r"`postmaster_(\w+)`", "".join(rows))) == sorted(done.stdout.split())


def test_json_is_a_format(lab: Box) -> None:
    """--json and --format json are the same answer."""
    answers: list[dict[str, Any]] = [
        json.loads(lab.run("status", *args).stdout) for args in (["--json"], ["--format", "json"])
    ]
    assert set(answers[0]) == set(answers[1]) and answers[0]["version"] == 1


@pytest.mark.parametrize(
    "args", [["--format", "xml"], ["--max-run-age", "soon"], ["--min-free", "101"], ["--max-dead", "-1"]]
)
def test_usage(lab: Box, args: list[str]) -> None:
    """An option that makes no sense is told as usage."""
    assert lab.run("status", *args).returncode == 64


def test_starts_quickly() -> None:
    """Nothing of this is loaded by a run of the router."""
    code = "import sys; sys.argv = ['x']; import postmaster.cli.route, postmaster.router; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"postmaster.health", "postmaster.metrics", "postmaster.starters", "postmaster.status"} & set(
        done.stdout.split()
    )
