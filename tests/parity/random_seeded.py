"""A seed gives the same numbers as under plain Python."""

import random

random.seed(7)
print(random.random(), random.sample(range(100), 5))
