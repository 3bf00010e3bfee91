"""`multiprocessing.Process` runs a function of the script and reports its exit code."""

import multiprocessing
import sys


def leave(code: int) -> None:
    print("worker", multiprocessing.current_process().name, multiprocessing.parent_process().name, flush=True)
    sys.exit(code)


if __name__ == "__main__":
    print(multiprocessing.get_start_method(allow_none=True))
    print(multiprocessing.current_process().name, multiprocessing.parent_process())
    print(multiprocessing.active_children())
    process = multiprocessing.get_context(sys.argv[1]).Process(target=leave, args=(7,), name="seven")
    process.start()
    process.join()
    print(process.exitcode)
