"""Kill a writer of checkpoints again and again, and read after each kill. It needs no torch, so a kill takes 10 ms."""

import os
import random
import signal
import sys
import time

from echelon.checkpoint.store import CheckpointStore

NUM_BYTES = (10, 100_000, 900_000)


def write(folder: str, step: int) -> None:
    """Write and publish the checkpoint of a step."""
    draft = CheckpointStore(folder, keep=2).begin(step)
    content = step.to_bytes(8, "little") * (random.choice(NUM_BYTES) // 8)
    files = {f"rank-{rank}.bin": draft.write(f"rank-{rank}.bin", content) for rank in range(2)}
    draft.publish(files, num_ranks=2, about={"step": step}, versions={})


def write_for_ever(folder: str, first: int, seed: int, told: int) -> None:
    """Write checkpoints, and tell the step of each that was published."""
    random.seed(seed)
    for step in range(first, first + 10**6):
        write(folder, step)
        os.write(told, step.to_bytes(8, "little"))


def kill_once(folder: str, first: int, seed: int, seconds: float) -> int:
    """Start a writer, kill it, and return the step that it published last, or 0."""
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            write_for_ever(folder, first, seed, write_end)
        finally:
            os._exit(1)
    os.close(write_end)
    time.sleep(seconds)
    os.kill(pid, signal.SIGKILL)
    status = os.waitpid(pid, 0)[1]
    assert os.WIFSIGNALED(status), "the writer ended by itself"
    with os.fdopen(read_end, "rb") as file:
        told = file.read()
    return int.from_bytes(told[-8:], "little") if told else 0


def main(folder: str, num_kills: int, seed: int) -> None:
    """Kill at random moments; the newest checkpoint that was announced, or a newer one, is whole each time."""
    random.seed(seed)
    published, num_torn = 0, 0
    for kill in range(num_kills):
        published = max(published, kill_once(folder, published + 1, seed + kill, random.uniform(0.001, 0.02)))
        num_torn += any(".partial-" in name for name in os.listdir(folder)) if os.path.isdir(folder) else 0
        found, findings = CheckpointStore(folder).latest(deep=True)
        assert findings == [], findings
        assert (found.step if found else 0) >= published, (found, published)
        published = found.step if found else 0
        if found is not None:
            assert found.manifest.about == {"step": found.step}
    write(folder, published + 1)
    names = os.listdir(folder)
    assert len(names) == 2, names  # two are kept: the writer that is not killed removes what the killed ones left
    print(published, num_torn)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
