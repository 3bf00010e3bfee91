"""`multiprocessing.Pool` works with every start method, on classes and functions of the script."""

import multiprocessing
import sys
from dataclasses import dataclass

print("module", __name__ if __name__ == "__main__" else "imported by a worker", flush=True)


@dataclass
class Point:
    x: int


def double(point: Point) -> Point:
    return Point(2 * point.x)


if __name__ == "__main__":
    with multiprocessing.get_context(sys.argv[1]).Pool(1) as pool:
        print(pool.map(double, [Point(1), Point(2), Point(3)]))
