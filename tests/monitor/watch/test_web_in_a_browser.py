"""The page of `echelon watch --web` in a real Chromium: on generated runs, on runs that go on, and without a server."""

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from docs.pictures.chromium import PROGRAM, Browser
from tests.cluster import Cluster
from tests.monitor.watch import large
from tests.monitor.watch.server import Web
from tests.runs import Run

SHOWN = "document.querySelector('main:not([hidden])') !== null"
TRAIN = """
import os, time, torch
torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
while not os.path.exists("enough"):
    model(torch.ones(8, 4)).pow(2).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    time.sleep(0.02)
"""
HOSTILE = '<img src="https://evil.example/x" onerror="document.title=1"><script>document.title=2</script>'


@pytest.fixture
def browser() -> "Iterator[Browser]":
    """A browser in which no page asks another machine, or breaks its policy."""
    if not PROGRAM:
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(
            "there is no Chromium here: apt install chromium"
        )
    with Browser() as opened:
        yield opened
        assert {urlsplit(address).hostname for address in opened.asked} - {None} <= {"127.0.0.1"}


def text(browser: Browser, selector: str) -> str:
    return str(browser.value(f"document.querySelector({json.dumps(selector)}).innerText"))


@contextmanager
def held(run: Path) -> "Iterator[None]":
    """Hold the lock of a run, so that it goes on."""
    with (run / "events.jsonl").open() as events:
        fcntl.flock(events, fcntl.LOCK_EX)
        yield


def names(browser: Browser) -> "list[str]":
    """Return the names of the nodes in the grid, in their order."""
    return list(browser.value("[...document.querySelectorAll('.of')].map((name) => name.textContent)"))


def test_page_of_a_large_run(browser: Browser, tmp_path: Path) -> None:
    """Numbers, curves, parts, the worst nodes first, a node's ranks and devices, facts; also by keys and on a phone."""
    large.write(tmp_path / "run", num_nodes=40, num_samples=60)
    with held(tmp_path / "run"), Web(tmp_path, "run") as web:
        state = web.state()
        browser.open(web.url)
        browser.until(SHOWN)
        assert urlsplit(browser.value("location.href")).query == ""
        assert text(browser, "h1") == "run"
        assert text(browser, "#status") == "● running"
        assert "320 ranks on 40 nodes" in text(browser, "#line")
        shown = text(browser, "#numbers").split("\n")
        numbers = dict(zip(shown[::2], shown[1::2], strict=True))
        assert numbers["loss"] == f"{state['loss']:.4g}"
        assert numbers["computing"].endswith("%")
        assert text(browser, "#told") == ""
        assert browser.value("document.querySelectorAll('svg .curve').length") == 2
        for part, share in state["shares"].items():
            assert f"{round(share * 100)}%" in text(browser, "#legend").partition(part)[2][:30]
        assert names(browser) == [state["nodes"][place]["name"] for place in state["worst_first"]]
        marks = browser.value("[...document.querySelectorAll('.cells')].map((cells) => cells.textContent)")
        assert marks[0] == "x" * 8
        assert marks[1].count("!") == 1
        assert all(len(each) == 8 for each in marks)

        browser.value("document.querySelectorAll('.tile')[1].focus()")
        browser.key("Enter")
        browser.until("!document.getElementById('node').hidden")
        assert browser.value("document.activeElement.id") == "node-title"
        first = text(browser, "#ranks tbody tr")
        assert first.split("\t")[:3] == [str(large.SLOW), "!", "alive"]
        assert "the others wait for it" in first
        assert browser.value("document.querySelectorAll('#devices tbody tr').length") == 8
        browser.key("Escape")
        assert browser.value("document.getElementById('node').hidden")
        assert text(browser, "#facts").split("\n")[-1].endswith("longer than the others")

        browser.value(
            "find = document.getElementById('find'); find.value = '1040'; find.dispatchEvent(new Event('input'))"
        )
        assert names(browser) == ["nid001040"]
        browser.resize(360, 700, is_phone=True)
        assert browser.value("document.documentElement.scrollWidth") <= 360
        assert browser.said == []


def test_page_does_not_believe_what_a_run_is_called(browser: Browser, tmp_path: Path) -> None:
    """Markup in the name of a node, a fact, a cause or a part is shown as it is; a loss that is no number is said."""
    run = tmp_path / "run"
    large.write(run, num_nodes=2)
    for name in ("events.jsonl", "samples.jsonl"):
        written = (run / name).read_text()
        (run / name).write_text(
            written.replace('"nid001001"', json.dumps(HOSTILE)).replace(
                "rank 1 takes", f"rank {json.dumps(HOSTILE[:64])[1:-1]}"
            )
        )
    with (run / "samples.jsonl").open("a") as samples:
        samples.write('{"time": 4e9, "attempt": 0, "ranks": 16, "steps": 9999, "loss": NaN}\n')
    with Web(tmp_path, "run") as web:
        browser.open(web.url)
        browser.until(SHOWN)
        assert HOSTILE in browser.value("[...document.querySelectorAll('.tile')].map((tile) => tile.title)")
        assert HOSTILE[:64] in text(browser, "#facts")
        browser.value(
            f"[...document.querySelectorAll('.tile')].find((tile) => tile.title === {json.dumps(HOSTILE)}).click()"
        )
        assert text(browser, "#node-title").startswith(HOSTILE)
        assert browser.value("document.querySelectorAll('img, body script:not(:last-child)').length") == 0
        assert text(browser, "#numbers").split("\n")[4:6] == ["loss", "NaN"]
        assert browser.value("document.title").startswith("run · ")
        assert browser.said == []


def test_policy_stops_what_the_page_would_not_do(browser: Browser, tmp_path: Path) -> None:
    """Even code within the page can neither make markup of a text, nor ask another machine."""
    large.write(tmp_path / "run", num_nodes=1)
    with Web(tmp_path, "run") as web:
        browser.open(web.url)
        browser.until(SHOWN)
        refused = "(() => { try { document.body.innerHTML = '<b>x</b>' } catch (error) { return error.name } })()"
        assert browser.value(refused) == "TypeError"
        browser.value("fetch('http://127.0.0.1:1/').catch(() => { document.title = 'refused' }), 1")
        browser.until("document.title === 'refused'")
        browser.until("1")
        assert any("connect-src" in line for line in browser.said)


def test_browser_without_the_token_sees_nothing(browser: Browser, tmp_path: Path) -> None:
    large.write(tmp_path / "private-run", num_nodes=1)
    with Web(tmp_path, "private-run") as web:
        for path in ("/", "/state.json", "/metrics", "/?token=wrong"):
            browser.open(f"http://127.0.0.1:{web.port}{path}")
            told = browser.until("document.body && document.body.innerText")
            assert told.startswith("This page needs its token")
        assert "private-run" not in browser.value("document.documentElement.outerHTML")
        assert browser.value("document.cookie") == ""
        browser.open(web.url)
        browser.until(SHOWN)
        assert browser.value("document.cookie") == ""  # no script can read it


def test_page_says_when_the_server_is_gone(browser: Browser, tmp_path: Path) -> None:
    """What was seen last stays, and is marked as old; a new server does not know the browser."""
    large.write(tmp_path / "run", num_nodes=1)
    with Web(tmp_path, "run") as web:
        browser.open(web.url)
        browser.until(SHOWN)
    browser.until("document.getElementById('told').textContent.startsWith('The server does not answer for')")
    assert browser.value("document.body.classList.contains('stale')")
    assert text(browser, "h1") == "run"
    with Web(tmp_path, "run", "--port", str(web.port)):
        browser.until("document.getElementById('told').textContent.includes('does not know this browser')")


def test_page_of_a_run_that_goes_on_and_ends(browser: Browser, tmp_path: Path) -> None:
    """The steps of a real run rise, and the page says that it is over."""
    (tmp_path / "train.py").write_text(TRAIN)
    environ = {**os.environ, "OMP_NUM_THREADS": "1"}
    run = Run(tmp_path, "-n", "2", "--scale", "off", "train.py", environ=environ, is_forked=True)
    run.until_started(2)
    with Web(tmp_path, "run") as web:
        _see_it_end(browser, web, run, tmp_path)
    assert browser.said == []


def _see_it_end(browser: Browser, web: Web, run: Run, folder: Path) -> None:
    browser.open(web.url)
    try:
        browser.until("typeof last === 'object' && last !== null && last.steps > 0 && last.losses.length > 1")
        assert text(browser, "#status") == "● running"
        steps = browser.value("last.steps")
        browser.until(f"last.steps > {steps}")
        assert text(browser, "#line").endswith(f"step {browser.value('last.steps'):,}")
    finally:
        (folder / "enough").touch()
        code, _, error = run.finish()
    assert code == 0, error
    browser.until("document.getElementById('status').textContent === '✓ ended well'")
    assert text(browser, "#told") == "The run is over, and ended well. This is its last state."


@pytest.mark.tier("all")
@pytest.mark.slurm
def test_page_of_a_run_on_two_nodes_of_slurm(slurm: Cluster, browser: Browser, tmp_path: Path) -> None:
    """From beside an allocation of two nodes: both are shown with their ranks, while they train."""
    (tmp_path / "train.py").write_text(TRAIN)
    environ = {**slurm.environ, "OMP_NUM_THREADS": "1", "ECHELON_CHECK": "off"}
    before = ("salloc", "--quiet", "-N2")
    run = Run(tmp_path, "-n", "2", "--scale", "off", "train.py", environ=environ, before=before)
    run.until_started(4)
    with Web(tmp_path, "run") as web:
        _see_it_end(browser, web, run, tmp_path)
    assert len(names(browser)) == 2
    assert browser.value("last.nodes.map((node) => node.ranks.length)") == [2, 2]
    assert browser.said == []
