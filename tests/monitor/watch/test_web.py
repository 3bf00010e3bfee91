"""`echelon watch --web`: who may ask and who not, what is answered, how it ends, and what it refuses to begin."""

import fcntl
import gzip
import json
import os
import pty
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from base64 import b64encode
from collections.abc import Iterator
from hashlib import sha256
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.monitor.watch import large
from tests.monitor.watch.server import Web
from tests.runs import ECHELON, hear_interrupts

from echelon.cli import watch
from echelon.monitor.watch.state import DeviceState, NodeState, RankState, RunState
from echelon.monitor.watch.web import metrics, server

ROOT = Path(__file__).parents[3]
NOBODY = 65534
PATHS = ("/", "/state.json", "/metrics", "/nothing", "/plan.json")
HELD = "secret-run"
"""The name of the run directory: it must not be in an answer to somebody without the token."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[Path]":
    """A folder with a run of 4 nodes that goes on: somebody holds its lock."""
    folder = tmp_path_factory.mktemp("web")
    large.write(folder / HELD, num_nodes=6, per_node=8)
    with (folder / HELD / "events.jsonl").open() as events:
        fcntl.flock(events, fcntl.LOCK_EX)
        yield folder


@pytest.fixture(scope="module")
def web(folder: Path) -> "Iterator[Web]":
    with Web(folder, HELD) as started:
        yield started


class Parts(HTMLParser):
    """The texts of a page's scripts and styles, and what it would load."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.inside, self.texts, self.loads, self.handlers = "", {"script": "", "style": ""}, [], []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: "list[tuple[str, str | None]]") -> None:
        self.inside = tag
        self.loads += [name for name, _ in attrs if name in ("src", "href", "srcset", "action", "data")]
        self.handlers += [name for name, _ in attrs if name.startswith("on") or name == "style"]

    def handle_endtag(self, tag: str) -> None:
        self.inside = ""

    def handle_data(self, data: str) -> None:
        if self.inside in self.texts:
            self.texts[self.inside] += data


def test_page_loads_nothing_and_its_policy_allows_no_other_script(web: Web) -> None:
    """The hashes of the policy are those of the script and the style, and nothing else may be loaded or asked."""
    answer = web.ask("/")
    assert (answer.code, answer.headers["Content-Type"]) == (200, "text/html; charset=utf-8")
    parts = Parts(answer.content.decode())
    assert (parts.loads, parts.handlers) == ([], [])
    hashes = {kind: b64encode(sha256(text.encode()).digest()).decode() for kind, text in parts.texts.items()}
    policy = dict(part.split(" ", 1) for part in answer.headers["Content-Security-Policy"].split("; "))
    assert policy == {
        "default-src": "'none'",
        "script-src": f"'sha256-{hashes['script']}'",
        "style-src": f"'sha256-{hashes['style']}'",
        "connect-src": "'self'",
        "base-uri": "'none'",
        "form-action": "'none'",
        "frame-ancestors": "'none'",
        "require-trusted-types-for": "'script'",
        "trusted-types": "'none'",
    }
    assert HELD not in answer.content.decode()


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("proves", [True, False])
def test_each_answer_forbids_to_keep_it_frame_it_or_guess_its_type(web: Web, path: str, proves: bool) -> None:
    headers = web.ask(path, None if proves else {}).headers
    assert (headers["Cache-Control"], headers["Referrer-Policy"]) == ("no-store", "no-referrer")
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert "frame-ancestors 'none'" in headers["Content-Security-Policy"]
    assert headers["Content-Security-Policy"].startswith("default-src 'none'; ")
    assert not {"Access-Control-Allow-Origin", "Set-Cookie"} & set(headers)
    assert headers["Server"] == "echelon"


def test_state_is_that_of_the_command_line(web: Web, folder: Path) -> None:
    """The state has what --json prints, also through gzip."""
    done = subprocess.run([*ECHELON, "watch", "--json", HELD], cwd=folder, capture_output=True, text=True, check=True)
    printed, shown = json.loads(done.stdout), web.state()
    zipped = web.ask("/state.json", {**web.bearer(), "Accept-Encoding": "gzip, br"})
    assert zipped.headers["Content-Encoding"] == "gzip"
    for state in (printed, shown, unzipped := json.loads(gzip.decompress(zipped.content))):
        del state["now"]
    assert printed == shown == unzipped
    assert (shown["status"], shown["num_ranks"], len(shown["nodes"])) == ("running", 48, 6)
    worst = [shown["nodes"][place]["name"] for place in shown["worst_first"]]
    lost, slow = f"nid{1001 + large.LOST:06}", f"nid{1001 + large.SLOW // 8:06}"
    assert worst[:2] == [lost, slow]
    assert [rank["mark"] for rank in shown["nodes"][large.SLOW // 8]["ranks"]].count("!") == 1


SAMPLE = re.compile(r'([a-z_:]+)(?:\{((?:[a-z_]+="(?:[^"\\\n]|\\[\\"n])*",?)*)\})? (\S+)')
LABEL = re.compile(r'([a-z_]+)="((?:[^"\\\n]|\\[\\"n])*)"')


def parsed(text: str) -> "dict[tuple[str, tuple[tuple[str, str], ...]], float]":
    """Read Prometheus text; a line that is not as the format says fails."""
    values, kinds = {}, {}
    assert text.endswith("\n")
    for line in text.split("\n")[:-1]:
        if line.startswith("# "):
            what, name, rest = line[2:].split(" ", 2)
            assert what in ("HELP", "TYPE")
            assert rest
            if what == "TYPE":
                assert name not in kinds
                kinds[name] = rest
            continue
        found = SAMPLE.fullmatch(line)
        assert found, line
        assert found[1] in kinds
        assert (kinds[found[1]] == "counter") == found[1].endswith("_total")
        labels = [
            (name, re.sub(r"\\(.)", lambda one: "\n" if one[1] == "n" else one[1], value))
            for name, value in LABEL.findall(found[2] or "")
        ]
        key = (found[1], tuple(labels))
        assert key not in values
        values[key] = float(found[3])
    return values


def test_metrics_are_those_of_the_state(web: Web) -> None:
    answer = web.ask("/metrics")
    assert answer.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
    values, state = parsed(answer.content.decode()), web.state()
    assert values[("echelon_steps_total", ())] == state["steps"]
    assert values[("echelon_loss", ())] == pytest.approx(state["loss"], rel=1e-4)
    assert values[("echelon_run_info", (("run", HELD), ("status", "running")))] == 1
    for node in state["nodes"]:
        for rank in node["ranks"]:
            key = ("echelon_rank_busy_ratio", (("node", node["name"]), ("rank", str(rank["rank"]))))
            assert values[key] == pytest.approx(rank["busy"], rel=1e-3)
        for device in node["devices"]:
            key = ("echelon_device_busy_ratio", (("node", node["name"]), ("device", str(device["number"]))))
            assert values[key] == pytest.approx(device["busy"] / 100, rel=1e-3)
        assert values[("echelon_node_lost", (("node", node["name"]),))] == node["is_lost"]


@given(st.text(), st.text(), st.floats())
def test_any_name_and_any_number_is_a_line_that_can_be_read(node: str, reason: str, loss: float) -> None:
    """Quotes, backslashes and line ends of names are escaped; a loss may be infinite or not a number."""
    device = DeviceState(number=0, busy=50.0, throttled=reason)
    ranks = [RankState(rank=0, node=node, loss=loss)]
    state = RunState(
        name="run", status="running", loss=loss, nodes=[NodeState(name=node, ranks=ranks, devices=[device])]
    )
    text = metrics.text(state)
    values = parsed(text)
    assert repr(values[("echelon_loss", ())]) == repr(float(f"{loss:.10g}"))
    assert values[("echelon_device_throttled", (("node", node), ("device", "0"), ("reason", reason)))] == bool(reason)


def test_unknown_numbers_have_no_line() -> None:
    """Missing is missing, never 0."""
    node = NodeState(name="n", ranks=[RankState(rank=0, node="n")], devices=[DeviceState(number=0)])
    names = {name for name, _ in parsed(metrics.text(RunState(name="run", status="running", nodes=[node])))}
    assert not [name for name in names if re.search(r"loss|busy|per_second|device|excess|memory|part", name)]
    assert {"echelon_steps_total", "echelon_rank_steps_total", "echelon_rank_info"} <= names


@pytest.mark.parametrize("path", PATHS)
def test_nothing_without_the_token(web: Web, path: str) -> None:
    """No token, a wrong one, half of it or an empty one in any place: 403, and no word of the run."""
    wrong = web.token[:-1] + ("A" if web.token[-1] != "A" else "B")
    name = web.ask(f"/?token={web.token}", {}).headers["Set-Cookie"].partition("=")[0]
    refused = [
        *[{"Authorization": f"Bearer {text}"} for text in (wrong, web.token[:20], "", web.token + "x", "ä".encode())],
        *[{"Cookie": f"{name}={text}"} for text in (wrong, "", web.token[:20])],
        {"Cookie": f"other={web.token}"}, {"Authorization": f"Basic {web.token}"}, {"Cookie": "=;;=" * 99}, {},
    ]  # fmt: skip
    for headers in refused:
        answer = web.ask(path, headers)
        assert answer.code == 403
        told = repr(answer)
        assert HELD not in told
        assert "nid00" not in told
        assert web.token not in told
    for query in (
        f"token={wrong}",
        "token=",
        "token",
        f"token={web.token[:20]}",
        f"t={web.token}",
        "token=%ff%fe",
        "&&",
    ):
        assert web.ask(f"/?{query}", {}).code == 403
    assert path == "/" or web.ask(f"{path}?token={web.token}", {}).code == 403


def test_address_with_the_token_gives_a_cookie_and_leads_to_one_without(web: Web) -> None:
    answer = web.ask(f"/?token={web.token}", {})
    assert (answer.code, answer.headers["Location"], answer.content) == (303, "/", b"")
    cookie, *flags = answer.headers["Set-Cookie"].split("; ")
    assert set(flags) == {"HttpOnly", "SameSite=Strict", "Path=/"}
    for path in ("/", "/state.json", "/metrics"):
        assert web.ask(path, {"Cookie": f"theme=dark; {cookie}"}).code == 200


@pytest.mark.parametrize(
    "lines",
    [
        ["Host: evil.example"], ["Host: 127.0.0.1.evil.example"], ["Host: localhost.evil.example:80"], ["Host: "], [],
        ["Host: 10.0.0.1"], ["Host: 127.0.0.2"], ["Host: 127.0.0.1@evil.example"],
        ["Host: 127.0.0.1", "Host: evil.example"],
    ],
)  # fmt: skip
def test_request_under_another_name_is_refused(web: Web, lines: "list[str]") -> None:
    """A page of the internet whose name leads here (DNS rebinding) gets nothing, even with the token."""
    told = web.raw("\r\n".join([f"GET /?token={web.token} HTTP/1.1", *lines, *_bearer(web), "", ""]).encode())
    assert told.startswith(b"HTTP/1.0 403 ")
    assert b"Set-Cookie" not in told
    assert HELD.encode() not in told


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.1:9", "localhost:65535", "LOCALHOST", "[::1]:8080"])
def test_request_through_another_port_of_this_machine_is_answered(web: Web, host: str) -> None:
    """ssh -L may use any port."""
    assert web.ask("/state.json", {**web.bearer(), "Host": host}).code == 200


def _bearer(web: Web) -> "list[str]":
    return [f"{name}: {value}" for name, value in web.bearer().items()]


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH", "TRACE", "BREW"])
def test_other_methods_are_refused(web: Web, method: str) -> None:
    answer = web.ask("/state.json", method=method, body=b"x" * 50_000)
    assert (answer.code, answer.headers["Allow"]) == (405, "GET")
    assert HELD not in repr(answer)


@pytest.mark.parametrize(
    "path",
    ["/../../etc/passwd", "/%2e%2e/plan.json", "/plan.json", "//etc/passwd", "/page.js", "http://evil.example/state.json",
     "/state.json/", "/secret", "/\x00", "/state.json%00", "/logs/attempt-0/rank-0.log", "*"],
)  # fmt: skip
def test_no_other_path_leads_anywhere(web: Web, path: str) -> None:
    """Paths are three words, never files."""
    told = web.raw("\r\n".join([f"GET {path} HTTP/1.1", "Host: localhost", *_bearer(web), "", ""]).encode())
    assert told.startswith(b"HTTP/1.0 404 ")
    assert told.endswith(b"\r\n\r\nThere are /, /state.json and /metrics.\n")


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n", b"400"),
        (b"nonsense\r\n\r\n", b"400"),
        (b"GET / HTTP/9.9\r\n\r\n", b"505"),
        (b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 500 + b"\r\n", b"431"),
        (b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\n\r\n", b"431"),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\na: " + b"b" * 70_000, b"431"),
    ],
)
def test_what_is_no_request_has_an_answer_that_repeats_nothing(web: Web, data: bytes, code: bytes) -> None:
    told = web.raw(data)
    assert told.startswith(b"HTTP/1.0 " + code)
    assert b"nonsense" not in told
    assert b"aaaa" not in told
    assert web.ask("/state.json").code == 200


def test_slow_clients_keep_nobody_waiting(web: Web) -> None:
    """More connections than are kept, none of which ends its request: others are answered, and the oldest are ended."""
    slow = []
    for _ in range(server.MOST_CONNECTIONS + 10):
        one = socket.create_connection(("127.0.0.1", web.port), timeout=60)
        one.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nX: ")
        slow.append(one)
    for path in ("/", "/state.json", "/metrics"):
        assert web.ask(path).code == 200
    assert slow[0].recv(1) == b""
    assert slow[-1].recv(1) == b""  # after its time
    for one in slow:
        one.close()


def test_client_that_reads_nothing_keeps_nobody_waiting(web: Web) -> None:
    reader = socket.socket()
    reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
    reader.connect(("127.0.0.1", web.port))
    reader.sendall("\r\n".join(["GET /state.json HTTP/1.1", "Host: localhost", *_bearer(web), "", ""]).encode())
    assert web.ask("/state.json").code == 200
    reader.close()
    assert web.ask("/state.json").code == 200


def test_only_this_machine_can_connect(web: Web) -> None:
    """The port is open on 127.0.0.1 alone."""
    local = f"0100007F:{web.port:04X}"
    listening = [
        line.split()[1] for line in Path("/proc/net/tcp").read_text().splitlines()[1:] if line.split()[3] == "0A"
    ]
    assert [address for address in listening if address.endswith(local[-5:])] == [local]


def test_token_is_for_its_user_alone_and_goes_with_the_server(folder: Path) -> None:
    """Its file has mode 0600; Ctrl-C ends the server with 130 like any command, other signals with 128 + theirs."""
    for number, code in ((signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)):
        with Web(folder, HELD) as web:
            assert web.token_file.parent == folder / HELD
            assert web.token_file.stat().st_mode & 0o777 == 0o600
            assert len(web.token) >= 43
            assert web.token not in web.said
            assert web.end(number) == (code, "")
        assert not web.token_file.exists()


def test_leftover_of_a_killed_server_is_replaced(folder: Path, tmp_path: Path) -> None:
    """Through a link nothing is written; a run directory with a left token has no foreign file."""
    with Web(folder, HELD) as first:
        first.end(signal.SIGKILL)
    assert first.token_file.exists()
    first.token_file.unlink()
    (tmp_path / "precious").write_text("mine")
    first.token_file.symlink_to(tmp_path / "precious")
    done = subprocess.run([*ECHELON, "runs", "--json", HELD], cwd=folder, capture_output=True, text=True, check=True)
    assert "token" not in done.stdout.replace(str(tmp_path), "")
    with Web(folder, HELD, "--port", str(first.port)) as second:
        assert second.token_file == first.token_file
        assert not second.token_file.is_symlink()
        assert second.token != first.token
        assert second.ask("/state.json", first.bearer()).code == 403
    assert (tmp_path / "precious").read_text() == "mine"


@pytest.mark.parametrize("has_runtime_folder", [True, False])
def test_token_is_elsewhere_if_others_may_write_into_the_run(tmp_path: Path, has_runtime_folder: bool) -> None:
    large.write(tmp_path / "run", num_nodes=1)
    (tmp_path / "run").chmod(0o777)
    (tmp_path / "runtime").mkdir(mode=0o700)
    (tmp_path / "tmp").mkdir()
    environ = {**os.environ, "TMPDIR": str(tmp_path / "tmp"), "XDG_RUNTIME_DIR": str(tmp_path / "runtime")}
    if not has_runtime_folder:
        (tmp_path / "runtime").chmod(0o777)
    with Web(tmp_path, "run", environ=environ) as web:
        assert web.token_file.is_relative_to(tmp_path / ("runtime" if has_runtime_folder else "tmp"))
        assert web.token_file.parent.stat().st_mode & 0o777 == 0o700
        assert web.token_file.stat().st_mode & 0o777 == 0o600
        assert web.ask("/state.json").code == 200
    assert [*(tmp_path / "runtime").iterdir(), *(tmp_path / "tmp").iterdir()] == []


def test_unix_socket_is_for_its_user_alone(folder: Path, tmp_path: Path) -> None:
    """Its mode is 0600, the token is asked for too, and it is removed at the end."""
    path = tmp_path / "watch.sock"
    with Web(folder, HELD, "--socket", str(path)) as web:
        assert path.stat().st_mode & 0o777 == 0o600
        assert web.ask("/state.json").code == 200
        assert web.ask("/state.json", {}).code == 403
        assert f"ssh -L 8080:{path} " in web.said
        listening = Path("/proc/net/tcp").read_text()
        assert f":{watch.LOCAL_PORT:04X} 00000000:0000 0A" not in listening
    assert not path.exists()


def as_nobody(address: "str | tuple[str, int]", token: Path) -> str:
    """Return what a process of another user gets from a door, and from the file of the token."""
    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
        try:
            os.write(theirs, _stolen(address, token))
        finally:
            os._exit(0)
    os.close(theirs)
    with os.fdopen(ours) as pipe:
        told = pipe.read()
    os.waitpid(child, 0)
    return told


def _stolen(address: "str | tuple[str, int]", token: Path) -> bytes:
    told = b""
    try:
        told += b"has read " + token.read_bytes()
    except PermissionError:
        told += b"no token; "
    try:
        with socket.socket(socket.AF_UNIX if isinstance(address, str) else socket.AF_INET) as one:
            one.settimeout(60)
            one.connect(address)
            told += b"connected; "
            one.sendall(b"GET /state.json HTTP/1.1\r\nHost: localhost\r\n\r\n")
            while data := one.recv(9999):
                told += data
    except (PermissionError, ConnectionError):
        pass
    return told


def test_another_user_gets_nothing(folder: Path) -> None:
    """Neither the token, nor the socket, not even if its mode was changed, nor the run from the port."""
    if os.geteuid() != 0:
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)("only root can become another user")
    place = Path(tempfile.mkdtemp())  # a folder into which anybody may look
    place.chmod(0o755)

    try:
        shutil.copytree(folder / HELD, place / HELD)
        with Web(place, HELD, "--socket", str(place / "watch.sock")) as web:
            assert as_nobody(web.socket, web.token_file) == "no token; "
            (place / "watch.sock").chmod(0o666)
            assert as_nobody(web.socket, web.token_file) == "no token; connected; "
            assert web.ask("/state.json").code == 200
        with Web(place, HELD) as web:
            told = as_nobody(("127.0.0.1", web.port), web.token_file)
            assert told.startswith("no token; connected; HTTP/1.0 403 ")
            assert HELD not in told
    finally:
        shutil.rmtree(place)


def refused(folder: Path, *words: str) -> str:
    """Return the error of a command line that must not start a server."""
    command = [*ECHELON, "watch", *words]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert "hint:" in done.stderr
    assert "Traceback" not in done.stderr
    return done.stderr.replace("\n  ", " ")


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("--web", "nothing"), "there is no run nothing"),
        (("--web", HELD, HELD), "watch shows one run, not 2"),
        (("--web", "--port", "x", HELD), "--port x is not a port: a port is 1 to 65535"),
        (("--web", "--port", "65536", HELD), "--port 65536 is not a port"),
        (("--web", "--port=", HELD), "--port '' is not a port"),
        (("--web", "--json", HELD), "--web and --json exclude each other"),
        (("--web", "--once", HELD), "--web and --once exclude each other"),
        (("--web", "--replay", HELD), "--web and --replay exclude each other"),
        (("--port", "8080", HELD), "--port is for the page, which --web asks for"),
        (("--web", "--socket", "s", "--port", "8080", HELD), "--port and --socket exclude each other"),
        (("--web", "--socket", HELD, HELD), "there is a file already"),
        (("--web", "--socket", "", HELD), "the path of a unix socket has 1 to 107 bytes"),
        (("--web", "--socket", "s" * 120, HELD), "the path of a unix socket has 1 to 107 bytes"),
        (("--web", "--socket", "no/folder", HELD), "--socket no/folder cannot be made: No such file or directory"),
    ],
)
def test_wrong_command_line_has_one_error(folder: Path, words: "tuple[str, ...]", error: str) -> None:
    before = sorted(folder.rglob("*"))
    assert error in refused(folder, *words)
    assert sorted(folder.rglob("*")) == before


def test_port_or_socket_of_another_program_is_left_alone(folder: Path, tmp_path: Path) -> None:
    with Web(folder, HELD, "--socket", str(tmp_path / "s")) as web:
        assert "another program listens there" in refused(folder, "--web", "--socket", str(tmp_path / "s"), HELD)
        assert web.ask("/state.json").code == 200
        web.end(signal.SIGKILL)
    assert "an older socket is there, on which nobody listens" in refused(folder, "--web", "--socket", web.socket, HELD)
    web.token_file.unlink()
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        assert f"port {port} of 127.0.0.1 cannot be had: another program" in refused(
            folder, "--web", "--port", port, HELD
        )


def test_run_that_has_not_begun_and_then_does(tmp_path: Path) -> None:
    """The page of a job that waits in a queue fills once it begins."""
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "job.sh").write_text("#!/bin/sh\n")
    large.write(tmp_path / "other", num_nodes=2)
    with Web(tmp_path, "run") as web:
        state = web.state()
        assert (state["status"], state["nodes"], state["loss"]) == ("not started", [], None)
        assert parsed(web.ask("/metrics").content.decode())[("echelon_nodes", ())] == 0
        for name in ("plan.json", "samples.jsonl", "events.jsonl"):
            (tmp_path / "other" / name).rename(tmp_path / "run" / name)
        web.until(lambda state: len(state["nodes"]) == 2, "the nodes")


def test_run_that_was_cut_off_and_is_removed(tmp_path: Path) -> None:
    """A line that is cut off is left out, and foreign lines; a loss that is no number is JSON; then all is gone."""
    large.write(tmp_path / "run", num_nodes=2)
    path = tmp_path / "run" / "samples.jsonl"
    loss = '{"time": 4e9, "attempt": 0, "ranks": 16, "steps": 9999, "loss": NaN}\n'
    path.write_text(path.read_text() + loss + 'nonsense\n{"time": "x"}\n[]\n{"time": 4000000001, "attempt": 0, "ste')
    with Web(tmp_path, "run") as web:
        state = web.state()
        assert (state["status"], state["loss"], state["losses"][-1], state["steps"]) == ("unknown", "NaN", "NaN", 9999)
        assert b"NaN" not in web.ask("/state.json").content.replace(b'"NaN"', b"")
        assert b"\nechelon_loss NaN\n" in web.ask("/metrics").content
        shutil.rmtree(tmp_path / "run")
        deadline = time.monotonic() + 60
        while (answer := web.ask("/state.json")).code == 200 and time.monotonic() < deadline:
            time.sleep(0.1)
        told = b"the run directory cannot be read: No such file or directory\n"
        assert (answer.code, answer.content, web.ask("/metrics").code) == (503, told, 503)
        assert web.end() == (143, "")


def test_address_with_the_token_is_for_a_terminal(folder: Path) -> None:
    """A terminal shows an address to paste that works; a file or a pipe, which others may read, names the file."""
    ours, theirs = pty.openpty()
    command = [*ECHELON, "watch", "--web", HELD]
    with subprocess.Popen(
        command, cwd=folder, stdin=theirs, stdout=theirs, stderr=theirs, preexec_fn=hear_interrupts
    ) as process:
        os.close(theirs)
        try:
            said = b""
            while b"Bearer" not in said or not said.endswith(b"\n"):
                said += os.read(ours, 4096)
            [(port, token)] = re.findall(r"http://127\.0\.0\.1:(\d+)/\?token=(\S+)", said.decode())
            [file] = (folder / HELD).glob(f"*-{port}.token")
            assert file.read_text() == token
            assert re.search(rf"  ssh -L {port}:127\.0\.0\.1:{port} \S+@\S+\r\n", said.decode())
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == 130
        finally:
            process.kill()
    os.close(ours)


@pytest.mark.parametrize(
    ("name", "connection", "expected"),
    [
        ("login3", "", "login3"),
        ("login3", "192.0.2.1 50000 8.8.4.4 22", "8.8.4.4"),
        ("login3", "192.0.2.1 50000 10.1.2.3 22", "login3"),
        ("login3", "nonsense", "login3"),
        ("login3", "a b c d", "login3"),
        ("login3.cluster.example", "192.0.2.1 50000 8.8.4.4 22", "login3.cluster.example"),
    ],
)
def test_ssh_line_names_a_place_that_another_computer_knows(
    monkeypatch: pytest.MonkeyPatch, name: str, connection: str, expected: str
) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: name)
    assert watch.host({"SSH_CONNECTION": connection}) == expected


def test_page_is_in_the_single_file(tmp_path: Path) -> None:
    """echelon.pyz has the page's parts."""
    pyz = tmp_path / "echelon.pyz"
    subprocess.run([sys.executable, str(ROOT / "packaging" / "build_pyz.py"), str(pyz)], check=True)
    large.write(tmp_path / "run", num_nodes=1)
    environ = {"HOME": str(tmp_path), "PATH": os.environ["PATH"]}
    with Web(tmp_path, "run", environ=environ, command=(sys.executable, "-I", "-S", str(pyz))) as web:
        content = web.ask("/").content
        assert b"Nothing that comes from a run becomes markup" in content
        assert b"prefers-color-scheme" in content


def test_option_is_explained() -> None:
    """Each option of the page is in the table of its own page of the documentation."""
    page = (ROOT / "docs" / "watch-web.md").read_text()
    for name in ("--web", "--port", "--socket"):
        assert re.search(rf"^\| `{name}[ `].*\|$", page, re.MULTILINE), name


def test_limits_are_those_of_the_code() -> None:
    page = (ROOT / "docs" / "watch-web.md").read_text()
    most = (
        f"{server.HEAD_SECONDS:g} s and {server.MOST_HEAD_BYTES >> 10} KiB. With more than {server.MOST_CONNECTIONS} "
    )
    assert most in page
