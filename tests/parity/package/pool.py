"""Workers of every start method find the classes of a module that is run with -m."""

import multiprocessing
import sys


def double(number: int) -> int:
    return 2 * number


if __name__ == "__main__":
    with multiprocessing.get_context(sys.argv[1]).Pool(1) as pool:
        print(pool.map(double, [1, 2, 3]), double.__module__)
