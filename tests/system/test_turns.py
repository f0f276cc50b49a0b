"""Turns, through the installed command: what the command gets, how its end is carried out, wake, cycle, the listing."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from support import Box, header, letter

_AGENTS = """\
plugin: lab
agents:
  - id: lab.worker
    address: worker@lab.internal
    run: [{run}]
    final_message: {final}
    {more}
    accepts:
      - {{type: job.run, accepts_from: [human@lab.internal]}}
    emits:
      - {{type: job.done, to: human@lab.internal}}
  - id: lab.human
    address: human@lab.internal
    accepts:
      - {{type: job.done, accepts_from: [worker@lab.internal]}}
"""


def declare(box: Box, script: str, *, final: str = "default_thread", more: str = "", retry: str = "0s") -> None:
    """Make an office with one worker whose turns are taken by a shell script."""
    if not box.root.exists():
        box.init()
    (box.root / "post-office.yml").write_text(f"turn_retry_after: {retry}\n")
    program = box.world / "worker.sh"
    program.write_text(script)
    box.declare(
        "lab", _AGENTS.format(run=json.dumps("/bin/sh") + ", " + json.dumps(str(program)), final=final, more=more)
    )
    box.merge()


def ask(box: Box, body: str, flow: str = "run-1") -> None:
    """Send a message to the worker, and route it."""
    done = box.run(
        *("send", "--from", "human@lab.internal", "--to", "worker@lab.internal", "--type", "job.run"),
        *("--subject", "please", "--correlation", flow, "--body", body, "--now"),
    )
    assert done.returncode == 0, done.stderr


def turn(box: Box, *args: str, check: int = 0) -> dict[str, Any]:
    """Take a turn of the worker."""
    done = box.run("turn", "--json", "lab.worker", *args, env=path_to_us(box))
    assert done.returncode == check, (done.returncode, done.stdout, done.stderr)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def path_to_us(box: Box) -> dict[str, str]:
    """Return a PATH on which `postmaster` is this one."""
    program = box.world / "bin" / "postmaster"
    program.parent.mkdir(exist_ok=True)
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m postmaster "$@"\n')
    program.chmod(0o755)
    return {"PATH": f"{program.parent}:{os.environ['PATH']}"}


def answers(box: Box) -> list[str]:
    """Return the texts that the person got, in the order of the numbers."""
    box.route()
    mails = [*box.read("lab.human"), *box.unread("lab.human")]
    return [mail.body.decode() for mail in sorted(mails, key=lambda one: one.sequence)]


def actions(box: Box) -> list[str]:
    return [line["action"] for line in box.log()]


@pytest.fixture
def box(tmp_path: Path) -> Box:
    return Box(tmp_path)


def test_a_turn_gets_one_message_and_its_output_is_sent(box: Box) -> None:
    """stdin has thread, sender, `---` and the text; the output answers who asked, in that flow."""
    declare(box, "cat; pwd; echo $POSTMASTER_ATTEMPT $POSTMASTER_AGENT $POSTMASTER_THREAD\n")
    ask(box, "one")
    ask(box, "two")
    assert turn(box)["outcome"] == "done"
    assert len(box.unread("lab.worker")) == 1 and len(box.read("lab.worker")) == 1
    (said,) = answers(box)
    disk = box.root / "turns" / "lab.worker" / "disk"
    assert said == (f"thread: run-1\nfrom: human@lab.internal\n---\none{disk}\n1 worker@lab.internal run-1\n")
    (mail,) = box.unread("lab.human")
    assert mail.fields["in_reply_to"] == box.read("lab.worker")[0].fields["id"]
    assert [line["action"] for line in box.log() if line.get("agent") == "lab.worker"] == [
        *("delivered", "delivered", "turn-started", "read", "turn-done"),
    ]
    assert box.run("verify").returncode == 0


def test_nothing_to_do(box: Box) -> None:
    declare(box, "exit 1\n")
    assert turn(box)["outcome"] == "quiet"
    assert box.run("wake").returncode == 0
    assert "turn-started" not in actions(box)


def test_a_failed_turn_sends_nothing_and_is_taken_again(box: Box) -> None:
    """What a turn that fails has sent never leaves; the next attempt gets the message, and knows its number."""
    script = (
        'postmaster send --to human@lab.internal --type job.done --subject x --body "try $POSTMASTER_ATTEMPT" >&2\n'
        '[ "$POSTMASTER_ATTEMPT" = 2 ] || { echo broken >&2; exit 7; }\n'
    )
    declare(box, script)
    ask(box, "one")
    assert turn(box, check=75)["outcome"] == "failed"
    assert answers(box) == [] and len(box.unread("lab.worker")) == 1
    assert turn(box)["outcome"] == "done"
    assert answers(box) == ["try 2"]
    failed = next(line for line in box.log() if line["action"] == "turn-failed")
    assert "exit 7" in failed["detail"] and "broken" in failed["detail"]
    assert box.run("verify").returncode == 0


def test_too_many_failures_make_a_dead_letter(box: Box) -> None:
    """After max_attempts the message is dead, with the end of stderr, and the next one gets its chance."""
    declare(box, 'if grep -q bad; then echo "no such thing" >&2; exit 3; fi; echo fine\n', more="max_attempts: 2")
    ask(box, "bad")
    ask(box, "good")
    assert turn(box, check=75)["outcome"] == "failed"
    assert turn(box, check=75)["outcome"] == "dead"
    (name,) = box.dead()
    reason = box.reason(name)
    assert reason["reason"] == "turn-failed" and "no such thing" in reason["detail"]
    # Its name is its turn's own: two instances may end a message of the same name at once.
    own = name.removesuffix(".md").rpartition("-")[2]
    assert f"-{own}: " in reason["detail"]
    assert turn(box)["outcome"] == "done"
    assert answers(box) == ["fine\n"]
    assert box.run("verify").returncode == 0
    retried = box.run("dead-letter", "retry", "--allow-duplicate", name)
    assert retried.returncode == 0, retried.stderr
    box.route()
    assert [mail.body for mail in box.unread("lab.worker")] == [b"bad"]
    assert box.run("verify").returncode == 0, box.run("verify").stdout


def test_two_that_die_in_one_moment(box: Box) -> None:
    """Two instances bury messages of the same name at once: each has its dead letter, and its reason file."""
    declare(box, "sleep 0.5; exit 1\n", more="instances: per-flow\n    max_attempts: 1")
    for flow in ("f1", "f2", "f3", "f4"):
        box.drop(f"{flow}.md", letter("worker@lab.internal", "human@lab.internal", correlation_id=flow))
    box.route()
    assert len({path.name for path in box.root.glob("inboxes/*/unread/*")}) == 1
    done = box.run("wake", "--jobs", "4", "--json")
    assert json.loads(done.stdout)["turns"] == {"dead": 4}, done.stderr
    assert len(box.dead()) == 4 and {box.reason(name)["reason"] for name in box.dead()} == {"turn-failed"}
    assert box.run("verify").returncode == 0


def test_a_turn_that_takes_too_long_is_ended(box: Box) -> None:
    """The whole process group goes, also what ignores TERM is not left behind."""
    declare(box, "sleep 60 & echo $! >child; wait\n", more="turn_timeout: 1s")
    ask(box, "one")
    started = time.monotonic()
    assert "timed out" in turn(box, check=75)["detail"]
    assert time.monotonic() - started < 20
    child = int((box.root / "turns" / "lab.worker" / "disk" / "child").read_text())
    assert not alive(child)


def alive(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def test_a_killed_runner_leaves_nothing_running(box: Box) -> None:
    """What a killed runner has started never runs beside the next turn, which gets the message again."""
    declare(box, 'echo $$ >>pids; sh -c "echo \\$\\$ >>pids; sleep 60"; echo late\n')
    ask(box, "one")
    runner = box.start("turn", "lab.worker")
    pids = box.root / "turns" / "lab.worker" / "disk" / "pids"
    wait_for(lambda: pids.exists() and len(pids.read_text().split()) == 2)
    busy = json.loads(box.run("turns", "--json").stdout)["instances"][0]
    assert busy["busy"]
    assert box.run("turn", "lab.worker").returncode == 75
    runner.kill()
    runner.communicate(timeout=10)
    assert turn(box, "--", "cat")["outcome"] == "done"
    assert not any(alive(int(pid)) for pid in pids.read_text().split())
    assert [line["action"] for line in box.log() if line["action"].startswith("turn-")] == [
        *("turn-started", "turn-failed", "turn-started", "turn-done"),
    ]
    assert len(answers(box)) == 1


def wait_for(look: Any, seconds: float = 20) -> None:
    end = time.monotonic() + seconds
    while not look():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_nothing_is_said_where_there_is_nothing_to_say(box: Box) -> None:
    """Empty output, or `discard`: nothing is sent, the log says so, the mail is acknowledged."""
    declare(box, "true\n")
    ask(box, "one")
    assert turn(box)["outcome"] == "done"
    declare(box, "echo loud\n", final="discard")
    ask(box, "two")
    assert turn(box)["outcome"] == "done"
    assert answers(box) == [] and box.unread("lab.worker") == []
    said = [line["detail"] for line in box.log() if line["action"] == "turn-done"]
    assert "it said nothing" in said[0] and "discarded" in said[1]


def test_without_a_default_thread_every_message_says_where(box: Box) -> None:
    send = "postmaster send --to human@lab.internal --type job.done --subject x --body y"
    declare(box, f"{send} && exit 9; {send} --thread other >&2\n", final="discard", more="default_thread: none")
    ask(box, "one")
    assert turn(box)["outcome"] == "done"
    assert answers(box) == ["y"]
    assert box.unread("lab.human")[0].fields["correlation_id"] == "other"


def test_the_origin_does_not_move(box: Box) -> None:
    """A turn that another flow has woken answers in the flow that began it all."""
    declare(box, "echo hello\n")
    ask(box, "one", "first")
    ask(box, "two", "second")
    turn(box)
    turn(box)
    answers(box)
    assert [mail.fields["correlation_id"] for mail in box.unread("lab.human")] == ["first", "first"]


def test_mail_is_taken_in_the_order_of_its_delivery(box: Box) -> None:
    """Which is that of the numbers: also of one second, and where a later letter claims to be older."""
    declare(box, "cat >>got; echo >>got\n", final="discard")
    for number in range(8):
        sent_at = f"2026-03-04T10:00:{9 - number % 2:02d}Z"
        text = letter("worker@lab.internal", "human@lab.internal", sent_at=sent_at, body=f"text {number}")
        box.drop(f"{number}.md", text)
        box.route()
        time.sleep(0.02)
    for _ in range(8):
        turn(box)
    got = (box.root / "turns" / "lab.worker" / "disk" / "got").read_text()
    assert [line for line in got.splitlines() if line.startswith("text")] == [f"text {number}" for number in range(8)]


def test_immediately_leaves_at_once(box: Box) -> None:
    send = "postmaster send --to human@lab.internal --type job.done --subject x --body y"
    declare(box, f"{send} --now 2>/dev/null && exit 0; {send} --immediately >&2; exit 1\n")
    ask(box, "one")
    turn(box, check=75)
    assert answers(box) == ["y"]


def test_a_reply_in_a_turn_waits_for_its_end(box: Box) -> None:
    script = 'postmaster reply lab.worker "$(basename "$POSTMASTER_MESSAGES")" --body re >&2 || exit 4; exit $CODE\n'
    declare(box, script, final="discard")
    ask(box, "one")
    for code, expected in ((5, []), (0, ["re"])):
        done = box.run("turn", "lab.worker", env={**path_to_us(box), "CODE": str(code)})
        assert done.returncode == (75 if code else 0), done.stderr
        assert answers(box) == expected


@pytest.mark.parametrize("words", ["", '"$(basename "$POSTMASTER_MESSAGES")"', "worker@lab.internal $ID", "$ID -"])
def test_a_reply_in_a_turn_knows_who_it_is_and_what_woke_it(box: Box, words: str) -> None:
    script = f'ID=$(grep -h ^id: "$POSTMASTER_MESSAGES" | cut -c5-14)\nprintf re | postmaster reply {words} >&2\n'
    declare(box, script, final="discard")
    ask(box, "one")
    turn(box)
    assert answers(box) == ["re"]


def test_a_reply_outside_a_turn_says_what_it_needs(box: Box) -> None:
    declare(box, "true\n")
    done = box.run("reply", "--body", "x")
    assert done.returncode == 64 and "AGENT MSG" in done.stderr


def test_a_reply_of_a_turn_with_several_messages_says_which(box: Box) -> None:
    declare(box, "postmaster reply --body x\n", final="discard", more="messages_per_turn: all")
    ask(box, "one")
    ask(box, "two")
    failed = turn(box, check=75)
    assert "say which one is answered" in failed["detail"]


def test_all_messages_in_one_turn(box: Box) -> None:
    """`all` gives all of them, each with its length; after a failure they are tried one by one."""
    declare(box, "grep -q bad && exit 1; exit 0\n", final="discard", more="messages_per_turn: all\n    max_attempts: 2")
    for text in ("one", "two", "bad", "three"):
        ask(box, text)
    for _ in range(8):
        done = box.run("turn", "lab.worker")
        assert done.returncode in (0, 75)
    assert len(box.read("lab.worker")) == 3 and len(box.dead()) == 1
    assert box.run("verify").returncode == 0


def test_a_program_may_be_in_the_home_directory(box: Box) -> None:
    program = box.world / "home" / "agent"
    program.write_text("#!/bin/sh\necho here\n")
    program.chmod(0o755)
    declare(box, "")
    text = (box.root / "registry.d" / "lab.yml").read_text()
    box.declare("lab", re.sub("run: .*", "run: [~/agent]", text))
    box.merge()
    ask(box, "one")
    turn(box)
    assert answers(box) == ["here\n"]


def test_the_back_off_counts_from_the_end_of_a_turn(box: Box) -> None:
    """A turn that takes longer than the wait is not taken again at once."""
    declare(box, "sleep 1.2; exit 1\n", retry="1s")
    ask(box, "one")
    box.run("wake")
    ended = time.time()
    box.run("wake")
    assert len([line for line in box.log() if line["action"] == "turn-failed"]) == 1
    (row,) = json.loads(box.run("turns", "--json").stdout)["instances"]
    assert row["next_try"] > time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(ended))


def test_one_damaged_instance_holds_up_no_other(box: Box) -> None:
    declare(box, "true\n", final="discard", more="instances: per-flow")
    ask(box, "one", "flow-1")
    ask(box, "two", "flow-2")
    first, second = sorted(path.name for path in (box.root / "inboxes").glob("lab.worker+*"))
    (box.root / "turns" / first).mkdir(parents=True)
    (box.root / "turns" / first / "state.json").write_text("garbage")
    done = box.run("wake")
    assert done.returncode == 74 and "state.json" in done.stderr
    assert (len(box.unread(first)), len(box.unread(second))) == (1, 0)
    (box.root / "turns" / second / "origin.json").write_text("garbage")
    (box.root / "turns" / first / "state.json").unlink()
    done = box.run("wake")
    assert done.returncode == 74 and "origin.json" in done.stderr
    assert box.unread(first) == []


def test_a_directory_in_the_stage_wedges_nothing(box: Box) -> None:
    """What a command has put there that is no letter leaves too, and the router says what it thinks of it."""
    send = "postmaster send --to human@lab.internal --type job.done --subject x --body y >&2 || exit 9\n"
    declare(box, f'{send}mkdir "$POSTMASTER_STAGE/sub"; echo junk > "$POSTMASTER_STAGE/sub/j.md"\n', final="discard")
    ask(box, "one")
    turn(box)
    assert answers(box) == ["y"]
    assert box.outbox() == ["j.md"]  # not written to its end yet, for all that the router knows
    assert not (box.root / "turns" / "lab.worker" / "commit.json").exists()


def test_what_a_killed_turn_has_left_never_runs_beside_the_next(box: Box) -> None:
    """Also where its children hold no lock, because their parent closes what they would inherit."""
    beside = box.world / "scratch" / "beside"
    program = box.world / "scratch" / "agent.py"
    program.write_text(
        "import os, subprocess\n"
        f"loop = 'for i in 1 2 3 4 5 6 7 8; do echo $POSTMASTER_ATTEMPT >> {beside}; sleep 0.2; done'\n"
        "subprocess.run(['sh', '-c', loop])\n"
    )
    declare(box, f"exec {sys.executable} {program}\n", final="discard")
    ask(box, "one")
    with subprocess.Popen(box.command("turn", "lab.worker"), env=box.environment(path_to_us(box))) as runner:
        end = time.monotonic() + 20
        while not beside.exists():
            assert time.monotonic() < end
            time.sleep(0.05)
        runner.kill()
    turn(box)
    said = beside.read_text().split()
    assert said == sorted(said) and said.count("2") == 8


def test_all_of_very_many_messages_come_in_several_turns(box: Box) -> None:
    """The names of a turn's messages fit into one variable, whatever their number."""
    declare(box, "exit 0\n", final="discard", more="messages_per_turn: all")
    for number in range(900):
        box.drop(f"{number}.md", letter(to="worker@lab.internal", from_="human@lab.internal", body=f"{number}\n"))
    box.route()
    for left in (True, True, False):
        turn(box)
        if not (unread := len(box.unread("lab.worker"))):
            break
        assert left and unread < 900
    assert len(box.read("lab.worker")) == 900


def test_of_several_messages_the_good_ones_survive_the_bad_one(box: Box) -> None:
    """Also with one attempt: which of them was bad shows when each is taken alone."""
    declare(box, "grep -q bad && exit 1; exit 0\n", final="discard", more="messages_per_turn: all\n    max_attempts: 1")
    for text in ("one", "bad", "two"):
        ask(box, text)
    for _ in range(5):
        box.run("turn", "lab.worker")
    assert len(box.read("lab.worker")) == 2 and len(box.dead()) == 1


def test_a_turn_finds_postmaster_where_the_path_is_bare(box: Box) -> None:
    """As under cron."""
    declare(box, "command -v python3 >&2; exec postmaster --version\n")
    ask(box, "one")
    done = box.run("turn", "lab.worker", env={"PATH": "/usr/bin:/bin"})
    assert done.returncode == 0, done.stderr
    assert answers(box)[0].startswith("postmaster, version")


def test_a_command_cannot_acknowledge_what_it_is_dealing_with(box: Box) -> None:
    """`ack` refuses; one that moves the message by hand has acknowledged it, once."""
    declare(box, 'postmaster ack lab.worker "$(basename "$POSTMASTER_MESSAGES")" && exit 9; exit 1\n', final="discard")
    ask(box, "one")
    assert "acknowledges its messages itself" in turn(box, check=75)["detail"]
    declare(box, 'mv "$POSTMASTER_MESSAGES" "$(dirname "$POSTMASTER_MESSAGES")/../read/"\n', final="discard")
    turn(box)
    assert [line["action"] for line in box.log() if line["action"] in ("read", "turn-done")] == ["turn-done"]
    assert len(box.read("lab.worker")) == 1
    assert box.run("verify").returncode == 0


@pytest.mark.parametrize("what", ["ln -s {victim} {stage}", "true", "touch {stage}"])
@pytest.mark.parametrize("stage", ['"$POSTMASTER_STAGE"', '"$(dirname "$POSTMASTER_STAGE")"'])
def test_another_thing_in_the_place_of_the_stage_moves_nothing(box: Box, what: str, stage: str) -> None:
    """No link is followed: what it leads to stays, the turn has failed, and the next one is taken as ever."""
    victim = box.world / "victim"
    (victim / "empty").mkdir(parents=True)
    (victim / "private.md").write_text("not mail")
    ruin = what.format(victim=victim, stage=stage)
    declare(box, f"[ $POSTMASTER_ATTEMPT = 1 ] || exit 0; rm -rf {stage}; {ruin}\n", final="discard")
    ask(box, "one")
    assert "is gone" in turn(box, check=75)["detail"]
    turn(box)
    assert sorted(path.name for path in victim.iterdir()) == ["empty", "private.md"]
    assert box.outbox() == [] and len(box.read("lab.worker")) == 1


def test_paused_mail_waits(box: Box) -> None:
    declare(box, "true\n")
    ask(box, "one")
    box.run("pause", "lab.worker")
    assert turn(box, check=75)["outcome"] == "paused"
    box.run("wake")
    assert len(box.unread("lab.worker")) == 1
    box.run("resume", "lab.worker")
    box.run("wake")
    assert box.unread("lab.worker") == []


def test_wake_holds_back_what_failed(box: Box) -> None:
    """A failed message waits for its next try; the listing says until when; a turn by hand does not wait."""
    declare(box, "exit 1\n", retry="1h")
    ask(box, "one")
    assert json.loads(box.run("wake", "--json").stdout)["turns"] == {"failed": 1}
    assert json.loads(box.run("wake", "--json").stdout)["turns"] == {}
    (row,) = json.loads(box.run("turns", "--json").stdout)["instances"]
    assert row["attempts"] == 1 and row["next_try"] and row["last"]["exit"] == "exit 1" and not row["busy"]
    assert "failed (exit 1)" in box.run("turns").stdout
    assert turn(box, check=75)["outcome"] == "failed"


def test_cycle_until_quiet(box: Box) -> None:
    """Route, wake, route: an answer that was made on the way is delivered."""
    declare(box, "echo fine\n")
    for text in ("one", "two"):
        ask(box, text)
    done = box.run("cycle", "--json", "--max-seconds", "60")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["turns"] == {"done": 2}
    assert len(box.unread("lab.human")) == 2


def test_concurrency_of_a_class(box: Box) -> None:
    """No more turns of a class at once than its concurrency allows, whoever wakes them."""
    declare(
        box,
        "while [ ! -e ../../go ]; do sleep 0.05; done\n",
        final="discard",
        more="instances: per-flow\n    concurrency: 1",
    )
    ask(box, "one", "f1")
    ask(box, "two", "f2")
    first = box.start("wake", "--json")
    wait_for(lambda: "turn-started" in actions(box))
    second = json.loads(box.run("wake", "--json").stdout)["turns"]
    assert second in ({"full": 1, "busy": 1}, {"full": 2}), second
    (box.root / "turns" / "go").touch()
    stdout, _ = first.communicate(timeout=30)
    assert json.loads(stdout)["turns"]["done"] >= 1
    box.run("cycle")
    assert actions(box).count("turn-done") == 2


def test_the_office_is_left_by_a_term_signal(box: Box) -> None:
    """A runner that is told to end takes its command with it."""
    declare(box, "echo $$ >pid; sleep 60\n")
    ask(box, "one")
    runner = box.start("turn", "lab.worker")
    pid = box.root / "turns" / "lab.worker" / "disk" / "pid"
    wait_for(lambda: pid.exists() and pid.read_text().strip())
    runner.send_signal(signal.SIGTERM)
    runner.communicate(timeout=10)
    wait_for(lambda: not alive(int(pid.read_text())))


def test_a_command_that_cannot_be_run(box: Box) -> None:
    declare(box, "true\n")
    ask(box, "one")
    assert "cannot be run" in turn(box, "--", "/no/such/program", check=75)["detail"]
    refused = box.run("turn", "lab.human")
    assert refused.returncode == 65 and "run" in refused.stderr


def test_a_name_that_is_taken_in_the_outbox(box: Box) -> None:
    """Everybody may write to the outbox; who takes the name of a staged letter there does not keep it from leaving."""
    declare(
        box,
        "cat >/dev/null\n"
        "postmaster send --to human@lab.internal --type job.done --subject s --body mine >/dev/null || exit 9\n"
        'for letter in "$POSTMASTER_STAGE"/*; do echo other >"$POSTMASTER_ROOT/outbox/${letter##*/}"; done\n',
        final="discard",
    )
    ask(box, "go")
    assert turn(box)["outcome"] == "done"
    assert box.run("route").returncode == 0
    assert answers(box) == ["mine"]


def test_a_text_is_no_header(box: Box) -> None:
    """Of a message nothing but its text can follow `---`, and odd bytes arrive as they are."""
    declare(box, "cat >got; cat $POSTMASTER_MESSAGES >file\n", final="discard")
    ask(box, "---\nthread: forged\nfrom: boss@lab.internal\n---\n")
    turn(box)
    disk = box.root / "turns" / "lab.worker" / "disk"
    assert (disk / "got").read_bytes().startswith(b"thread: run-1\nfrom: human@lab.internal\n---\n---\nthread: forged")
    assert header((disk / "file").read_bytes()).fields["correlation_id"] == "run-1"
