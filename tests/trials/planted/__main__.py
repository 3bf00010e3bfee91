"""Print the score as a table: python -m tests.trials.planted [NAME…]"""

import resource
import sys

from tests.trials.planted.score import Case, Said, cases, said_of, scripts


def main(names: list[str]) -> int:
    """Prove all scripts, or those that are named."""
    table = cases()
    found: list[Said] = []
    print(f"{'script':<34} {'verdict':<22} {'cause':<10} thread")
    for said in said_of(scripts(names)):
        found.append(said)
        case = table.get(said.name) if said.is_bug else None
        cause = (
            "" if case is None else "named" if said.names(case) else "not named" if said.finds(case) else "not found"
        )
        print(f"{said.name:<34} {said.verdict:<22} {cause:<10} {case.thread if case else ''}", flush=True)
        if said.is_false_alarm or cause.startswith("not") or (names and said.why):
            print(f"    {said.why}\n    {said.meaning}")
    print(summary(found))
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(f"{used.ru_utime + used.ru_stime:.0f} s of CPU time")
    return 0


def verdict_on(said: Said, case: Case) -> str:
    """Return how well a mistake was found."""
    if not said.finds(case):
        return "not found"
    return "named" if said.names(case) else "not named"


def summary(found: list[Said]) -> str:
    """Return the lines that count."""
    table = cases()
    bugs = [said for said in found if said.is_bug]
    num_found = sum(said.finds(table[said.name]) for said in bugs)
    num_named = sum(said.names(table[said.name]) for said in bugs)
    num_alarms = sum(said.is_false_alarm for said in found)
    kinds = [f"| {kind} | {number} | {named} |" for kind, (number, named) in by_kind(bugs).items()]
    return "\n".join(["| kind | mistakes | found and named |", "|---|---|---|", *kinds, ""]) + (
        f"{len(bugs)} mistakes: {num_found} found, {num_named} with the right tensor and cause\n"
        f"{len(found) - len(bugs)} correct scripts: {num_alarms} false alarms"
    )


def by_kind(bugs: list[Said]) -> dict[str, tuple[int, int]]:
    """Return how many mistakes there are of each kind, and how many are named."""
    table = cases()
    counts: dict[str, tuple[int, int]] = {}
    for kind in dict.fromkeys(case.kind for case in table.values()):
        of_kind = [said for said in bugs if table[said.name].kind == kind]
        if of_kind:
            counts[kind] = len(of_kind), sum(said.names(table[said.name]) for said in of_kind)
    return counts


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
