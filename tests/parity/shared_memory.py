"""Shared memory is found by name in a forked child and leaves no warning behind."""

import os
from multiprocessing import shared_memory

block = shared_memory.SharedMemory(create=True, size=16)
child = os.fork()
if child == 0:
    block.buf[0] = 42
    os._exit(0)
os.waitpid(child, 0)
print(block.buf[0])
block.close()
block.unlink()
