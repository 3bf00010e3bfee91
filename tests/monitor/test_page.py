"""`echelon report --html`: a page that needs nothing else, says what the files say, and runs no text as code."""

import json
import re
import subprocess
from html.parser import HTMLParser
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest
from tests import warm
from tests.monitor.watch import fleet

from echelon.monitor import training
from echelon.monitor.page import plots
from echelon.monitor.watch.web import server


class Page(HTMLParser):
    """The tags, the addresses and the text of a page; each tag must be closed in its order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.addresses: list[str] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: "list[tuple[str, str | None]]") -> None:
        self.tags.append(tag)
        self.addresses += [str(value) for name, value in attributes if name in ("src", "href", "xlink:href", "action")]
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, _: "list[tuple[str, str | None]]") -> None:
        self.tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def report(folder: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    return warm.run(["-m", "echelon", "report", *words], cwd=folder)


def page(folder: Path, *runs: str) -> Page:
    done = report(folder, "--html", "page.html", *runs)
    assert (done.returncode, done.stdout) == (0, "page.html\n"), done.stderr
    text = (folder / "page.html").read_text()
    told = Page(text)
    assert told.open == []
    assert told.addresses == []
    assert "script" not in told.tags
    assert "url(" not in text
    assert "@import" not in text
    return told


def test_page_of_a_run(tmp_path: Path) -> None:
    fleet.write(tmp_path / "run", num_nodes=2, ranks_per_node=2, samples=20)
    told = page(tmp_path, "run")
    assert told.tags.count("polyline") == 2  # loss and speed; the samples have no times of steps
    assert "data 30.0%" in told.text
    assert "communication 20.0%" in told.text
    assert "A training with 4 processes" in told.text


def test_page_of_two_runs(tmp_path: Path) -> None:
    """The run with more ranks is compared with the other, however they are named."""
    fleet.write(tmp_path / "many", num_nodes=2, ranks_per_node=2)
    fleet.write(tmp_path / "few", num_nodes=1, ranks_per_node=2)
    told = page(tmp_path, "many", "few")
    assert "many with 4 ranks was 2 times as fast as few with 2 ranks: a parallel efficiency of 100%." in told.text
    assert told.tags.count("polyline") == 4


def test_text_of_a_run_is_no_code(tmp_path: Path) -> None:
    path = fleet.write(tmp_path / "<img src=x>", num_nodes=1, ranks_per_node=1)
    events = path / "events.jsonl"
    restart = '{"time": 1800000070, "event": "restart", "cause": "<script>alert(1)</script>", "error": "</pre><b>"}\n'
    events.write_text(events.read_text() + restart)
    told = page(tmp_path, "<img src=x>")
    assert "<script>alert(1)</script>" in told.text
    assert not {"img", "b", "script"} & set(told.tags)


def samples_of_slow_steps() -> list[dict[str, Any]]:
    """A sample a second of steps that take 1.6 s, and 8 s around the tenth step."""
    ends, lines = list(accumulate([8.0 if 8 <= step <= 10 else 1.6 for step in range(30)], initial=0.0)), []
    for second in range(int(ends[-1])):
        steps = sum(end <= second for end in ends)
        waits = 0.5 * ends[steps - 1]
        measures = {"step_seconds": ends[steps - 1], "communication_seconds": [waits, 0.0], "loss": 1.0}
        moment = fleet.BEGAN + 3 + second
        lines.append({"time": moment, "attempt": 0, "ranks": 2, "steps": steps, "loss": 1.0, "measures": measures})
    return lines


def test_steps_longer_than_a_second_are_no_saw(tmp_path: Path) -> None:
    """The speed is that of the steps' own times; the slowest ones are drawn by rank, with what each did."""
    path = fleet.write(tmp_path / "run", num_nodes=1, ranks_per_node=2)
    lines = [{"format": 1}, *samples_of_slow_steps()]
    (path / "samples.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    told = page(tmp_path, "run")
    text = (tmp_path / "page.html").read_text()
    speed = re.findall(r'aria-label="steps a second over minutes of the steps".*?points="([^"]*)"', text)[0]
    assert len({point.split(",")[1] for point in speed.split()}) == 2  # of usual steps, and of slow ones
    assert "took 8.00 s each, and 1.60 s is usual" in told.text
    assert text.count('class="row"') == 2


def test_findings_are_sentences_above_the_figures(tmp_path: Path) -> None:
    fleet.write(tmp_path / "run", num_nodes=1, ranks_per_node=2, samples=20, slow=1)
    told = page(tmp_path, "run")
    assert told.text.index("rank 1 makes the others wait") < told.text.index("Loss")
    assert told.text.count("rank 1 makes the others wait") == 1


def test_run_of_nothing_has_a_page(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "events.jsonl").write_text('{"time": 1800000000, "event": "supervisor"}\n')
    assert "svg" not in page(tmp_path, "run").tags


def test_page_that_cannot_be_written(tmp_path: Path) -> None:
    fleet.write(tmp_path / "run", num_nodes=1, ranks_per_node=1)
    done = report(tmp_path, "--html", "nowhere/page.html", "run")
    assert done.returncode == 2
    assert "nowhere/page.html cannot be written: No such file or directory" in done.stderr


def test_paragraph(tmp_path: Path) -> None:
    fleet.write(tmp_path / "run", num_nodes=2, ranks_per_node=2, samples=20)
    text = report(tmp_path, "--paragraph", "run").stdout
    assert (
        "50% of the training steps' time was computing, 20% waiting for other processes, 30% waiting for data." in text
    )
    assert "320 samples a second" in text


@pytest.mark.parametrize(("low", "high"), [(0.0, 1.0), (3, 189), (-2.5e-9, 4e-9), (1e6, 1e6 + 1), (-5, -4.999)])
def test_ticks_are_round_and_within(low: float, high: float) -> None:
    found = plots.ticks(low, high)
    assert 2 <= len(found) <= 6
    assert all(low - 1e-6 * abs(low) <= tick <= high + 1e-6 * abs(high) for tick in found)


def test_long_run_is_a_small_page() -> None:
    points = [(float(place), float(place % 7)) for place in range(100_000)]
    text = plots.curves([("run", points)], x="step", y="loss")
    (found,) = re.findall(r'points="([^"]*)"', text)
    assert len(found.split()) <= plots.MOST_POINTS


def test_pages_have_the_same_colours(tmp_path: Path) -> None:
    """A part of a step has one colour on the page of the report and on that of `echelon watch --web`."""
    fleet.write(tmp_path / "run", num_nodes=1, ranks_per_node=1)
    assert report(tmp_path, "--html", "page.html", "run").returncode == 0
    text = (tmp_path / "page.html").read_text()
    assert plots.STYLE in text
    assert plots.STYLE in server.read().content.decode()
    assert [*training.PARTS, training.REST] == re.findall('"([^"]+)"', re.findall(r"PARTS = \[(.*)\]", script())[0])
    assert text.count('class="part-0"') == text.count("class='part-0'") == 1  # in the bar, and in its legend


def script() -> str:
    return (Path(server.__file__).parent / "page.js").read_text()


@pytest.mark.filterwarnings("error")
def test_figure_of_nothing_is_drawn(tmp_path: Path) -> None:
    """A run without numbers has axes and no legend."""
    pytest.importorskip("matplotlib")
    panels = [plots.Panel(x="step", y="loss"), plots.Panel(x="step", y="apart")]
    plots.save(panels, [str(tmp_path / "x.png")], heights=(3, 2))
    assert (tmp_path / "x.png").read_bytes().startswith(b"\x89PNG")
