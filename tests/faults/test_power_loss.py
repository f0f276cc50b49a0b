"""Cut the power at every system call: a real ext4 file system goes on with what its disk held.

What a killed process wrote and never synced is in the page cache, not on the disk: a block copy of the disk lacks it.
The copy takes the place of the disk, as after a power failure. An ordinary test run takes a sample;
`scripts/power-loss` takes every call.
"""

import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from faults.sweep import CHANGING, Point, Scene, Sweep, assert_nothing_lost, assert_same_end, collect, sample
from faults.test_commands import CASES, Case, Desk, command_points, made
from faults.test_turn_sweep import Turns
from faults.warm import Warm

Record = Callable[[str, object], None]

_OPTIONS = "noatime,commit=600"  # the file system commits when it is asked to, and not by itself
_IMAGE_BYTES = 24 * 1024 * 1024
_END = Point("exit", 1, "the end of the command")  # power is lost just after a command that succeeded


class BlockDisk:
    """An ext4 file system in an image file, mounted through a loop device at `place`.

    Raises:
        OSError, subprocess.CalledProcessError: no loop device can be mounted here.
    """

    def __init__(self, directory: Path) -> None:
        self.place = directory / "disk"
        self.place.mkdir(parents=True)
        self._image = directory / "disk.img"
        with open(self._image, "wb") as image:
            image.truncate(_IMAGE_BYTES)
        _run("mkfs.ext4", "-q", "-F", str(self._image))
        self._device = _run("losetup", "--find", "--show", str(self._image)).strip()
        self._mount()

    def lose_power(self) -> None:
        """Go on with what the disk held at this moment; the page cache is lost."""
        held = self._image.with_suffix(".held")
        shutil.copyfile(self._image, held)
        _run("umount", str(self.place))
        shutil.copyfile(held, self._image)
        _run("blockdev", "--flushbufs", self._device)
        self._mount()

    def sync(self) -> None:
        """Write everything to the disk."""
        _run("sync", "-f", str(self.place))

    def remove(self) -> None:
        """Unmount it."""
        for command in (("umount", "-l", str(self.place)), ("losetup", "-d", self._device)):
            subprocess.run(command, capture_output=True, check=False)

    def _mount(self) -> None:
        _run("mount", "-o", _OPTIONS, self._device, str(self.place))


def _run(*arguments: str) -> str:
    return subprocess.run(arguments, capture_output=True, check=True, text=True).stdout


@pytest.fixture(scope="module")
def disk(directory: Path, warm: Warm, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BlockDisk]:
    """A disk whose power can be cut."""
    place = directory / tmp_path_factory.mktemp("power").name
    try:
        block_disk = BlockDisk(place)
    except (OSError, subprocess.CalledProcessError) as fault:
        pytest.skip(f"no ext4 image can be mounted here (this needs root and a loop device): {fault}")
    yield block_disk
    block_disk.remove()


class PowerSweep(Sweep):
    """A sweep whose kills are power failures."""

    def __init__(self, warm: Warm, disk: BlockDisk, kind: str, patch: str | None = None) -> None:
        self._disk = disk
        super().__init__(warm, disk.place / (patch or "right"), kind, patch)

    def build(self) -> Scene:
        """Make the scene anew, durably."""
        scene = super().build()
        self._disk.sync()
        return scene

    def cut_power(self, point: Point) -> None:
        """Lose power at this call; the mail is whole, and the next run ends as an undisturbed one does."""
        scene = self.build()
        if point is _END:
            self._recover()
        else:
            self._kill(point)
        self._disk.lose_power()
        assert_nothing_lost(scene, self.reference)
        self._recover()
        assert_same_end(scene, self.reference)
        self._assert_settled()
        self._assert_goes_on(scene)


@pytest.mark.parametrize(("kind", "patch"), [("few", "index_every_line"), ("mixed", None), ("many", None)])
def test_route_loses_power(warm: Warm, disk: BlockDisk, record_property: Record, kind: str, patch: str | None) -> None:
    """Power lost at any call of `route`: each message once, whole, numbered once, logged once; no litter."""
    sweep = PowerSweep(warm, disk, kind, patch)
    sweep.build()
    chosen = [*sample(sweep.points(CHANGING), 25), _END]
    record_property("power failures", len(chosen))
    collect(sweep.cut_power, chosen)


@pytest.mark.parametrize("case", CASES, ids=[type(case).__name__.lower() for case in CASES])
def test_a_command_loses_power(warm: Warm, disk: BlockDisk, record_property: Record, case: Case) -> None:
    """Power lost at any call of a command: every message in one place; the command run again completes it."""
    root = disk.place / "commands"

    def cut_power(point: Point) -> None:
        desk = made(case, root, warm)
        disk.sync()
        if point is _END:
            desk.do(*case.arguments)
        else:
            inject = f"inject={point.name}:signal=KILL:when={point.number}"
            assert desk.run(*case.arguments, strace=("-e", f"trace={point.name}", "-e", inject)).killed
        disk.lose_power()
        case.holds(Desk(root, warm))
        case.again(Desk(root, warm))

    chosen = [*sample(command_points(case, root, warm, CHANGING), 5), _END]
    record_property("power failures", len(chosen))
    collect(cut_power, chosen)


def test_a_turn_loses_power(disk: BlockDisk, record_property: Record) -> None:
    """Power lost at any call of a turn: each message is done once, and each answer is sent once."""
    turns = Turns(disk.place / "turns")

    def cut_power(point: Point) -> None:
        turns.reset()
        disk.sync()
        turns.traced(*([] if point is _END else ["-e", f"inject={point.name}:signal=KILL:when={point.number}"]))
        disk.lose_power()
        turns.check()

    chosen = [*sample([point for point in turns.points() if point.name in CHANGING], 5), _END]
    record_property("power failures", len(chosen))
    collect(cut_power, chosen)


def test_a_missing_sync_is_noticed(warm: Warm, disk: BlockDisk) -> None:
    """A router that does not sync its copies passes every kill, and is found out when the power goes."""
    sweep = PowerSweep(warm, disk, "few", "forget_to_sync_copies")
    sweep.build()
    with pytest.raises(AssertionError, match=r"\d+ of \d+ failed"):
        collect(sweep.cut_power, sweep.points(("renameat2", "unlink", "write", "fsync")))
