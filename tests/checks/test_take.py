"""A survey comes back whatever its parts do, and real processes show what was done to them."""

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from tests.checks import nodes
from tests.runs import ECHELON
from tests.test_house import pythons

from echelon.hardware.answers import Health
from echelon.hardware.nvidia import smi
from echelon.launch import package
from echelon.node.survey import folders, nouns, process, take, visit
from echelon.node.survey.take import Part


def check(
    *arguments: str, folder: Path, before: tuple[str, ...] = (), **environ: str
) -> subprocess.CompletedProcess[str]:
    kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    return subprocess.run(
        [*before, *ECHELON, "check", *arguments],
        cwd=folder, env={**kept, **environ}, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


def answer(*arguments: str, folder: Path, before: tuple[str, ...] = (), **environ: str) -> dict[str, Any]:
    done = check("--json", *arguments, folder=folder, before=before, **environ)
    assert done.stdout, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def messages(found: dict[str, Any]) -> str:
    return "\n".join(f"{each['severity']}: {each['message']} → {each['remedy']}" for each in found["findings"])


def test_an_allocation_without_srun_is_this_node(tmp_path: Path) -> None:
    """Inside of a container there is no srun: the node that one stands on is checked, and that is said."""
    environ = {"PATH": str(tmp_path), "SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "nid[1-2]"}
    done = check("--fast", folder=tmp_path, **environ)
    assert done.returncode == 0, done.stderr
    assert "note: there is no srun here (this may be a container): echelon checks only this node" in done.stderr
    assert " on 1 node in " in done.stdout


def test_a_part_that_blocks_costs_one_deadline() -> None:
    """What blocks is killed and named; what comes after it is read; what needs it is not tried."""
    parts = [
        Part("first", lambda: 1),
        Part("blocked", lambda: time.sleep(60)),
        Part("dependent", lambda: time.sleep(60), "blocked"),
        Part("broken", lambda: 1 // 0),
        Part("last", lambda: [2]),
    ]
    began = time.monotonic()
    found, silent = take.gather(parts, seconds=0.5)
    assert time.monotonic() - began < 30  # of 60
    assert found == {"first": 1, "last": [2]}
    assert silent == {
        "blocked": "did not answer within 0.5 s",
        "broken": "failed: ZeroDivisionError: integer division or modulo by zero",
    }


def test_a_child_that_dies_is_a_part_that_failed() -> None:
    """A part that takes its process with it is named, with how it ended and no deadline; the rest is read."""
    found, silent = take.gather([Part("deadly", lambda: os.kill(os.getpid(), 9)), Part("last", lambda: 3)], seconds=5)
    assert found == {"last": 3}
    assert silent == {"deadly": "failed: its reader ended with signal 9"}


def test_no_child_is_left() -> None:
    """After a survey there is no process that was not there before."""
    before = children()
    take.gather([Part("blocked", lambda: time.sleep(60))], seconds=0.1)
    assert children() <= before


def children() -> set[str]:
    return set(Path(f"/proc/self/task/{threading.get_native_id()}/children").read_text().split())


def test_a_survey_survives_its_journey(forest: nodes.Forest) -> None:
    """What is sent as JSON is rebuilt as it was, to the type."""
    good = nodes.BY_NAME["LUMI, a whole node"]
    survey = nodes.survey(good, forest.tree(good))
    assert nouns.rebuild(nouns.Survey, json.loads(json.dumps(nouns.plain(survey)))) == survey


@pytest.mark.parametrize("data", [{"node": "n", "what": 1}, [], "text", 3, {"node": "n", "cores": 7}, {}])
def test_other_data_is_refused(data: object) -> None:
    """What is no survey raises ValueError, and nothing else."""
    with pytest.raises(ValueError, match="not a"):
        nouns.rebuild(nouns.Survey, data)


def test_secrets_are_not_read() -> None:
    """Variables that may hold a secret never leave the node."""
    found = process.read_settings(
        {"HF_TOKEN": "x", "HF_HOME": "/h", "HF_HUB_KEY": "y", "NCCL_DEBUG": "INFO", "OTHER": "z"}
    )
    assert found.variables == {"HF_HOME": "/h", "NCCL_DEBUG": "INFO"}


def nvidia_smi(folder: Path, body: str) -> dict[str, str]:
    """Put a program of that name on PATH."""
    program = folder / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n{body}\n")
    program.chmod(0o755)
    return {"PATH": f"{folder}:{os.environ['PATH']}"}


GPU_ROW = "00000000:07:00.0, 1024, 3, 2, Yes, 8, 16, Active, Not Active, Active, Not Active"


def test_what_nvidia_smi_says_is_read(tmp_path: Path) -> None:
    """Errors, throttling, lanes and processes; an older driver's words for throttling too."""
    environ = nvidia_smi(
        tmp_path,
        f"""case "$1" in
*clocks_event*) echo 'Field "clocks_event_reasons.hw_slowdown" is not a valid field to query.'; exit 2;;
--query-gpu*) echo '{GPU_ROW}';;
*) echo '00000000:07:00.0, 4711, /usr/bin/python3';;
esac""",
    )
    found = smi.read_health(environ)
    assert found is not None
    assert found.devices == (
        Health(
            "0000:07:00.0", 1 << 30, 3, 2, "pages of its memory wait to be retired",
            ("the hardware slows it down", "the driver cools it"), 8, 16, ("4711 python3",),
        ),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("version", "bits", "why"),
    [
        ((1, 3), 1 << 36, ("it is too hot",)),
        ((1, 3), 1 << 47 | 1 << 0, ("the board says that it is too hot",)),
        ((1, 3), 0b111, ()),  # its power limit: what a busy device does
        ((1, 3), (1 << 64) - 1, ()),
        ((1, 4), 1 << 36, ()),  # another layout
    ],
)
def test_why_an_amd_device_is_held_down(
    forest: nodes.Forest, version: tuple[int, int], bits: int, why: tuple[str, ...]
) -> None:
    """The firmware's table is read by its version; heat is told, and a power limit is not."""
    good = nodes.BY_NAME["LUMI, a whole node"]
    root = forest.tree(good)
    table = root / "sys/bus/pci/devices/0000:c9:00.0/gpu_metrics"
    table.write_bytes(bytes([120, 0, *version]) + bytes(108) + bits.to_bytes(8, "little"))
    try:
        survey = nodes.survey(good, root)
    finally:
        table.unlink()
    assert survey.healths.devices[2].throttled == why
    said = [each.message for each in nodes.judge(good, [survey]) if each.check == "health"]
    assert said == [f"device 2 runs at reduced speed: {each}" for each in why]


def test_a_file_that_blocks_costs_one_part(forest: nodes.Forest) -> None:
    """A file whose opening never ends silences the part that reads it, and no other."""
    good = nodes.BY_NAME["a virtual machine without devices"]
    root = forest.tree(good)
    (root / "etc").mkdir(exist_ok=True)
    os.mkfifo(root / "etc/ld.so.cache")
    try:
        survey = nodes.survey(good, root, part_seconds=3.0)
    finally:
        (root / "etc/ld.so.cache").unlink()
    assert survey.silent == {"network": "did not answer within 3 s"}
    assert {"cores", "devices", "folders", "limits", "software"} <= set(survey.answered)
    findings = nodes.judge(good, [survey])
    assert [(each.check, each.message) for each in findings] == [("answers", "its network did not answer within 3 s")]


def test_an_nvidia_smi_that_fails_is_no_answer(tmp_path: Path) -> None:
    """An exit code, rubbish and no program at all: nothing is known, and nothing raises."""
    assert smi.read_health(nvidia_smi(tmp_path, "exit 9")) is None
    assert smi.read_health({"PATH": "/nowhere"}) is None
    found = smi.read_health(nvidia_smi(tmp_path, "echo Unable to determine the device handle"))
    assert found is not None
    assert found.devices == ()


def test_the_mount_with_the_longest_name_counts(tmp_path: Path) -> None:
    """A folder lies where its own mount is, not where one of a similar name is."""
    place = tmp_path / "proc/self"
    place.mkdir(parents=True)
    place.joinpath("mountinfo").write_text(
        "21 1 0:20 / / rw - ext4 a rw\n22 21 0:21 / /scratch rw - lustre b rw\n23 21 0:21 / /scratch2 rw - nfs4 c rw\n"
        "24 21 0:22 / /with\\040space rw - tmpfs d rw\nbroken line\n"
    )
    environ = {"HOME": "/scratch2/me", "TMPDIR": "/scratch", "TRITON_CACHE_DIR": "/with space/triton"}
    found = {
        each.purpose: each.filesystem for each in folders.read(str(tmp_path), environ, checkpoints="/data").folders
    }
    assert found["temporary files"] == "lustre"
    assert found["PyTorch's downloads"] == "nfs4"
    assert found["Triton's kernels"] == "tmpfs"
    assert found["checkpoints"] == "ext4"


@pytest.mark.parametrize("count", [2, 3, 16, 17, 100, 1024])
def test_every_node_is_tried_by_others_and_tries_others(count: int) -> None:
    """Whatever the number of nodes: each is tried, both ways, and one's own work stays small."""
    tries = {index: visit.partners(index, count) for index in range(count)}
    for index, others in tries.items():
        assert index not in others
        assert len(others) == len(set(others)) <= max(15, 2 * count.bit_length())
        assert all(index in tries[other] for other in others)


def test_doors_greet_who_knows_them() -> None:
    """An open door is reached, a closed one and another service are named with the reason."""
    own, other = visit.NodePort("word", "127.0.0.1"), visit.NodePort("another", "127.0.0.1")
    closed = visit.NodePort("word", "127.0.0.1")
    port = closed.port
    closed.socket.close()
    code = "import sys; from echelon.node.survey import visit; d = visit.NodePort('word', '127.0.0.1'); print(d.port, flush=True); d.socket.setblocking(True); d.answer(); d.answer()"  # noqa: E501
    server = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    good = int(server.stdout.readline())
    doors = {
        "good": ("127.0.0.1", good), "closed": ("127.0.0.1", port), "unknown": ("no-such-name.invalid", 1),
        "stranger": ("127.0.0.1", other.port),
    }  # fmt: skip
    unreached = visit.visit(doors, "word", own=own, seconds=2.0)
    server.terminate()
    server.wait()
    server.stdout.close()
    assert unreached["closed"] == "Connection refused"
    assert unreached["unknown"] == "the name no-such-name.invalid does not resolve"
    assert unreached["stranger"] == "no answer within 2 s"  # it listens and nobody opens
    assert set(unreached) == {"closed", "unknown", "stranger"}


def test_a_mask_by_taskset_is_seen(tmp_path: Path) -> None:
    """A process that taskset has put on one core has too few for two ranks."""
    found = answer("--fast", "-n", "2", folder=tmp_path, before=("taskset", "-c", "0"))
    assert "error: 2 ranks on 1 core" in messages(found)


def test_a_limit_of_open_files_is_seen(tmp_path: Path) -> None:
    """ulimit -n 100 is found, with the ulimit that repairs it."""
    found = answer("--fast", folder=tmp_path, before=("sh", "-c", 'ulimit -Sn 100; exec "$@"', "sh"))
    assert "warning: the limit is 100 open files" in messages(found)
    assert "→ ulimit -n " in messages(found)


def test_a_variable_is_seen_on_this_machine(tmp_path: Path) -> None:
    """The environment of the command is that which is judged."""
    found = answer("--fast", folder=tmp_path, NCLL_DEBUG="INFO", TRITON_CACHE_DIR="/tmp/$(whoami)")
    assert "nothing reads NCLL_DEBUG; programs read NCCL_DEBUG" in messages(found)
    assert "error: TRITON_CACHE_DIR holds an unexpanded placeholder" in messages(found)


def test_exit_codes(tmp_path: Path) -> None:
    """0 without errors, 1 with one or with a warning under --strict, 2 for what is no option."""
    assert check("--fast", folder=tmp_path).returncode == 0
    assert check("--fast", "-n", "4096", folder=tmp_path).returncode == 1
    assert check("--fast", folder=tmp_path, NCLL_DEBUG="INFO").returncode == 0
    assert check("--fast", "--strict", folder=tmp_path, NCLL_DEBUG="INFO").returncode == 1


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("train.py",), "it checks nodes"),
        (("-n", "none"), "a whole number from 1 to 4096"),
        (("-n", "0"), "a whole number from 1 to 4096"),
        (("--deadline", "-3"), "a whole number from 1 to 3600"),
        (("--checkpoints", ""), "give a folder"),
        (("--checkpoints", "/etc/passwd"), "give a folder"),
        (("--machine", "nowhere"), "nowhere"),
        (("--machine", ""), "give the name of a machine"),
        (("--json", "--exclude-bad"), "both write to standard output"),
        (("--fats",), "--fast"),
    ],
)
def test_wrong_input_is_refused(tmp_path: Path, arguments: tuple[str, ...], says: str) -> None:
    """One clear error, exit code 2, no traceback, no output."""
    done = check(*arguments, folder=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("echelon: error: ")
    assert says in done.stderr
    assert "Traceback" not in done.stderr


def test_every_check_is_listed(tmp_path: Path) -> None:
    """--list has each check with what it is about."""
    done = check("--list", folder=tmp_path)
    assert done.returncode == 0
    assert len(done.stdout.splitlines()) > 20
    assert all(line.endswith("?") for line in done.stdout.splitlines())


SURVEY_HERE = (
    "import json, sys; sys.path.insert(0, sys.argv[1]); from _echelon.node.survey import nouns, take; "
    "print(json.dumps(nouns.plain(take.survey(take.SurveyRequest(is_full=True), {'HOME': '/tmp'}))))"
)


@pytest.mark.parametrize("python", pythons(), ids=lambda path: Path(path).name)
def test_every_python_takes_a_survey(tmp_path: Path, python: str) -> None:
    """From the zip, with the standard library of any Python from 3.9 on: all parts answer."""
    archive = tmp_path / "node.pyz"
    package.write(str(archive))
    done = subprocess.run(
        [python, "-I", "-S", "-c", SURVEY_HERE, str(archive)], capture_output=True, text=True, check=True, timeout=60
    )
    found = nouns.rebuild(nouns.Survey, json.loads(done.stdout))
    assert found.silent == {}
    assert {"cores", "devices", "folders", "limits", "network", "settings", "software"} <= set(found.answered)
