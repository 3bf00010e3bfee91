"""torchrun's command lines work verbatim: each line of torchrun_lines.toml starts the ranks that it asks for."""

import contextlib
import json
import os
import re
import shlex
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.tiers import some

from echelon.cli.options import OPTIONS, scan

from .shell import Shell

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # pytest itself needs it there

ROWS: list[dict[str, Any]] = tomllib.loads((Path(__file__).parents[1] / "torchrun_lines.toml").read_text("utf-8"))[
    "line"
]
LAUNCHER = re.compile(r"^(torchrun|python3? -m torch\.distributed\.(run|launch)) ")
USERS_ARGUMENTS = ("--last", "two words", "$(x)")  # what "$@" stands for in a start script
SCRIPT = """
import json, os, sys
names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE")
facts = {name: int(os.environ[name]) for name in names}
facts |= {"argv": sys.argv[1:], "run": os.environ["TORCHELASTIC_RUN_ID"], "port": os.environ["MASTER_PORT"]}
with open("rank-" + os.environ["RANK"], "x") as file:
    json.dump(facts, file)
"""
MEETING = ("--rdzv_endpoint", "--rdzv-endpoint", "--master_addr", "--master-addr", "--master_port", "--master-port",
           "--node_rank", "--node-rank")  # fmt: skip


def _name(row: dict[str, Any]) -> str:
    return re.sub(r"[^\w.:/]+", "-", f"{row['source'][:40]} {ROWS.index(row)}")


def _words(row: dict[str, Any], shell: Shell) -> list[str]:
    """Return the line's words after the launcher's name, as bash makes them."""
    line = LAUNCHER.sub("printf '%s\\\\0' ", row["line"])
    assert line != row["line"], "the launcher's name is not at the beginning"
    done = subprocess.run(
        ["bash", "-c", line, "bash", *USERS_ARGUMENTS],
        env={**shell.environ, **row["environment"]}, capture_output=True, check=True,
    )  # fmt: skip
    return done.stdout.decode().split("\0")[:-1]


def _ranks_per_node(row: dict[str, Any]) -> int:
    return 2 if row["ranks_per_node"] == "gpu" else int(row["ranks_per_node"])


def _visible(row: dict[str, Any]) -> str:
    return "0,1" if row["ranks_per_node"] == "gpu" else ""


def _on_this_machine(words: Sequence[str], node: int, port: int) -> list[str]:
    """Return the words with the meeting point on this machine, and with this node's number where there is one."""
    replaced = list(words)
    for place, word in enumerate(words):
        name, equals, value = word.partition("=")
        if name not in MEETING:
            continue
        at = place if equals else place + 1
        value = value if equals else words[at]
        new = _here(name.replace("_", "-"), value, node, port)
        replaced[at] = f"{name}={new}" if equals else new
    return replaced


def _here(name: str, value: str, node: int, port: int) -> str:
    if name == "--rdzv-endpoint":
        return f"127.0.0.1:{port}"
    return {"--master-addr": "127.0.0.1", "--master-port": str(port), "--node-rank": str(node)}[name]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def torchrun_shell(shell: Shell) -> Shell:
    """Offer train.py, and a `python` as the lines write it."""
    shell.script(SCRIPT)
    python = shell.script(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} "$@"\n', "bin/python")
    python.chmod(0o755)
    shell.environ["PATH"] = f"{python.parent}:{os.environ['PATH']}"
    return shell


def _start(shell: Shell, row: dict[str, Any], words: Sequence[str]) -> list[str]:
    """Run the line on as many nodes as it asks for; return what each said."""
    num_nodes = row["num_nodes"]
    port = _free_port()
    said = []
    with contextlib.ExitStack() as stack:
        environ = {**row["environment"], "CUDA_VISIBLE_DEVICES": _visible(row)}
        nodes = []
        for node in range(num_nodes):
            own = _on_this_machine(words, node, port) if num_nodes > 1 else words
            nodes.append(stack.enter_context(shell.start(*own, **environ)))
        for process in nodes:
            _, stderr = process.communicate(timeout=60)
            said.append(stderr.decode())
            assert process.returncode == 0, said
    return said


def _expected_arguments(words: Sequence[str], rank: int) -> list[str]:
    if "--no-python" in words:
        return ["--rank", str(rank)]
    first = words.index("train.py") if "train.py" in words else words.index("train")
    return [word for word in words[first + 1 :] if word]


@pytest.mark.parametrize("row", some(ROWS, 6), ids=_name)
def test_line_starts_the_ranks_that_it_asks_for(torchrun_shell: Shell, row: dict[str, Any]) -> None:
    """torchrun's name is replaced by `echelon run`, and nothing else."""
    shell = torchrun_shell
    words = _words(row, shell)
    said = _start(shell, row, words)
    per_node, num_nodes = _ranks_per_node(row), row["num_nodes"]
    found = [json.loads(path.read_text()) for path in shell.files("rank-*")]
    ranks = {facts["RANK"]: facts for facts in found}
    assert sorted(ranks) == list(range(per_node * num_nodes))
    for rank, facts in ranks.items():
        assert (facts["WORLD_SIZE"], facts["LOCAL_WORLD_SIZE"]) == (per_node * num_nodes, per_node)
        assert (facts["GROUP_RANK"], facts["LOCAL_RANK"]) == divmod(rank, per_node)
        assert facts["GROUP_WORLD_SIZE"] == num_nodes
        assert facts["argv"] == _expected_arguments(words, rank)
    assert len({(facts["port"], facts["run"]) for facts in found}) == 1
    named = [_is_any_without_meaning(words, num_nodes=num_nodes)] * num_nodes
    assert [text.count("without effect here") for text in said] == named
    assert len(shell.files("echelon-runs/*")) == 1


OF_SEVERAL_NODES = ("node_rank", "master_addr", "master_port", "rdzv_endpoint")  # of no use where no other node comes


def _is_any_without_meaning(words: Sequence[str], *, num_nodes: int) -> int:
    given = scan(words).values
    is_alone = num_nodes == 1 and any(key in given for key in OF_SEVERAL_NODES)
    return int(is_alone or any(option.no_meaning and option.key in given for option in OPTIONS))


def _in_other_spelling(word: str) -> str:
    name, equals, value = word.partition("=")
    if not name.startswith("--"):
        return word
    inner = name[2:]
    other = inner.replace("-", "_") if "-" in inner else inner.replace("_", "-")
    return f"--{other}{equals}{value}"


@pytest.mark.parametrize("row", ROWS, ids=_name)
def test_line_means_the_same_in_the_other_spelling(torchrun_shell: Shell, row: dict[str, Any]) -> None:
    """--nproc_per_node is --nproc-per-node, and so for every option; what is the script's own is left alone."""
    words = _words(row, torchrun_shell)
    before = len(words) - len(scan(words).rest)
    other = [_in_other_spelling(word) for word in words[:before]] + words[before:]
    assert other != words
    assert scan(other) == scan(words)


@pytest.mark.parametrize("row", some([row for row in ROWS if row["num_nodes"] == 1], 5), ids=_name)
def test_line_in_the_other_spelling_makes_the_same_plan(torchrun_shell: Shell, row: dict[str, Any]) -> None:
    """The plan that --dry-run prints is the same for both spellings."""
    shell = torchrun_shell
    words = _words(row, shell)
    before = len(words) - len(scan(words).rest)
    environ = {**row["environment"], "CUDA_VISIBLE_DEVICES": _visible(row)}
    plans = []
    for line in (words, [_in_other_spelling(word) for word in words[:before]] + words[before:]):
        done = shell.fork("--dry-run", "--json", *line, **environ)
        assert done.exit_code == 0, done.said
        plan = json.loads(done.stdout)
        assert (plan["ranks_per_node"], plan["num_nodes"]) == (_ranks_per_node(row), 1)
        plans.append({name: plan[name] for name in plan if name not in ("run_id", "run_directory", "agents")})
    assert plans[0] == plans[1]


def test_enough_lines_are_the_guides_own() -> None:
    """At least 15 different lines stand here as public guides print them."""
    verbatim = {row["line"] for row in ROWS if row["verbatim"]}
    assert len(verbatim) >= 15


def test_every_option_of_torchrun_is_known() -> None:
    """Whatever the installed torchrun accepts is accepted here, in both spellings and with as many values."""
    run = pytest.importorskip("torch.distributed.run")
    for action in run.get_args_parser()._actions:
        for name in action.option_strings:
            wants_value = action.nargs is None
            words = [name, "1"] if wants_value else [name]
            given = scan([*words, "train.py"])
            assert given.rest == ("train.py",), name
            assert list(given.values.values()) == [["1" if wants_value else ""]], name


def test_options_without_meaning_are_named_once(torchrun_shell: Shell) -> None:
    """One line names all of them, grouped by reason; data on standard output stays clean."""
    words = ["--standalone", "--rdzv-backend=c10d", "--role", "x", "--log_dir=logs", "--standalone", "train.py"]
    done = torchrun_shell.fork(*words)
    first, *_ = done.said.splitlines()
    assert first == (
        "echelon: without effect here: --standalone --rdzv-backend (echelon finds the nodes by itself); "
        "--role (all ranks have the same role); --log-dir (every rank has its own log in the run directory)"
    )
    assert done.said.count("without effect here") == 1
    assert done.stdout == b""


def test_rdzv_id_is_the_run_that_ranks_see(torchrun_shell: Shell) -> None:
    """--rdzv-id is TORCHELASTIC_RUN_ID, byte for byte."""
    done = torchrun_shell.fork("--rdzv_id", "job 47/11 ü", "train.py")
    assert done.exit_code == 0
    assert json.loads((torchrun_shell.folder / "rank-0").read_text())["run"] == "job 47/11 ü"


@pytest.mark.parametrize("option", some([["-t3"], ["--tee", "3"], ["--tee=1"]], 2))
def test_tee_shows_all_ranks(torchrun_shell: Shell, option: list[str]) -> None:
    """torchrun's way to see every rank shows every rank."""
    torchrun_shell.script("import os; print('rank', os.environ['RANK'])", "say.py")
    done = torchrun_shell.fork("-n", "2", *option, "say.py")
    assert sorted(done.stdout.splitlines()) == [b"[0] rank 0", b"[1] rank 1"]


def test_virtual_local_rank_shows_each_rank_its_own_device(torchrun_shell: Shell) -> None:
    """torchrun 2.13's --virtual-local-rank is --visible own."""
    torchrun_shell.script("import os; print(os.environ['LOCAL_RANK'], os.environ['CUDA_VISIBLE_DEVICES'])", "say.py")
    words = ["-n", "2", "--virtual-local-rank", "--show", "all", "say.py"]
    done = torchrun_shell.fork(*words, CUDA_VISIBLE_DEVICES="5,6")
    assert sorted(done.stdout.splitlines()) == [b"[0] 0 5", b"[1] 0 6"], done.said


def test_nodes_that_come_late_are_waited_for(torchrun_shell: Shell) -> None:
    """Nodes started by hand may come in any order: here the first node comes last."""
    shell = torchrun_shell
    words = ["--nnodes=2", "-n", "2", f"--rdzv-endpoint=127.0.0.1:{_free_port()}", "train.py"]
    with shell.start(*words[:-1], "--node-rank", "1", "train.py") as late:
        assert late.poll() is None
        first = shell.fork(*words[:-1], "--node-rank", "0", "train.py")
        assert (first.exit_code, late.wait(10)) == (0, 0), first.said
    assert len(shell.files("rank-*")) == 4


def test_failure_on_one_node_is_the_code_of_all(torchrun_shell: Shell) -> None:
    """Each `echelon run` of a meeting ends with the run's code, so that the shell on every node knows."""
    shell = torchrun_shell
    shell.script("import os, sys, time\nif os.environ['RANK'] == '3': sys.exit(6)\ntime.sleep(60)\n", "fail.py")
    words = ["--nnodes=2", "-n", "2", f"--rdzv-endpoint=127.0.0.1:{_free_port()}", "fail.py"]
    with shell.start(*words) as first, shell.start(*words) as second:
        said = first.communicate(timeout=60)[1] + second.communicate(timeout=60)[1]
        assert (first.returncode, second.returncode) == (6, 6)
    assert said.count(b"failed first") == 1
    assert b"rank 3 on" in said
