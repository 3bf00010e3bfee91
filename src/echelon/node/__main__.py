"""The commands of node.pyz: the agent, and programs that run on nodes beside it."""

import os
import signal
import sys
from typing import List


def main(argv: List[str]) -> int:
    """Run the agent, or one of the other commands of node.pyz."""
    if argv[:1] == ["exec"]:
        from ..environment import become

        become.main(argv[1:], os.environ)
    if argv[:1] == ["agent"] and len(argv) in (2, 3, 5):
        from ..environment.errors import WrongEnvironmentError

        try:
            return _agent(os.path.abspath(argv[1]), int(argv[2]) if len(argv) > 2 else -1, argv[3:])
        except WrongEnvironmentError as error:  # Slurm's or mpirun's variables for this task cannot be read
            sys.stderr.write(
                "echelon: agent on %s: %s\n  hint: %s\n" % (os.uname().nodename, error.message, error.hint)
            )
            return 2
    if argv[:1] == ["clear"] and len(argv) == 5:
        return _clear(os.path.abspath(argv[1]), int(argv[2]), argv[3:])
    if argv[:1] == ["survey"] and len(argv) == 2:
        from .survey import visit

        return visit.main(argv[1], os.environ)
    if argv[:1] == ["lookout"] and len(argv) == 3:
        from .survey import lookout

        return lookout.main(argv[1], argv[2], os.environ)
    if argv[:1] == ["pool"] and len(argv) in (3, 4):
        return _pool(argv[1], argv[2])
    if argv[:1] == ["stage"] and len(argv) in (2, 3):
        from . import staging

        return staging.main(argv[1], int(argv[2]) if len(argv) > 2 else -1, os.environ)
    if argv == ["topology"]:
        from ..topology import discover

        sys.stdout.write(discover.dump("/", os.environ) + "\n")
        return 0
    sys.stderr.write(
        "usage: python3 node.pyz agent RUN_DIRECTORY [INDEX [LIFE PID]]\n"
        "       python3 node.pyz clear RUN_DIRECTORY INDEX LIFE PID\n"
        "       python3 node.pyz exec PROGRAM …\n"
        "       python3 node.pyz survey DIRECTORY\n"
        "       python3 node.pyz lookout RUN_DIRECTORY NODE\n"
        "       python3 node.pyz pool start|status|stop IDLE-SECONDS\n"
        "       python3 node.pyz stage DIRECTORY [INDEX]\n"
        "       python3 node.pyz topology\n"
    )
    return 2


def _pool(act: str, idle_seconds: str) -> int:
    """Be the pool of this node, or ask it and print its answer as JSON; null without a pool."""
    import json

    from . import pool_place

    folder = pool_place.folder(os.environ)
    if act == "start":
        from . import pool

        return pool.main(folder, float(idle_seconds), os.path.abspath(sys.argv[0]))
    sys.stdout.write(json.dumps(pool_place.ask(folder, {"kind": act})) + "\n")
    return 0


def _give_up(number: int, _frame: object) -> None:
    raise SystemExit(128 + number)


def _agent(run_directory: str, index: int, life_words: List[str]) -> int:
    """Run an agent; `life_words` are the number and the process of the lost agent that this one replaces."""
    from . import guard

    watcher = guard.start()
    from . import agent_spec, sweep
    from .agent import Agent
    from .connect import ConnectError, connect

    instructions = agent_spec.read(run_directory)
    place = agent_spec.find(instructions, index, os.environ)
    archive = os.path.abspath(sys.argv[0])
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, _give_up)
    life = sweep.Life.read(life_words, instructions.first_life)
    sweep.clear(instructions.run_id, place.agent_index, life, run_directory, watcher.pid)
    agent = Agent(instructions, place, watcher, archive=archive, run_directory=run_directory, life=life.number)
    try:
        channel = connect(
            instructions.addresses,
            instructions.secret,
            agent.facts(),
            seconds=instructions.connect_seconds,
            refused_seconds=instructions.refused_seconds,
        )
    except ConnectError as error:
        sys.stderr.write("echelon: agent on %s: %s\n" % (place.node, error))
        agent.leave()
        return 1
    except SystemExit:
        agent.leave()
        raise
    return agent.run(channel)


def _clear(run_directory: str, index: int, life_words: List[str]) -> int:
    """End a frozen agent of this node, and its ranks; nothing replaces it here."""
    from . import agent_spec, sweep

    fields = agent_spec.read_fields(run_directory)
    life = sweep.Life.read(life_words, fields["first_life"])
    sweep.clear(fields["run_id"], index, life, run_directory, os.getpid())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
