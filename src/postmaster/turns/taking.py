"""Taking one turn of one instance: the messages, the command, the end."""

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from postmaster import acknowledging, delivery_log, durable, maildir, reading, reasons, refusals, times
from postmaster.delivery_log import Record
from postmaster.errors import PostmasterError, guarded
from postmaster.locks import locked
from postmaster.office import Office
from postmaster.reading import Message
from postmaster.turns import ending, instances, process
from postmaster.turns import rules as turn_rules
from postmaster.turns.ending import Ending
from postmaster.turns.home import Home, State, slot, unread
from postmaster.turns.instances import Instance, Origin
from postmaster.turns.material import Letter, environment, letters_of, write_stdin
from postmaster.turns.rules import Rules

STARTED: Final = "turn-started"
DONE: Final = "turn-done"
FAILED: Final = reasons.TURN_FAILED  # also the reason of a message that failed too often

_NAME_BYTES: Final = 200  # of a dead letter: below NAME_MAX, with room for what free_pair adds
_TAIL_BYTES: Final = 4096
_TAIL_LINES: Final = 5
_TAIL_CHARACTERS: Final = 800


@dataclass(frozen=True, slots=True)
class Taken:
    """What came of an attempt to take a turn.

    Attributes:
        outcome: done; failed (tried again later); dead (its messages are dead letters now); quiet (no unread mail);
            busy (a turn is under way); full (as many of the class as may be); paused.
        detail: in words.
    """

    outcome: str
    detail: str = ""
    exit: str = ""
    attempt: int = 0


Finish = Callable[[Instance, Message, bytes, str], None]  # stages the final message: instance, woken by, text, stage


def take(
    office: Office,
    instance: Instance,
    rules: Rules,
    *,
    first_delay: float,
    finish: Finish,
    hold_back: bool = False,
    clock: Callable[[], int] = time.time_ns,
) -> Taken:
    """Take one turn if there is unread mail.

    Args:
        first_delay: seconds between the first attempt and the second.
        finish: stages the final message of a turn.
        hold_back: not before the time of the next try.

    Raises:
        DiskFault, CannotCreate: the disk refused; the messages are unread still, or the next turn ends this one.
    """
    with slot(office, instance.class_id, rules.concurrency) as free:
        if not free:
            return Taken("full", f"{rules.concurrency} turns of {instance.class_id} are under way")
        home = Home(office, instance.id)
        with locked(home.lock_file) as mine:
            if mine is None:
                return Taken("busy", "a turn is under way")
            process.end_orphans(home)
            with locked(home.running_file) as running:
                if running is None:
                    return Taken("busy", "what an earlier turn has started runs still")
                ending.recover(office, home)
                turn = _Turn(office, home, instance, rules, first_delay, finish, clock)
                return turn.take(running, hold_back=hold_back)


def has_work(instance: Instance, home: Home, now_ns: int) -> bool:
    """Tell whether a turn is due: unread mail whose time has come, or a turn to be carried out to its end."""
    if os.path.lexists(home.commit_file):
        return True
    waiting = unread(instance.inbox)
    return bool(waiting) and home.read_state().next_try(waiting[0]) <= now_ns


class _Turn:
    def __init__(
        self,
        office: Office,
        home: Home,
        instance: Instance,
        rules: Rules,
        first_delay: float,
        finish: Finish,
        clock: Callable[[], int],
    ) -> None:
        self._office = office
        self._home = home
        self._instance = instance
        self._rules = rules
        self._first_delay = first_delay
        self._finish = finish
        self._clock = clock
        self._state = home.read_state()
        self._id = f"{times.compact_time(clock())}-{os.urandom(4).hex()}"

    def take(self, running: int, *, hold_back: bool) -> Taken:
        self._end_killed()
        if instances.is_paused(self._office, self._instance.id):
            return Taken("paused", "it is paused")
        letters = letters_of(self._instance, self._rules, self._state.attempts)
        if not letters:
            return Taken("quiet", "no unread mail")
        if hold_back and self._state.next_try(letters[0].name) > self._clock():
            return Taken("quiet", "its time has not come")
        self._begin_origin(letters[0])
        attempt = self._begin(letters)
        begun = time.monotonic()
        stage = ending.open_stage(self._office, self._home, self._id)
        guarded(write_stdin, self._home, self._instance, self._rules, letters)
        instances.make_disk(self._instance)
        ended = process.run(
            self._rules.run,
            self._home,
            self._instance.disk,
            environment(
                self._office, self._instance, self._rules, letters, turn_id=self._id, attempt=attempt, stage=stage
            ),
            running,
            self._rules.timeout,
        )
        if ended.code != 0 or ended.timed_out:
            return self._failed(letters, ended.shown, self._tail())
        if not ending.is_stage(stage):
            return self._failed(letters, "exit 0, but what it was to send is gone ($POSTMASTER_STAGE)", self._tail())
        try:
            silent = self._final_message(letters[0], stage)
        except PostmasterError as fault:
            return self._failed(letters, "exit 0, but its final message cannot be sent", str(fault))
        return self._done(letters, ended.shown, silent, stage, time.monotonic() - begun)

    # -- the beginning ---------------------------------------------------------------------------------------------

    def _begin_origin(self, first: Letter) -> None:
        flow, asker, message_id = (first.content.text(key) for key in ("correlation_id", "from", "id"))
        if flow and asker and message_id:
            self._instance = instances.begin_origin(self._office, self._instance, Origin(flow, asker, message_id))

    def _begin(self, letters: Sequence[Letter]) -> int:
        """Count the attempt and log it; return its number. Counted first: a turn that kills its runner counts too."""
        there = set(maildir.messages(self._instance.inbox, maildir.UNREAD))
        self._state.attempts = {name: one for name, one in self._state.attempts.items() if name in there}
        for one in letters:
            number = self._state.attempts.get(one.name, (0, 0))[0] + 1
            self._state.attempts[one.name] = (number, self._next_try(number))
        attempt = self._state.attempts[letters[0].name][0]
        lines = self._lines(letters, STARTED, lambda one: f"{self._count(one)}, turn {self._id}")
        self._state.current = {
            "turn": self._id,
            "names": [one.name for one in letters],
            "lines": lines,
            "since": delivery_log.position(self._office),
        }
        guarded(durable.make_directories, self._office.logs)
        guarded(self._home.write_state, self._state)
        delivery_log.append(self._office, [delivery_log.encode(line) for line in lines])
        return attempt

    def _next_try(self, number: int) -> int:
        return self._clock() + int(turn_rules.delay(number, self._first_delay) * 10**9)

    def _count(self, one: Letter) -> str:
        number = self._state.attempts[one.name][0]
        return f"attempt {number} of {max(number, self._rules.max_attempts)}"

    # -- the end ---------------------------------------------------------------------------------------------------

    def _final_message(self, woken_by: Letter, stage: str) -> str | None:
        """Stage the final message; return, in words, why there is none."""
        origin = self._instance.origin
        text = b""
        if self._rules.final_message != "discard":
            with open(durable.open_regular(self._home.stdout), "rb") as stream:
                text = stream.read(1 << 30)
        silent = turn_rules.answered(self._rules, origin.correlation_id if origin else None, text)
        if silent is None:
            self._finish(self._instance, woken_by.content, text, stage)
        return silent

    def _done(self, letters: Sequence[Letter], exit_: str, silent: str | None, stage: str, seconds: float) -> Taken:
        sent = list(ending.staged(stage))
        read = os.path.join(self._instance.inbox, maildir.READ)
        guarded(durable.make_directories, read)
        there = set(maildir.messages(self._instance.inbox, maildir.UNREAD))
        kept = [one for one in letters if one.name in there]  # the others the command has acknowledged itself
        reads = [(one.name, maildir.free_name(read, one.name)) for one in kept]
        said = f"sent {len(sent)}" if sent else "sent nothing"
        said += f"; no final message: {silent}" if silent else ""
        detail = f"{exit_}, {seconds:.1f} s, {said}, turn {self._id}"
        lines = [
            {
                **self._about(one),
                "time": self._now(),
                "action": acknowledging.READ,
                "path": self._shown(maildir.READ, target),
            }
            for one, (_, target) in zip(kept, reads, strict=True)
        ]
        lines += self._lines(letters, DONE, lambda one: f"{self._count(one)}: {detail}")
        self._commit(letters, lines, "done", exit_, letters_=sent, reads=reads)
        return Taken("done", detail, exit_)

    def _failed(self, letters: Sequence[Letter], exit_: str, why: str) -> Taken:
        """End a turn that failed: its letters are dropped, its messages stay unread, or die."""
        attempts = self._state.attempts
        lines, dead, over = [], [], []
        tail = f": {why}" if why else ""
        for one in letters:
            detail = f"{self._count(one)}: {exit_}, turn {self._id}{tail}"
            lines += self._lines([one], FAILED, lambda _, detail=detail: detail)  # type: ignore[misc]
            number = attempts[one.name][0]
            attempts[one.name] = (number, self._next_try(number))  # from its end: it may have taken longer than that
            if number >= self._rules.max_attempts and len(letters) == 1:  # of several nobody knows which one it was
                record = self._dead(one, detail)
                lines.append(record)
                dead.append((one.name, os.path.basename(record["path"]), refusals.reason_file([record]).decode()))
                over.append(one)
        number = attempts[letters[0].name][0]
        self._commit(over, lines, "failed", exit_, dead=dead)
        return Taken("dead" if over else "failed", f"{exit_}{tail}", exit_, number)

    def _dead(self, one: Letter, detail: str) -> Record:
        name = refusals.free_pair(self._office.dead_letter, self._name_of_its_own(one.name))
        reason = reasons.REASONS[FAILED]
        return {
            **self._about(one),
            "time": self._now(),
            "action": reason.action,
            "path": self._office.shown(os.path.join(self._office.dead_letter, name)),
            "reason": reason.name,
            "status": reason.status,
            "detail": detail,
        }

    def _name_of_its_own(self, name: str) -> str:
        """Return a name that no other instance, and no router, can take in dead-letter/ before this one gets there."""
        stem, dot, extension = name.rpartition(".")
        unique = f"{stem}-{self._id.rpartition('-')[2]}{dot}{extension}"
        return unique if stem and len(os.fsencode(unique)) <= _NAME_BYTES else name

    def _commit(
        self,
        over: Sequence[Letter],
        lines: list[Record],
        outcome: str,
        exit_: str,
        *,
        letters_: list[str] | None = None,
        reads: list[tuple[str, str]] | None = None,
        dead: list[tuple[str, str, str]] | None = None,
    ) -> None:
        """Commit the end; `over` are the messages that are not tried again."""
        current = self._state.current or {}
        gone = {one.name for one in over}
        after = State(
            {name: one for name, one in self._state.attempts.items() if name not in gone},
            None,
            {"turn": self._id, "time": self._now(), "exit": exit_, "outcome": outcome},
        )
        since: Any = current.get("since", (0, 0))
        everything = [*current.get("lines", []), *lines]
        ended = Ending(
            self._id,
            self._instance.inbox,
            (since[0], since[1]),
            everything,
            after,
            letters_ or [],
            reads or [],
            dead or [],
        )
        self._state = after
        ending.commit(self._office, self._home, ended)

    def _end_killed(self) -> None:
        """End, as failed, the turn of a runner that was killed before it committed."""
        current = self._state.current
        if current is None:
            return
        self._id, own = str(current["turn"]), self._id
        there = set(maildir.messages(self._instance.inbox, maildir.UNREAD))
        letters = []
        for name in current["names"]:
            if name in there and name in self._state.attempts:
                letters.append(Letter(name, reading.load(os.path.join(self._instance.inbox, maildir.UNREAD, name))))
        if letters:
            self._failed(letters, "its runner was killed", "")
        else:
            self._commit([], [], "failed", "its runner was killed")
        self._id = own

    # -- the log ---------------------------------------------------------------------------------------------------

    def _lines(self, letters: Sequence[Letter], action: str, detail: Callable[[Letter], str]) -> list[Record]:
        """Return a line about the turn for each of its messages; one that has no flow is told of by the agent alone."""
        found = []
        for one in letters:
            about = self._about(one)
            kept: Record = {key: about[key] for key in ("id", "correlation_id") if key in about}
            found.append(
                {**kept, "time": self._now(), "action": action, "agent": self._instance.id, "detail": detail(one)}
            )
        return found

    def _about(self, one: Letter) -> Record:
        to = one.content.to
        reached = self._instance.address if self._instance.address in to else to[0] if len(to) == 1 else None
        return {**acknowledging.log_fields(reached, one.content), "agent": self._instance.id}

    def _shown(self, folder: str, name: str) -> str:
        return self._office.shown(os.path.join(self._instance.inbox, folder, name))

    def _now(self) -> str:
        return times.timestamp(self._clock())

    def _tail(self) -> str:
        """Return the last lines that the command wrote to stderr, on one line."""
        try:
            with open(durable.open_regular(self._home.stderr), "rb") as stream:
                stream.seek(max(0, os.fstat(stream.fileno()).st_size - _TAIL_BYTES))
                raw = stream.read(_TAIL_BYTES)
        except OSError:
            return ""
        shown = [line for line in raw.decode("utf-8", "backslashreplace").splitlines() if line.strip()][-_TAIL_LINES:]
        text = " | ".join("".join(c if c.isprintable() else " " for c in line).strip() for line in shown)
        return text[-_TAIL_CHARACTERS:]
