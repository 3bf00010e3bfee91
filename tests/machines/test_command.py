"""`echelon machines`: tables, pages, JSON, and what it refuses."""

import json
from pathlib import Path

import pytest
from tests.machines.asking import NOON, answers

from echelon import cli
from echelon.cli import machines as command
from echelon.host import Finished, Host, RecordedHost
from echelon.machines import load


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Keep the tests out of the user's own machine files."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "config" / "echelon" / "machines"


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> dict[tuple[str, ...], Finished]:
    """Stand on a machine whose Slurm is the recorded 22.05; its answers may be changed."""
    replies = answers("22.05")
    monkeypatch.setattr("echelon.cli.machines.Host", lambda: RecordedHost(environ={}, answers=replies, now=NOON))
    assert Host
    return replies


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = cli.main(["machines", *arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_table_has_every_machine(capsys: pytest.CaptureFixture[str]) -> None:
    """One line a machine, with its partitions and whether it still runs."""
    code, out, err = run(capsys)
    lines = out.splitlines()
    assert (code, err, len(lines)) == (0, "", 1 + len(load.load_shipped()))
    of_name = {line.split()[0]: line for line in lines}
    assert "small-g, standard-g, dev-g, bench" in of_name["lumi"]
    assert of_name["mahti"].endswith("retired on 2026-08-31, see roihu")


@pytest.mark.parametrize("name", load.load_shipped())
def test_page_has_all_that_is_known(capsys: pytest.CaptureFixture[str], name: str) -> None:
    """A machine's page names every partition, node, setting and container, and every source under a number."""
    code, out, _ = run(capsys, name)
    machine = load.load_shipped()[name]
    assert code == 0
    for row in (*machine.partitions, *machine.node_types, *machine.settings, *machine.containers):
        assert f"  {row.name}" in out
        assert " ".join(row.source.split()) in " ".join(out.split())
    assert max(len(line) for line in out.splitlines()) <= 200


def test_page_of_here_works(capsys: pytest.CaptureFixture[str]) -> None:
    """`echelon machines local` shows this node."""
    code, out, _ = run(capsys, "local")
    assert code == 0
    assert "one node, no partition" in out.lower()


def test_json_has_the_keys_of_the_file(capsys: pytest.CaptureFixture[str]) -> None:
    """--json gives the same facts under the same names; what is not known is null."""
    code, out, _ = run(capsys, "lumi", "--json")
    machine = json.loads(out)["machine"]
    assert code == 0
    assert machine["partition"][0]["max_minutes"] == 4320
    assert machine["partition"][0]["date"] == "2026-11-21"
    assert machine["partition"][0]["max_devices"] is None
    assert machine["node_type"][0]["nearest"][0]["cores"] == list(range(49, 56))
    assert [row["name"] for row in json.loads(run(capsys, "--json")[1])["machines"]] == list(load.load_shipped())


@pytest.mark.parametrize(
    ("arguments", "message", "hint"),
    [
        (["lumy"], "did you mean lumi?", "echelon machines lumi"),
        (["lumi", "roihu"], "echelon machines shows one machine at a time: lumi roihu", "echelon machines lumi"),
        (["--jsn"], "no option --jsn", "did you mean --json?"),
        (["lumi", "--force"], "--force is an option of echelon machines learn", "echelon machines learn --force"),
        (["--out", "x"], "--out is an option of echelon machines learn", "echelon machines learn --out"),
        (["learn", "--out"], "--out needs a value", "echelon machines learn --out FILE"),
        (["learn", "--name="], "--name '': it needs a value", "echelon machines learn --name NAME"),
    ],
)
def test_wrong_line_is_refused(
    capsys: pytest.CaptureFixture[str], arguments: list[str], message: str, hint: str
) -> None:
    """A line that cannot be understood ends with 2, a message and something to paste."""
    code, out, err = run(capsys, *arguments)
    assert (code, out) == (2, "")
    assert message in err
    assert f"hint: {hint}" in err


def test_help_ends_in_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    """The help's last line can be typed."""
    code, out, _ = run(capsys, "--help")
    assert code == 0
    assert out.endswith("example:\n  echelon machines lumi\n")
    for option in command.OPTIONS:
        assert ", ".join(option.names) in out


def test_learned_machine_is_written_and_shown(
    capsys: pytest.CaptureFixture[str], site: object, own_folder: Path
) -> None:
    """learn writes into the user's folder, prints the path alone on stdout, and says how it knew."""
    code, out, err = run(capsys, "learn")
    assert (code, out) == (0, f"{own_folder / 'mountain.toml'}\n")
    assert "Slurm's cluster name is mountain: machine mountain" in err
    assert run(capsys, "mountain")[0] == 0


def test_file_that_is_there_is_kept(capsys: pytest.CaptureFixture[str], site: object, own_folder: Path) -> None:
    """Only --force writes over a file."""
    own_folder.mkdir(parents=True)
    path = own_folder / "mountain.toml"
    path.write_text("# mine\n")
    code, _, err = run(capsys, "learn")
    assert (code, path.read_text()) == (2, "# mine\n")
    assert "already exists" in err
    assert run(capsys, "learn", "--force")[0] == 0
    assert path.read_text() != "# mine\n"


def test_learned_file_goes_where_it_is_wanted(capsys: pytest.CaptureFixture[str], site: object, tmp_path: Path) -> None:
    """--out names the file, - is standard output; a folder that cannot be made is an error."""
    assert run(capsys, "learn", "--out", "deep/m.toml")[1] == "deep/m.toml\n"
    assert run(capsys, "learn", "--out", "-")[1] == (tmp_path / "deep" / "m.toml").read_text()
    code, _, err = run(capsys, "learn", "--out", "/proc/none/m.toml")
    assert code == 2
    assert "echelon cannot write" in err


def test_known_machine_is_laid_over(
    capsys: pytest.CaptureFixture[str], site: dict[tuple[str, ...], Finished], own_folder: Path
) -> None:
    """Where we know the cluster, learn updates its rows; settings, containers and the map of devices stay."""
    config = site["scontrol", "show", "config"]
    text = config.stdout.replace("mountain", "lumi")
    site["scontrol", "show", "config"] = Finished(exit_code=0, stdout=text, stderr="")
    code, _, err = run(capsys, "learn")
    assert code == 0
    assert "laid over the known facts of lumi" in err
    machine = load.find("lumi", {"XDG_CONFIG_HOME": str(own_folder.parents[1])})
    below = load.load_shipped()["lumi"]
    limits = {row.name: row.max_nodes for row in machine.partitions}
    assert (limits["standard-g"], limits["dev-g"]) == (4, 32)
    assert (machine.settings, machine.containers, machine.title) == (below.settings, below.containers, below.title)
    assert machine.node_types[0].name == "mi250x"
    assert machine.node_types[0].nearest == below.node_types[0].nearest


def test_probe_of_a_partition_that_is_not_there(capsys: pytest.CaptureFixture[str], site: object) -> None:
    """--partition is checked before anything is started."""
    code, _, err = run(capsys, "learn", "--probe", "--partition", "smal-g")
    assert code == 2
    assert "this Slurm has standard-g, small-g" in err


def test_failed_probe_leaves_nothing_behind(capsys: pytest.CaptureFixture[str], site: object, own_folder: Path) -> None:
    """Where the probe cannot be started, there is neither a file nor a left-over archive."""
    code, _, err = run(capsys, "learn", "--probe")
    assert code == 1
    assert "srun is not installed here" in err
    assert not list(own_folder.iterdir())
