"""The line of `echelon prove` on the time of a step."""

import pytest

from echelon.cli.prove import _print_speed


@pytest.mark.parametrize(
    ("seconds", "line"),
    [
        ({"one": 0.0523, "other": 0.034}, "a step takes 52.3 ms on 1 rank and 34 ms on 2: 1.5 times as fast"),
        ({"one": 1.0, "other": 2.5}, "a step takes 1.00 s on 1 rank and 2.50 s on 2: 2.5 times as long"),
        ({"one": 0.351, "other": 0.041}, "a step takes 351 ms on 1 rank and 41 ms on 2: 8.6 times as fast, "
         "which 2 ranks cannot explain: other work may have disturbed the run on 1"),
        ({"one": None, "other": 0.041}, ""),
    ],
)  # fmt: skip
def test_gain_that_ranks_cannot_explain_is_doubted(
    capsys: pytest.CaptureFixture[str], seconds: "dict[str, float | None]", line: str
) -> None:
    _print_speed(seconds, 2)
    assert capsys.readouterr().out.strip() == line
