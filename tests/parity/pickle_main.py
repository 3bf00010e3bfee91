"""Objects of classes that the script defines are pickled by the name `__main__` and found again."""

import pickle
from dataclasses import dataclass


@dataclass
class Point:
    x: int
    y: int


def add(point: Point) -> int:
    return point.x + point.y


text = pickle.dumps([Point(1, 2), add], protocol=0)
print(text)
point, function = pickle.loads(text)
print(point, type(point) is Point, function is add)
