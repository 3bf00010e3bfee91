"""Working directory, umask, user and groups are those of the shell."""

import os

umask = os.umask(0)
os.umask(umask)
print(os.getcwd(), oct(umask), os.getresuid(), os.getresgid(), sorted(os.getgroups()))
