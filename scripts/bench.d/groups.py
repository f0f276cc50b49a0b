"""What is measured: groups of contenders that run side by side, and the rows of the table they give."""

import os
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from scene import FLOWS, SENDER, OfficeScene, Scene, Workshop
from stopwatch import Cost, Failure, Runs, measure

Measure = Callable[[], Cost]


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table.

    Attributes:
        id: names the row in the JSON.
        work, measured, against: what was done, what it took, and what that is compared with.
        value: the ratio (or the MiB) that the target is about; None if it could not be measured here.
        form: how `value` is written, as in "{:.2f}x".
        target: None if there is none. `at_least` tells on which side of it is well.
    """

    id: str
    work: str
    measured: str
    against: str
    value: float | None
    form: str = "{:.2f}x"
    target: float | None = None
    at_least: bool = False

    @property
    def reached(self) -> bool | None:
        """Whether the target is reached; None if there is none, or nothing was measured."""
        if self.target is None or self.value is None:
            return None
        return self.value >= self.target if self.at_least else self.value <= self.target

    def as_json(self) -> dict[str, Any]:
        """Return the row as the JSON file has it."""
        return {**asdict(self), "reached": self.reached}


@dataclass(frozen=True, slots=True)
class Plan:
    """How much is measured."""

    letters: int = 10_000
    shell_letters: int = 200
    backlog: int = 100_000
    rounds: int = 5
    backlog_rounds: int = 3
    growth_letters: int = 1_000
    growth_rounds: int = 9
    history: int = 1_000_000
    unindexed: int = 4_999
    agents: int = 10_000
    living: int = 10_000
    starts: int = 31


QUICK: Final = Plan(
    letters=100,
    shell_letters=5,
    backlog=300,
    rounds=1,
    backlog_rounds=1,
    growth_letters=20,
    growth_rounds=1,
    history=6_000,
    unindexed=100,
    agents=60,
    living=60,
    starts=2,
)


class Bench:
    """Runs the groups one after the other and keeps what they found."""

    def __init__(self, workshop: Workshop, plan: Plan) -> None:
        self.workshop = workshop
        self.plan = plan
        self.rows: list[Row] = []
        self.runs: dict[str, list[Runs]] = {}
        self._offices: dict[str, OfficeScene] = {}
        self._plain_scene = Scene(workshop.directory / "plain")

    def run(self, group: str) -> None:
        """Measure one group.

        Raises:
            Failure: a contender did not do its work; a slow one is no failure.
        """
        GROUPS[group](self, group)

    # -- contenders --------------------------------------------------------------------------------------------

    def _side_by_side(self, group: str, rounds: int, contenders: Sequence[tuple[str, int, Measure]]) -> dict[str, Runs]:
        """Run every contender once a round, beginning with another one each time."""
        found = {name: Runs(name, letters) for name, letters, _ in contenders}
        for number in range(rounds):
            if number % max(1, rounds // 10) == 0:
                say(f"{group}: round {number + 1} of {rounds}")
            turn = number % len(contenders)
            for name, _, step in (*contenders[turn:], *contenders[:turn]):
                found[name].costs.append(step())
        self.runs.setdefault(group, []).extend(found.values())
        return found

    def _measure(self, *arguments: str) -> Cost:
        return measure(arguments, self.workshop.environment, self.workshop.errors)

    def _postmaster(self, scene: OfficeScene, *arguments: str) -> Cost:
        return self._measure(*self.workshop.postmaster, "--root", str(scene.root), *arguments)

    def _pass(self) -> Cost:
        return self._measure(sys.executable, "-c", "pass")

    def _office(self, group: str, agents: int = 10) -> OfficeScene:
        """Return an office that had no mail but this group's; the one with many agents takes long to make."""
        name = f"office-{group}" if agents == 10 else f"office-{agents}"
        if name not in self._offices:
            say(f"making an office of {agents:,} agents")
            self._offices[name] = OfficeScene(self.workshop, name, agents=agents)
        return self._offices[name]

    def _route(self, scene: OfficeScene, letters: int, *command: str) -> Measure:
        """Return the measuring of a run; `command` is another than postmaster's."""

        def step() -> Cost:
            scene.prepare(letters)
            cost = self._measure(*(command or self.workshop.postmaster), "--root", str(scene.root), "route")
            scene.check(letters)
            return cost

        return step

    def _plain(self, letters: int, folder: str, lines: int | None, *arguments: str) -> Measure:
        scene = self._plain_scene

        def step() -> Cost:
            scene.prepare(letters)
            cost = self._measure(*arguments[:-1], str(scene.root), *arguments[-1].split())
            scene.check(letters, folder, lines=lines)
            return cost

        return step

    def _limit(self, letters: int) -> list[tuple[str, int, Measure]]:
        """Return the C program as a contender, if it could be compiled."""
        if self.workshop.limit is None:
            return []
        step = self._plain(letters, "unread", letters, self.workshop.limit, str(FLOWS))
        return [(f"C limit {letters}", letters, step)]

    # -- groups ------------------------------------------------------------------------------------------------

    def rate(self, group: str) -> None:
        """Measure 10,000 letters against the limit, the standard library and the shell."""
        plan, tools = self.plan, self.workshop.tools
        letters, few = plan.letters, plan.shell_letters
        maildir = self._plain(letters, "Maildir/new", None, sys.executable, str(tools / "maildir_add.py"), str(FLOWS))
        shell = self._plain(few, "unread", few, "/bin/sh", str(tools / "shell-router"), "")
        found = self._side_by_side(
            group,
            plan.rounds,
            [
                ("postmaster", letters, self._route(self._office(group), letters)),
                *self._limit(letters),
                ("Maildir.add", letters, maildir),
                ("shell router", few, shell),
            ],
        )
        for row_id, name, what, target in (
            ("limit", f"C limit {letters}", "C, the needed system calls only", 0.5),
            ("maildir", "Maildir.add", "mailbox.Maildir.add and unlink", 1.5),
            ("shell", "shell router", f"a plain shell router ({few:,} letters)", 60.0),
        ):
            other = found.get(name)
            self._add(
                row_id,
                f"{letters:,} letters",
                rate(found["postmaster"]),
                f"{what}: {rate(other) if other else 'no C compiler here'}",
                1 / found["postmaster"].times(other) if other else None,
                target=target,
                at_least=True,
            )

    def sizes(self, group: str) -> None:
        """Measure 1 to 100,000 letters, and what that takes of memory."""
        plan = self.plan
        office = self._office(group)
        sizes = sorted({1, max(10, plan.letters // 100), plan.letters, plan.backlog})
        contenders: list[tuple[str, int, Measure]] = []
        for letters in sizes:
            contenders.append((f"postmaster {letters}", letters, self._route(office, letters)))
            contenders.extend(self._limit(letters) if letters > 1 else [])
        contenders.append(("python -c pass", 1, self._pass))
        found = self._side_by_side(group, plan.backlog_rounds, contenders)
        one = found["postmaster 1"]
        start = found["python -c pass"]
        self._add(
            "size-1", "1 letter", f"{one.seconds * 1000:.0f} ms", f"python -c pass: {ms(start)}", one.times(start)
        )
        for place, letters in zip(("100", "10000", "100000"), sizes[1:], strict=True):
            mine, other = found[f"postmaster {letters}"], found.get(f"C limit {letters}")
            against = f"C limit: {rate(other)}" if other else "no C compiler here"
            value = 1 / mine.times(other) if other else None
            self._add(f"size-{place}", f"{letters:,} letters", rate(mine), against, value)
        most, usual = found[f"postmaster {plan.backlog}"], found[f"postmaster {plan.letters}"]
        self._add(
            "linear",
            f"{plan.backlog:,} letters waiting, time per letter",
            f"{most.seconds / most.letters * 1e6:.0f} us",
            f"{plan.letters:,} letters: {usual.seconds / usual.letters * 1e6:.0f} us",
            most.times(usual),
            target=1.15,
        )
        ends = [found.get(f"C limit {letters}") for letters in (plan.backlog, plan.letters)]
        growth = ends[0].times(ends[1]) if ends[0] and ends[1] else None
        self._add("linear-limit", "the C limit's growth between the same two", "", "", growth)
        peak = most.peak
        work = f"peak memory, {plan.backlog:,} letters"
        self._add("memory", work, f"{peak:.0f} MiB", "", peak, form="{:.0f} MiB", target=150)

    def history(self, group: str) -> None:
        """Measure a run of 1,000 letters with more and more history behind it."""
        plan = self.plan
        scenes = {0: self._office(group)}
        for lines in sorted({plan.unindexed, plan.history // 10, plan.history}):
            say(f"{group}: making {lines:,} lines")
            scenes[lines] = OfficeScene(self.workshop, f"history-{lines}")
            scenes[lines].with_history(lines, indexed=lines != plan.unindexed)
        letters = plan.growth_letters
        found = self._side_by_side(
            group,
            plan.growth_rounds,
            [(f"{lines} lines", letters, self._route(scene, letters)) for lines, scene in scenes.items()],
        )
        none = found["0 lines"]
        for row_id, lines, note in (
            ("history-tail", plan.unindexed, " that the index does not hold yet (the most)"),
            ("history-tenth", plan.history // 10, ""),
            ("history", plan.history, ""),
        ):
            runs = found[f"{lines} lines"]
            target = 1.15 if row_id == "history" else None
            work = f"{letters:,} letters, {lines:,} lines of history{note}"
            self._add(row_id, work, ms(runs), f"no history: {ms(none)}", runs.times(none), target=target)
            scenes[lines].remove()

    def agents(self, group: str) -> None:
        """Measure a run of 1,000 letters with a small and a large registry."""
        plan, letters = self.plan, self.plan.growth_letters
        found = self._side_by_side(
            group,
            plan.growth_rounds,
            [
                (f"{agents} agents", letters, self._route(self._office(group, agents), letters))
                for agents in (10, plan.agents)
            ],
        )
        few, many = found["10 agents"], found[f"{plan.agents} agents"]
        work = f"{letters:,} letters, {plan.agents:,} agents"
        self._add("agents", work, ms(many), f"10 agents: {ms(few)}", many.times(few), target=1.15)

    def directory(self, group: str) -> None:
        """Measure what the directory of live instances costs: the layer itself, and many who are alive."""
        plan, letters = self.plan, self.plan.growth_letters
        nobody = self._office(group)
        nobody.with_directory(0)
        without = (sys.executable, str(self.workshop.tools / "without_directory.py"))
        found = self._side_by_side(
            group,
            plan.rounds,
            [
                ("with the directory", plan.letters, self._route(nobody, plan.letters)),
                ("without it", plan.letters, self._route(nobody, plan.letters, *without)),
            ],
        )
        mine, other = found["with the directory"], found["without it"]
        work = f"{plan.letters:,} letters, nobody alive in the directory"
        self._add("directory-empty", work, rate(mine), f"without it: {rate(other)}", mine.times(other), target=1.05)
        scenes = {"0 alive": nobody}
        for name, living, to_them in (
            (f"{plan.living} alive", plan.living, False),
            ("to 8 alive", 8, True),
            (f"to 8 of {plan.living} alive", plan.living, True),
        ):
            say(f"{group}: making an office, {name}")
            scenes[name] = OfficeScene(self.workshop, f"directory-{len(scenes)}")
            scenes[name].with_directory(living, to_them=to_them)
        found = self._side_by_side(
            group, plan.growth_rounds, [(name, letters, self._route(scene, letters)) for name, scene in scenes.items()]
        )
        for row_id, what, many, few in (
            ("directory", "", f"{plan.living} alive", "0 alive"),
            ("directory-names", " to live instances", f"to 8 of {plan.living} alive", "to 8 alive"),
        ):
            mine, other = found[many], found[few]
            work = f"{letters:,} letters{what}, {plan.living:,} alive"
            against = f"{few.removeprefix('to ')}: {ms(other)}"
            self._add(row_id, work, ms(mine), against, mine.times(other), target=1.15)

    def empty(self, group: str) -> None:
        """Measure a run that finds nothing to do."""
        sizes = (10, self.plan.agents)
        contenders: list[tuple[str, int, Measure]] = [("python -c pass", 0, self._pass)]
        for agents in sizes:
            office = self._office(group, agents)
            office.prepare(0)
            contenders.append((f"{agents} agents", 0, lambda office=office: self._postmaster(office, "route")))
        for _, _, step in contenders:
            step()
        found = self._side_by_side(group, self.plan.starts, contenders)
        start = found["python -c pass"]
        for row_id, agents in zip(("empty", "empty-agents"), sizes, strict=True):
            runs = found[f"{agents} agents"]
            work = f"empty run, {agents:,} agents"
            self._add(row_id, work, ms(runs), f"python -c pass: {ms(start)}", runs.times(start), target=4)

    def urgent(self, group: str) -> None:
        """Measure one urgent message, from the sender's call to the inbox."""
        office = self._office(group)
        office.prepare(0)
        number = 0

        def send(*more: str) -> Cost:
            nonlocal number
            number += 1
            to = "desk-0@council.internal"
            common = ("--to", to, "--from", SENDER, "--type", "council.evaluate", "--correlation", "urgent")
            text = ("--subject", "please stop", "--body", f"Stop the rollout, number {number}.")
            return self._postmaster(office, "send", *common, *text, *more)

        def arrived(step: Measure) -> Measure:
            def checked() -> Cost:
                cost = step()
                if len(os.listdir(office.root / "inboxes" / "council.desk-0" / "unread")) != number:
                    raise Failure("the urgent message has not arrived")
                return cost

            return checked

        def send_then_route() -> Cost:
            first, second = send(), self._postmaster(office, "route", "--now")
            return Cost(
                first.wall + second.wall,
                first.user + second.user,
                first.system + second.system,
                max(first.peak, second.peak),
            )

        contenders: list[tuple[str, int, Measure]] = [
            ("python -c pass", 0, self._pass),
            ("send --now", 0, arrived(lambda: send("--now"))),
            ("send, route --now", 0, arrived(send_then_route)),
        ]
        for _, _, step in contenders:
            step()
        found = self._side_by_side(group, self.plan.starts, contenders)
        start = found["python -c pass"]
        for row_id, name in (("urgent", "send --now"), ("urgent-two", "send, route --now")):
            runs = found[name]
            work = f"one urgent message: `{name.replace(', ', '` and `')}`"
            self._add(row_id, work, ms(runs), f"python -c pass: {ms(start)}", runs.times(start))

    def _add(
        self,
        row_id: str,
        work: str,
        measured: str,
        against: str,
        value: float | None,
        *,
        form: str = "{:.2f}x",
        target: float | None = None,
        at_least: bool = False,
    ) -> None:
        self.rows.append(Row(row_id, work, measured, against, value, form, target, at_least))

    def table(self) -> list[Row]:
        """Return the rows in the order of the table."""
        return sorted(self.rows, key=lambda row: ROWS.index(row.id))

    def figures(self) -> dict[str, list[dict[str, Any]]]:
        """Return every run, for the chart and for whoever wants to know more."""
        return {
            group: [
                {
                    "contender": runs.contender,
                    "letters": runs.letters,
                    "seconds": round(runs.seconds, 6),
                    "rounds": [round(cost.wall, 6) for cost in runs.costs],
                    "user": round(statistics.median(cost.user for cost in runs.costs), 6),
                    "system": round(statistics.median(cost.system for cost in runs.costs), 6),
                    "peak_mib": round(runs.peak, 1),
                }
                for runs in found
            ]
            for group, found in self.runs.items()
        }


# In the order in which they run: what is small before what fills the disk's nearest places with files.
GROUPS: Final[dict[str, Callable[[Bench, str], None]]] = {
    "empty": Bench.empty,
    "urgent": Bench.urgent,
    "agents": Bench.agents,
    "directory": Bench.directory,
    "history": Bench.history,
    "rate": Bench.rate,
    "sizes": Bench.sizes,
}
# In the order of the table.
ROWS: Final = (
    *("limit", "maildir", "shell"),
    *("size-1", "size-100", "size-10000", "size-100000", "linear", "linear-limit", "memory"),
    *("history-tail", "history-tenth", "history", "agents"),
    *("directory-empty", "directory", "directory-names"),
    *("empty", "empty-agents", "urgent", "urgent-two"),
)


def say(text: str) -> None:
    """Say on stderr what is going on."""
    sys.stderr.write(f"scripts/bench: {text}\n")


def rate(runs: Runs) -> str:
    """Return letters per second as people read them."""
    return f"{runs.rate:,.0f}/s"


def ms(runs: Runs) -> str:
    """Return the median time in milliseconds."""
    return f"{runs.seconds * 1000:,.0f} ms"
