"""Scripts that are cut, doubled, shuffled and mixed are read in a second, repaired once, and end in no traceback."""

import os
import random
import time
from functools import cache, partial

import pytest
from tests.lint.linting import MACHINES, TODAY
from tests.lint.seeding import FILES, given

from echelon.lint.pages import all_pages, default_name, files
from echelon.lint.repair import repair
from echelon.lint.run import lint

MUTANTS = 10_000 if os.environ.get("ECHELON_ALL_MUTANTS") else 400
BATCHES = 8
LONGEST_SECONDS = 1.0
SIGNS = ("'", '"', "$(", "${", "`", "\\", "\\\n", "(", ")", "{{ x }}", "<project>", "\r\n", "\t", "#SBATCH ", "\x0c",
         "é", "“", "<<EOF\n", " = ", "|", "&&", "\n\n", "if ", "lambda: ", "[", ":", "\u2028")  # fmt: skip


@cache
def originals() -> tuple[tuple[str, dict[str, str]], ...]:
    pages = [(page.machine, files(page.bad, default_name(page.code))) for page in all_pages().values()]
    return (*pages, *((FILES[name].get("machine", ""), given(name)) for name in FILES))


def mutant(number: int) -> tuple[str, dict[str, bytes]]:
    """Return a machine and files of which one was changed a few times; the same for the same number."""
    chance = random.Random(number)
    machine, sources = chance.choice(originals())
    name = chance.choice(sorted(sources))
    text = sources[name]
    for _ in range(chance.randint(1, 6)):
        text = changed(text, chance)
    return machine, {each: (text if each == name else sources[each]).encode() for each in sources}


def changed(text: str, chance: random.Random) -> str:
    at, until = sorted(chance.randint(0, len(text)) for _ in range(2))
    until = min(until, at + chance.choice((1, 5, 40, 400)))
    lines = text.split("\n")
    how = chance.randrange(6)
    if how == 0:
        return text[:at] + text[until:]
    if how == 1:
        return text[:until] + text[at:until] * chance.randint(1, 3) + text[until:]
    if how == 2:
        return text[:at] + chance.choice(SIGNS) + text[at:]
    if how == 3:
        chance.shuffle(lines)
        return "\n".join(lines)
    if how == 4:
        other = chance.choice(list(chance.choice(originals())[1].values()))
        cut = chance.randint(0, len(other))
        return text[:at] + other[cut : cut + chance.choice((10, 100, 1000))] + text[until:]
    return text[:at] + text[at:until].swapcase() + text[until:]


@pytest.mark.parametrize("batch", range(BATCHES))
def test_mutants_are_read_and_repaired(batch: int) -> None:
    """No exception, no script that takes a second, and no repair that would be made again."""
    for number in range(batch, MUTANTS, BATCHES):
        machine, sources = mutant(number)
        look = partial(lint, today=TODAY, machine=MACHINES[machine] if machine else None, machines=MACHINES)
        began = time.process_time()
        look(sources)
        assert time.process_time() - began < LONGEST_SECONDS, (number, sources)
        once = repair(sources, look)
        assert repair(once.sources, look).sources == once.sources, (number, sources)
