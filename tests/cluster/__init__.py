"""Start a private Slurm on this machine, for the tests and for whoever wants to play.

One slurmctld, one munged and several slurmd run in a folder of their own, on ports of their own, and
belong to one guard process; when whoever started them ends, in whatever way, nothing of them is left.

    with Cluster(num_nodes=2) as cluster:
        print(cluster.run("srun", "--nodes=2", "hostname").stdout)

`Cluster.like(machine)` imitates any machine whose facts are known; `machines` says how far.

Known differences to the machine that it imitates:

- Nothing is enforced with task/none: `--cpu-bind` only prints "cluster configuration lacks support for
  cpu binding" and a rank may use every core and all memory of this machine. task/affinity enforces
  masks, but then a node has this machine's real cores and no reserved ones.
- There is no cgroup: a step signals the descendants of its tasks (other sessions included), but not a
  process whose parent has ended; that one outlives its step, and as long as it holds the step's output
  open the job stays in COMPLETING. On the real machine it is killed.
- The devices are copies of /dev/null; only the environment (ROCR_VISIBLE_DEVICES) is as it should be.
- A node has one hardware thread per core, unless the imitated machine has more, one socket, no NUMA
  domains and no switch topology.
- Slurm is Debian's 22.05: no `--gres-flags=allow-task-sharing`, and srun does not take over the job's
  `--cpus-per-task`.
- All nodes share one file system, one clock, one hostname (`hostname` is this machine's; the node's
  name is SLURMD_NODENAME) and one set of ports; a listener on a node is seen on all of them.
- There is no accounting (`sacct` answers nothing, and a job's TRES name no gres/gpu), no X11, no QOS, PMIx only after
  `tools/install-slurm --pmix`, and jobs run as root.
- Waits are short: a lost node is noticed after 9 to 16 s, KillWait is 5 s, and a requeued job starts
  again after about 11 s, not after 2 minutes. A node lost by `kill_slurmd` keeps its processes;
  `power_off` ends them too.
- Whether the real machine refuses a job over a partition's limits at once (EnforcePartLimits) is not
  known to us; this one does, so that a test fails and does not wait.
- Orphans on a node become children of the guard, not of process 1.
"""

from .errors import ClusterError
from .private import Cluster, missing_tools
from .processes import Process
from .texts import Ended

__all__ = ["Cluster", "ClusterError", "Ended", "Process", "missing_tools"]
