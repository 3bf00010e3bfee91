"""`ProcessPoolExecutor` works with every start method, and an error of a worker comes back."""

import multiprocessing
import sys
from concurrent.futures import ProcessPoolExecutor


class Refused(Exception):
    pass


def square(number: int) -> int:
    if number < 0:
        raise Refused(number)
    return number * number


if __name__ == "__main__":
    context = multiprocessing.get_context(sys.argv[1])
    with ProcessPoolExecutor(1, mp_context=context) as executor:
        print(list(executor.map(square, range(5))))
        error = executor.submit(square, -1).exception()
    print(type(error) is Refused, error)
