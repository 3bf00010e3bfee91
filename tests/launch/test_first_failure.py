"""The failure that explains the others: what ranks say when another one has ended, in words of real tickets."""

from dataclasses import replace

import pytest

from echelon.launch import failure
from echelon.launch.failure import (
    BY_SCHEDULER,
    CONNECTION_LOST,
    INTERRUPTED,
    KILLED,
    LOST_AGENT,
    LOST_NODE,
    LOST_WARM,
    NEVER,
    OWN_MISTAKE,
    REFUSED,
    UNKNOWN_PYTORCH,
    USER_ERROR,
    Facts,
    Failure,
    verdict,
)  # fmt: skip
from echelon.node import frames
from echelon.scheduler.protocol import EndReason

COLLECTIVE = """Traceback (most recent call last):
  File "/home/me/train.py", line 41, in <module>
    dist.all_reduce(total)
  File "/opt/lib/python3.12/site-packages/torch/distributed/distributed_c10d.py", line 2810, in all_reduce
    work.wait()
"""
OWN = """Traceback (most recent call last):
  File "/home/me/train.py", line 17, in <module>
    x = table[key]
KeyError: 'x'
"""


def of_rank(tail: str, *, rank: int = 0, time: float = 5.0) -> Failure:
    message = {"rank": rank, "status": 1, "time": time, "error_time": 0.0, "tail": tail, "oom_kills": 0, "why": ""}
    return failure.of_rank(message, node="n1", local_rank=rank, clock_offset=0.0, log="", stopped_at=NEVER)


@pytest.mark.parametrize(
    "last",
    [
        "torch.distributed.DistBackendError: NCCL error in: ../torch/csrc/distributed/c10d/NCCLUtils.hpp:268, internal "
        "error, NCCL version 2.14.3\nncclInternalError: Internal check failed.\nLast error:\n"
        "Net : Connection closed by remote peer user<50260>",
        "torch.distributed.DistBackendError: NCCL error in: ../torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:1347\n"
        "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.",
        "torch.distributed.DistBackendError: NCCL error\nsocketStartConnect: Connect to 10.0.0.2<45763> failed : "
        "Software caused connection abort",
        "RuntimeError: [../gloo/gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.1.1]:27911",
    ],
)
def test_words_of_a_lost_connection(last: str) -> None:
    assert of_rank(COLLECTIVE + last).cause == CONNECTION_LOST


def test_lost_agent_explains_an_unknown_error_in_a_collective() -> None:
    """Also if the loss was noticed after the error."""
    unknown = of_rank(COLLECTIVE + "RuntimeError: something new\n")
    lost = Failure(cause=LOST_AGENT, node="n2", time=unknown.time + 1)
    assert unknown.cause == USER_ERROR
    assert failure.first([unknown, lost]) is lost
    own = of_rank(OWN)
    assert failure.first([own, lost]) is own


@pytest.mark.parametrize(
    "last",
    [
        '  File "/opt/torch/autograd/graph.py", line 824, in _engine_run_backward\n    return run(t_outputs)\n'
        "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/buffer.cc:1] something new\n",
        "torch.distributed.DistBackendError: NCCL error in: NCCLUtils.hpp:268, something new\n",
    ],
)
def test_words_of_a_backend_are_enough(last: str) -> None:
    error = of_rank('Traceback (most recent call last):\n  File "/home/me/train.py", line 41, in <module>\n' + last)
    lost = Failure(cause=LOST_AGENT, node="n2", time=error.time + 1)
    assert failure.first([error, lost]) is lost
    later = of_rank(OWN, rank=1, time=error.time + 1)
    assert failure.first([error, later]) is error


def test_download_without_a_network_is_an_error_of_the_script() -> None:
    tail = OWN.replace("KeyError: 'x'", "URLError: <urlopen error [Errno 101] Network is unreachable>")
    assert of_rank(tail).cause == USER_ERROR


def test_error_in_a_collective_explains_those_who_lost_the_connection() -> None:
    """A call with wrong arguments is the script's mistake; the others only noticed that this rank ended."""
    mistake = of_rank(COLLECTIVE + "ValueError: invalid group\n", rank=3, time=9.0)
    noticed = of_rank(COLLECTIVE + "RuntimeError: Connection reset by peer\n", rank=0, time=8.9)
    assert failure.first([noticed, mistake]) is mistake


@pytest.mark.parametrize(
    "last",
    [
        "redis.exceptions.ConnectionError: Error 111 connecting to 10.0.0.9:6379. Connection refused.",
        "requests.exceptions.ConnectionError: ('Connection aborted.', ConnectionResetError(104, 'Connection reset'))",
        "BrokenPipeError: [Errno 32] Broken pipe",
        "psycopg2.OperationalError: server closed the connection unexpectedly: Socket closed",
    ],
)
def test_lost_database_is_an_error_of_the_script(last: str) -> None:
    """Another rank is blamed only for what the ranks say to each other."""
    assert of_rank(OWN.replace("KeyError: 'x'", last)).cause == USER_ERROR


@pytest.mark.parametrize("status", [-15, -9, 1])
def test_rank_that_refuses_explains_those_who_lost_the_connection(status: int) -> None:
    """Also if it ends so slowly that the others are heard first, and that all ranks are stopped meanwhile."""
    lost = of_rank(COLLECTIVE + "RuntimeError: Connection closed by peer [127.0.1.1]:27911", rank=0, time=5.0)
    told = "echelon.ScalingError: the loss of the first step differs\n  way out: echelon run --scale off"
    message = {"rank": 1, "status": status, "time": 6.5, "error_time": 0.0, "tail": told, "oom_kills": 0, "why": ""}
    refused = failure.of_rank(message, node="n1", local_rank=1, clock_offset=0.0, log="", stopped_at=5.6)
    assert failure.first([lost, refused]).cause == REFUSED
    script = replace(lost, cause=USER_ERROR)
    assert failure.first([script, refused]).cause == USER_ERROR  # which came first


def test_words_of_a_rank_about_itself() -> None:
    """A rank knows whether an error is echelon's own, and whether echelon knows its PyTorch."""
    own = of_rank(OWN + frames.own_line())
    assert own.cause == OWN_MISTAKE
    assert failure.error_line(own) == "KeyError: 'x'"
    assert failure.describe(own, device="", with_tail=False)[-2] == "  please report it, with this file:"
    unknown = of_rank("echelon.UnknownPyTorch: echelon 0.1.0 does not know this PyTorch (9.9): …\n  way out: …\n")
    assert (unknown.cause, unknown.exit_code) == (UNKNOWN_PYTORCH, 2)


AGENT = Failure(cause=LOST_AGENT, detail="its connection ended", rank=3, node="n1", tail="words")
LOST_CONNECTION = Failure(cause=CONNECTION_LOST, time=5.0)
DOWN = {"n1": "Slurm reports that n1 is down", "n2": "Slurm reports that n2 is down*"}
CANCELLED = EndReason(text="the job was cancelled", is_node_failure=False)
NODE_FAILED = EndReason(text="a node of the job failed", is_node_failure=True)
TERMINATED, STOPPED = (Failure(cause=cause, detail="SIGTERM", exit_code=143) for cause in (KILLED, INTERRUPTED))
CTRL_C = Failure(cause=INTERRUPTED, detail="SIGINT", exit_code=130)
MISTAKE = Failure(cause=USER_ERROR, node="n1", exit_code=1)


@pytest.mark.parametrize(
    ("reason", "facts", "expected"),
    [
        (None, Facts(), None),
        (None, Facts(stop_signal=15), (INTERRUPTED, "SIGTERM")),
        (AGENT, Facts(stop_signal=2, nodes_down=DOWN), (INTERRUPTED, "SIGINT")),
        (AGENT, Facts(nodes_down=DOWN), (LOST_NODE, "Slurm reports that n1 is down")),
        (replace(AGENT, node=""), Facts(nodes_down=DOWN), (LOST_NODE, "Slurm reports that n1 is down, ")),
        (replace(AGENT, node="n3"), Facts(nodes_down=DOWN), (LOST_AGENT, "its connection ended")),
        (replace(MISTAKE, cause=KILLED), Facts(nodes_down=DOWN), (LOST_NODE, "Slurm reports that n1 is down")),
        (replace(AGENT, cause=LOST_WARM), Facts(nodes_down=DOWN), (LOST_NODE, "Slurm reports that n1 is down")),
        (MISTAKE, Facts(nodes_down=DOWN, of_scheduler=CANCELLED), (USER_ERROR, "")),
        (LOST_CONNECTION, Facts(ended_well={0: 4.0, 1: 6.0}), (CONNECTION_LOST, "rank 0 had ended before, ")),
        (LOST_CONNECTION, Facts(ended_well={1: 6.0}), (CONNECTION_LOST, "")),
        (AGENT, Facts(of_scheduler=NODE_FAILED), (LOST_NODE, "a node of the job failed")),
        (TERMINATED, Facts(of_scheduler=CANCELLED), (BY_SCHEDULER, "the job was cancelled")),
        (STOPPED, Facts(of_scheduler=CANCELLED), (BY_SCHEDULER, "the job was cancelled")),
        (CTRL_C, Facts(of_scheduler=CANCELLED), (INTERRUPTED, "SIGINT")),
    ],
)
def test_what_else_is_known_explains_a_failure(
    reason: Failure | None, facts: Facts, expected: tuple[str, str] | None
) -> None:
    """A person's signal outweighs all; a node that Slurm reports explains its agent and its ranks, and no other."""
    explained = verdict(reason, facts)
    assert (explained is None) == (expected is None)
    if explained is not None and expected is not None:
        assert explained.cause == expected[0]
        assert explained.detail.startswith(expected[1])
        assert expected[1] or not explained.detail
