"""The log of the paths that a script has written."""

from pathlib import Path

from echelon.checkpoint.written import append, read
from echelon.train.files.written_paths import WrittenPaths


def test_half_a_line_of_a_killed_process_is_left_out(tmp_path: Path) -> None:
    log = tmp_path / "checkpoints" / "written.jsonl"
    append(str(log), "best.pt", was_there=False)
    append(str(log), "data\udce9.csv", was_there=True)  # no valid UTF-8
    with log.open("a") as file:
        file.write('{"path": "ha')
    assert read(str(log)) == [("best.pt", False), ("data\udce9.csv", True)]


def test_line_behind_half_a_line(tmp_path: Path) -> None:
    """What a full disk has cut, or somebody altered, costs no other line."""
    log = tmp_path / "written.jsonl"
    log.write_bytes(b'{"path": "ha')
    append(str(log), "best.pt", was_there=False)
    with log.open("ab") as file:
        file.write(b'\xff\n[1]\n{"path": 3}\n')
    append(str(log), "last.pt", was_there=True)
    assert read(str(log)) == [("best.pt", False), ("last.pt", True)]


def test_full_disk_costs_the_log_and_not_the_file() -> None:
    """The script writes its file elsewhere; one line says what is lost."""
    said: list[str] = []
    written = WrittenPaths()
    written.log_to("/dev/full", said.append)
    written.note("best.pt")
    written.note("last.pt")
    assert written.before == {"best.pt": False, "last.pt": False}
    (line,) = said
    assert line.startswith("note: cannot write /dev/full: the disk is full; ")


def test_no_log_has_no_paths(tmp_path: Path) -> None:
    assert read(str(tmp_path / "written.jsonl")) == []


def test_file_of_after_the_checkpoint_is_absent_until_it_is_written_again(tmp_path: Path) -> None:
    """Also once the loop is computed again; a file that the checkpoint knows is there from then on."""
    early, late, old = (str(tmp_path / name) for name in ("early.pt", "late.pt", "old.csv"))
    for path in (early, late, old):
        Path(path).touch()
    written = WrittenPaths()
    written.repeat({early: False}, [(early, False), (late, False), (old, True)], (1, []))
    assert written.others == {old}
    assert [written.seen(path) == path for path in (early, late, old)] == [False, False, True]
    written.note(early)
    assert written.seen(early) == early
    written.go_on()
    assert written.seen(late) != late
    written.note(late)
    assert written.seen(late) == late
    assert written.before == {early: False, late: False}


def test_file_that_changed_after_the_checkpoint_is_told_once(tmp_path: Path) -> None:
    """A path is logged once between two states; a file to whose end the script writes is cut, and no other one."""
    said: list[str] = []
    best, ends = str(tmp_path / "best.pt"), str(tmp_path / "ends.csv")
    log = str(tmp_path / "written.jsonl")
    written = WrittenPaths()
    written.log_to(log, said.append)
    written.appended.add(ends)
    places = []
    for _ in range(2):
        for path in (best, ends, best):
            written.note(path)
            Path(path).touch()
        places.append(written.place())
    assert places == [(2, []), (3, [])]
    again = WrittenPaths()
    again.repeat(written.before, read(log), places[0])
    again.log_to(log, said.append)
    again.go_on()
    assert again.others == {best}
    again.tell_of_later(best)
    assert said == [f"note: the script reads {best}, which it had written after the checkpoint: it is of a later step"]
    assert again.others == set()
