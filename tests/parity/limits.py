"""Resource limits and priority are those of the process that started the run."""

import os
import resource

for name in ("NOFILE", "CORE", "STACK", "NPROC", "AS", "MEMLOCK", "CPU", "FSIZE"):
    print(name, resource.getrlimit(getattr(resource, "RLIMIT_" + name)))
print(os.nice(0))
with open("/proc/self/oom_score_adj") as file:
    print(file.read())
