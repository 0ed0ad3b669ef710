"""`make torture` in short, and its own instruments."""

import subprocess
import sys

import pytest
from torture import damage, disks, kills, pairs, soak, tiny
from torture.report import Broken, Report, wanted
from torture.watch import Moment, Watch

# A few attacks of each kind


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return tmp_path_factory.mktemp("torture")


@pytest.fixture(scope="module")
def made(root):
    return tiny.finished_run(root / "made")


@pytest.fixture
def report():
    """Return a report that has to be free of failures in the end."""
    report = Report()
    yield report
    assert not report.reasons
    assert report.answered


@pytest.mark.slow
def test_killed_training_ends_as_if_nobody_had_killed_it(root, made, report):
    (story,) = (story for story in kills.stories(root, made) if story.name == "train on")
    kills.torture(story, root, 1, 2, report)
    assert report.places.total() == 2


@pytest.mark.slow
@pytest.mark.parametrize("what", ["evaluate"])
def test_full_disk(root, made, what, report):
    disks.full(root, made, what, report)


@pytest.mark.slow
def test_two_train_in_the_same_instant(root, made, report):
    pairs.same_instant(root, made, report)


@pytest.mark.slow
def test_damaged_newest_checkpoint(root, made, report):
    damage.newest(root, made, "translate: flipped bits in data", 1, report)


# The instruments

WRITER = """
import pathlib, sys, time
folder = pathlib.Path(sys.argv[1]) / "new"
folder.mkdir()
time.sleep(1)
(folder / "a").write_bytes(b"1")
(folder / "b").write_bytes(b"2")
time.sleep(60)
"""


def test_watch_sees_a_write_in_a_new_folder_as_it_happens(tmp_path):
    with Watch(tmp_path) as watch:
        writer = subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path)])
        with tiny.ended(writer):
            events = watch.follow(writer, Moment(2), within=60)
        assert writer.returncode == -9
    assert str(events[0].path) == "new"
    assert str(events[1].path) == "new/a"
    assert all(event.is_write for event in events if str(event.path) == "new")


def test_watch_ends_with_the_process_or_the_time(tmp_path):
    with Watch(tmp_path) as watch:
        with tiny.ended(subprocess.Popen([sys.executable, "-c", ""])) as short:
            assert watch.follow(short, Moment(1), within=60) == []
        with tiny.ended(subprocess.Popen(["sleep", "60"])) as long:
            assert watch.follow(long, Moment(0, 0.05), within=60) == []
            with pytest.raises(TimeoutError):
                watch.follow(long, Moment(1), within=0.05)


def test_report_counts_what_broke():
    report = Report(until=0)
    with report.attack("kill", "1"):
        wanted(True, "")
    with report.attack("kill", "2"):
        wanted(False, "it differs")
    report.leave_out("kill", "the time is up", 3)
    assert not report.has_time
    assert "| kill | 2 | 1 | 1 | 3 |" in report.lines()
    assert report.reasons == ["kill, 2: Broken: it differs"]


@pytest.mark.parametrize(
    ("errors", "reason"),
    [
        ("Traceback (most recent call last):\nerror: d: full", "traceback"),
        ("it went wrong", "no error"),
        ("error: " + "d" * 500, "507 characters"),
        ("error: full", "does not name"),
    ],
)
def test_a_refusal_is_one_short_line_with_the_path(errors, reason):
    tiny.check_refusal("a warning\nerror: d: full\n", "d")
    with pytest.raises(Broken, match=reason):
        tiny.check_refusal(errors, "d")


@pytest.mark.parametrize("rise", [0, 1, 10])
def test_soak_tells_a_leak_from_a_rise_that_ends(rise):
    """In 60 minutes memory rises for the first half, or on to the end."""
    samples = soak.Samples(process=None)
    for number in range(360):
        memory = 1000 + min(number, 180) + rise * max(0, number - 180)
        samples.taken.append({"memory_mb": memory, "threads": 9, "files": 9 + number % 2})
    if rise == 0:
        samples.check()
    else:
        with pytest.raises(Broken, match="memory_mb rose"):
            samples.check()
