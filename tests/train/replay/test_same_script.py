"""A script that continues with other arguments is told so, and what the checkpoint decides."""

from echelon.train.replay import same_script


def test_other_arguments_are_named() -> None:
    """Those before and those of now; nothing where they are the same."""
    said: list[str] = []
    same_script.say_other_arguments(["--lr", "0.1"], ["--lr", "0.1"], said.append)
    assert said == []
    same_script.say_other_arguments(["--lr", "0.1"], [], said.append)
    assert said[0].startswith("note: the arguments of the script were --lr 0.1 at the checkpoint, and are none now; ")
    assert "learning rate" in said[0]


def test_settings_that_the_checkpoint_decides_are_named() -> None:
    said: list[str] = []
    same_script.say_settings(same_script.other_settings("SGD", {"lr": 0.1}, {"lr": 0.01}), said.append)
    assert said[0].startswith("note: SGD goes on with lr 0.01, as in the checkpoint, and not with 0.1")
