"""Machine files: what is read, what is laid over what, and what is refused in which words."""

import re
import string
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from echelon.errors import UsageError
from echelon.machines import files, load, schema
from echelon.machines.files import MachineFile
from echelon.machines.machine import Machine, NearestCores, NodeType, Partition, Quirk, Setting
from echelon.machines.write import as_toml
from echelon.topology.cpus import cpu_list

GOOD = """\
name = "mine"
title = "My cluster"
source = "me"
date = 2026-11-21

[[partition]]
name = "gpu"
node_type = "a100"
max_minutes = 60
source = "me"
date = 2026-11-21

[[node_type]]
name = "a100"
chip = "A100"
vendor = "nvidia"
memory_bytes = 1024
source = "me"
date = 2026-11-21

[[node_type.nearest]]
device = 0
cores = "1-7,9-15"
source = "me"
date = 2026-11-21

[[billing]]
partitions = ["gpu"]
unit = "GPU-hours"
per_node_hour = 4
source = "me"
date = 2026-11-21

[[setting]]
name = "A"
value = "1"
why = "because"
source = "me"
date = 2026-11-21
"""


@pytest.fixture
def environ(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Offer an environment with a user's folder, and a site's folder, that are empty."""
    monkeypatch.setattr(files, "SITE_FOLDER", str(tmp_path / "site"))
    (tmp_path / "site").mkdir()
    (tmp_path / "config" / "echelon" / "machines").mkdir(parents=True)
    return {"XDG_CONFIG_HOME": str(tmp_path / "config"), "HOME": str(tmp_path)}


def put(environ: dict[str, str], name: str, text: str, layer: str = "user") -> Path:
    folder = Path(files.user_folder(environ) if layer == "user" else files.SITE_FOLDER)
    path = folder / name
    path.write_text(text, "utf-8")
    return path


def read(text: str) -> Machine:
    return load.read_file(MachineFile(path="x.toml", text=text))


def test_file_is_read_into_rows() -> None:
    """Tables become rows, dates dates, and lists of cores numbers."""
    machine = read(GOOD)
    assert machine.partitions[0].max_minutes == 60
    assert machine.seen == date(2026, 11, 21)
    assert machine.node_types[0].nearest[0].cores == (*range(1, 8), *range(9, 16))
    assert machine.node_type(machine.partitions[0]).chip == "A100"


REFUSED = [
    # what is changed in the good file, what the message must say, what the hint must say
    (
        "memory_bytes = 1024",
        "memory_gb = 480",
        r"line 17: .*memory_gb = 480",
        "memory_bytes = 515396075520   # 480 GiB",
    ),
    (
        "memory_bytes = 1024",
        'memory = "480G"',
        r"echelon does not know the unit of memory = \"480G\"",
        "memory_bytes = 515396075520   # 480 GiB",
    ),
    ("memory_bytes = 1024", "ram_gib = 2", "ram_gib = 2", "memory_bytes = 2147483648   # 2 GiB"),
    ("max_minutes = 60", 'max_time = "2-00:00:00"', "max_time", "max_minutes = 2880"),
    ("max_minutes = 60", "max_hours = 1.5", "max_hours = 1.5", "max_minutes = 90"),
    ("max_minutes = 60", "max_gpus = 8", "max_gpus", "max_devices = 8"),
    (
        "max_minutes = 60",
        "max_minuts = 60",
        r"line 9: \[\[partition\]\] \"gpu\": unknown key max_minuts .*the keys are name, ",
        "max_minutes = 60",
    ),
    ("max_minutes = 60", "colour = 60", "unknown key colour", "remove the line"),
    ("max_minutes = 60", "max_minutes = -60", r"max_minutes = -60 is less than zero", "max_minutes = 60"),
    (
        "max_minutes = 60",
        'max_minutes = "60"',
        r"max_minutes = \"60\", but must be a whole number",
        "max_minutes = 60",
    ),
    ("max_minutes = 60", "max_minutes = true", "max_minutes = true, but must be a whole number", "max_minutes = "),
    ("max_minutes = 60", "whole_nodes = 1", "whole_nodes = 1, but must be true or false", "whole_nodes = true"),
    ("max_minutes = 60", "purpose = 1", "purpose = 1, but must be a text", 'purpose = "1"'),
    ("max_minutes = 60", 'purpose = "tests"', "the choices are batch, test, interactive, request", 'purpose = "test"'),
    (
        'node_type = "a100"',
        'node_type = "a10"',
        r"line 8: .*no \[\[node_type\]\] of this machine .*there are a100",
        'node_type = "a100"',
    ),
    ('vendor = "nvidia"', 'vendor = "NVIDIA"', "the choices are amd, nvidia, none, unknown", 'vendor = "nvidia"'),
    ('vendor = "nvidia"', "", r"line 13: \[\[node_type\]\] \"a100\": vendor is missing", "vendor = "),
    (
        'cores = "1-7,9-15"',
        'cores = "7-1"',
        r"\[\[node_type.nearest\]\] \"0\": cores = \"7-1\", but must be a list of cores",
        'cores = "1-7,9-15"',
    ),
    ('cores = "1-7,9-15"', "cores = [1, -2]", "a list of cores", 'cores = "1-7,9-15"'),
    (
        'partitions = ["gpu"]',
        'partitions = ["cpu"]',
        r"\[\[billing\]\].*partitions names \"cpu\"",
        'partitions = ["gpu"]',
    ),
    ('partitions = ["gpu"]', 'partitions = "gpu"', "but must be a list of texts", 'partitions = ["gpu"]'),
    ("per_node_hour = 4", "", r"line 27: \[\[billing\]\]: a rule is .*neither is there", "per_node_hour = 4.0"),
    ("per_node_hour = 4", "per_node_hour = 4\nprice_per_unit = 0.5", "currency is missing", 'currency = "EUR"'),
    ("per_node_hour = 4", "per_node_hour = 4\nfactor = 0.5", "both are there", "per_node_hour"),
    (
        "date = 2026-11-21\n\n[[partition]]",
        'date = "2026-11-21"\n\n[[partition]]',
        r"line 4: date = \"2026-11-21\", but must be a date without quotes",
        "date = 2026-11-21",
    ),
    ('name = "mine"', 'name = "local"', "local always means the machine that you are on", "name = "),
    ('name = "mine"', "", "name is missing", 'name = "…"'),
    ('name = "mine"', 'name = "mine"\nformat = 2', "this echelon reads format = 1", "format = 1"),
    ('name = "mine"', 'name = "mine"\nmerge = "yes"', "merge must be true or false", "merge = true"),
    ('name = "mine"', 'name = "mine', "not TOML: .*line 1", 'line 1 is: name = "mine'),
    ("[[partition]]", "[partition]", r"\[partition\] is a single table, but must be rows", r"[[partition]]"),
    ('name = "mine"', 'name = "mine"\nquirk = 3', "quirk = 3, but must be tables", "[[quirk]]"),
]


IDS = [row[1].splitlines()[-1] if row[1] else f"no {row[0]}" for row in REFUSED]


@pytest.mark.parametrize(("old", "new", "message", "hint"), REFUSED, ids=IDS)
def test_mistake_is_named_with_its_repair(old: str, new: str, message: str, hint: str) -> None:
    """Each mistake is one error: file, line, table and key, what was found and wanted, and the line to paste."""
    assert old in GOOD
    with pytest.raises(UsageError, match=message) as caught:
        read(GOOD.replace(old, new, 1))
    assert caught.value.message.startswith("x.toml")
    assert hint in caught.value.hint


TABLES = ("partition", "node_type", "node_type.nearest", "billing", "setting")


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("key", ["source", "date"])
def test_row_without_source_or_date_is_refused(table: str, key: str) -> None:
    """No fact without a place where it is published and the day it was seen there."""
    head, header, rest = GOOD.partition(f"[[{table}]]")
    text = head + header + re.sub(rf"^{key} = .*\n", "", rest, count=1, flags=re.MULTILINE)
    with pytest.raises(UsageError, match=rf"\[\[{re.escape(table)}\]\].*: {key} is missing"):
        read(text)


def test_same_partition_twice_is_refused() -> None:
    """Two partitions of one name are an error at the second."""
    row = GOOD[GOOD.index("[[partition]]") : GOOD.index("[[node_type]]")]
    with pytest.raises(UsageError, match=r'line 14: \[\[partition\]\] "gpu": there are 2 of this name'):
        read(GOOD.replace("[[node_type]]", row + "[[node_type]]", 1))


def test_device_twice_is_refused() -> None:
    """A device is mapped to cores once."""
    row = GOOD[GOOD.index("[[node_type.nearest]]") : GOOD.index("[[billing]]")]
    with pytest.raises(UsageError, match=r"line 28: .*there are 2 of this device"):
        read(GOOD.replace("[[billing]]", row + "[[billing]]", 1))


def test_unreadable_files_are_named(tmp_path: Path) -> None:
    """A file that is gone, a folder, and bytes that are no text are errors, not tracebacks."""
    (tmp_path / "latin.toml").write_bytes(b"name = '\xe4'")
    for path in (tmp_path / "none.toml", tmp_path, tmp_path / "latin.toml"):
        with pytest.raises(UsageError, match=re.escape(str(path))):
            files.read(str(path))


def test_unknown_machine_has_nearest_names(environ: dict[str, str]) -> None:
    """A name that is not known is answered with the nearest, with all, and with the way to learn it."""
    with pytest.raises(
        UsageError, match=r"echelon knows no machine 'lumy'; did you mean lumi\? the known machines are .*roihu"
    ):
        load.find("lumy", environ)
    with pytest.raises(UsageError) as caught:
        load.find("xyzzy", environ)
    assert "echelon machines learn" in caught.value.hint


def test_user_file_is_found(environ: dict[str, str]) -> None:
    """A file in the user's folder is a machine as any other."""
    path = put(environ, "m.toml", GOOD)
    assert load.find("mine", environ).path == str(path)
    assert {"mine", "lumi"} < load.load_all(environ).keys()


def test_one_machine_needs_no_other_file(environ: dict[str, str]) -> None:
    """A mistake in the file of another machine does not stand in the way of this one."""
    put(environ, "broken.toml", 'name = "other"\nnonsense = 1\n')
    assert load.find("lumi", environ).name == "lumi"
    with pytest.raises(UsageError, match="nonsense"):
        load.load_all(environ)


OVERLAY = """\
name = "lumi"
merge = true

[[partition]]
name = "small-g"
max_minutes = 60
source = "a ticket"
date = 2026-11-20

[[partition]]
name = "course"
node_type = "mi250x"
source = "a ticket"
date = 2026-11-20

[[node_type]]
name = "mi250x"
source = "a look"
date = 2026-11-20

[[node_type.nearest]]
device = 0
cores = "49-54"
source = "a look"
date = 2026-11-20
"""


def test_overlay_keeps_what_it_does_not_mention(environ: dict[str, str]) -> None:
    """merge = true changes the rows and keys it names, adds new rows, and leaves all others."""
    below = load.find("lumi", environ)
    put(environ, "mine.toml", OVERLAY)
    above = load.find("lumi", environ)
    old, new = below.partitions[0], above.partitions[0]
    assert (new.max_minutes, new.max_nodes, new.node_type) == (60, old.max_nodes, old.node_type)
    assert new.source == f"a ticket (max_minutes); otherwise {old.source}"
    assert [row.name for row in above.partitions] == [*(row.name for row in below.partitions), "course"]
    assert above.partitions[1:-1] == below.partitions[1:]
    assert above.node_types[0].nearest[0].cores == tuple(range(49, 55))
    assert above.node_types[0].nearest[0].numa == 3
    assert above.node_types[0].nearest[1:] == below.node_types[0].nearest[1:]
    assert (above.settings, above.title) == (below.settings, below.title)


def test_overlay_row_needs_its_own_source(environ: dict[str, str]) -> None:
    """A fact that is changed is published somewhere too."""
    put(environ, "mine.toml", OVERLAY.replace('source = "a ticket"\n', "", 1))
    with pytest.raises(UsageError, match=r'mine.toml, line 4: \[\[partition\]\] "small-g": source is missing'):
        load.find("lumi", environ)


def test_overlay_of_nothing_is_refused(environ: dict[str, str]) -> None:
    """merge = true without a machine below it is a mistake in the name."""
    put(environ, "mine.toml", OVERLAY.replace('"lumi"', '"lumii"'))
    with pytest.raises(UsageError, match="there is no machine 'lumii' to change"):
        load.find("lumii", environ)


def test_mistake_of_a_new_row_is_in_the_overlay(environ: dict[str, str]) -> None:
    """What an added row lacks is said of the file that added it."""
    put(environ, "mine.toml", OVERLAY.replace('node_type = "mi250x"\n', "", 1))
    with pytest.raises(UsageError, match=r'mine.toml, line 10: \[\[partition\]\] "course": node_type is missing'):
        load.find("lumi", environ)


def test_two_machines_of_one_name_are_refused(environ: dict[str, str]) -> None:
    """Two whole files of one layer with one name: both are named."""
    first, second = put(environ, "a.toml", GOOD), put(environ, "b.toml", GOOD)
    with pytest.raises(UsageError, match="two machines have the name") as caught:
        load.find("mine", environ)
    assert str(first) in caught.value.message
    assert str(second) in caught.value.message
    assert "merge = true" in caught.value.hint


def test_later_layer_replaces_the_whole_machine(environ: dict[str, str], tmp_path: Path) -> None:
    """Ours, the site's, the user's, $ECHELON_MACHINES: the later wins, whole, where it does not merge."""
    text = GOOD.replace('name = "mine"', 'name = "lumi"')
    put(environ, "l.toml", text.replace("My cluster", "site"), layer="site")
    assert load.find("lumi", environ).title == "site"
    put(environ, "l.toml", text.replace("My cluster", "user"))
    assert load.find("lumi", environ).title == "user"
    named = tmp_path / "named.toml"
    named.write_text(text.replace("My cluster", "named"))
    assert load.find("lumi", {**environ, "ECHELON_MACHINES": f":{named}:"}).title == "named"
    assert [row.name for row in load.find("lumi", environ).partitions] == ["gpu"]
    assert load.load_shipped()["lumi"].title == "site"


def test_named_file_that_is_missing_is_refused(environ: dict[str, str]) -> None:
    """$ECHELON_MACHINES that leads nowhere is an error, not silence."""
    with pytest.raises(UsageError, match="ECHELON_MACHINES names /nowhere"):
        load.load_all({**environ, "ECHELON_MACHINES": "/nowhere"})


def test_here_is_a_machine_without_partitions() -> None:
    """local is what this process sees: one node, its cores, its memory."""
    machine = load.find("local", {})
    assert (machine.name, machine.partitions) == ("local", ())
    assert machine.node_types[0].num_nodes == 1
    assert (machine.node_types[0].num_cores or 0) >= 1


@given(st.sets(st.integers(0, 300)))
def test_list_of_cores_is_read_as_written(numbers: set[int]) -> None:
    """Writing cores and reading them gives the same cores."""
    assert schema.read(cpu_list(numbers)) == tuple(sorted(numbers))


TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
NAMES = st.text(string.ascii_lowercase, min_size=1, max_size=8)
DAYS = st.dates(date(1990, 1, 1), date(2100, 1, 1))
COUNTS = st.none() | st.integers(0, 1 << 50)
ROW: dict[str, Any] = {"source": TEXTS, "seen": DAYS, "note": TEXTS}
KINDS = st.builds(
    NodeType, **ROW, name=NAMES, chip=TEXTS, vendor=st.sampled_from(["amd", "nvidia", "none", "unknown"]),
    memory_bytes=COUNTS, features=st.lists(TEXTS, max_size=3).map(tuple), memory_follows_devices=st.booleans(),
    reserved_cores=st.sets(st.integers(0, 99)).map(lambda found: tuple(sorted(found))), num_cores=COUNTS,
    nearest=st.lists(
        st.builds(NearestCores, **ROW, device=st.integers(0, 9), numa=COUNTS, cores=st.just((1, 2))),
        max_size=2, unique_by=lambda row: row.device,
    ).map(tuple),
)  # fmt: skip


@st.composite
def machines(draw: st.DrawFn) -> Machine:
    kinds = draw(st.lists(KINDS, max_size=3, unique_by=lambda row: row.name))
    rows = st.builds(
        Partition, **ROW, name=NAMES, node_type=st.sampled_from([row.name for row in kinds] or ["x"]),
        max_minutes=COUNTS, whole_nodes=st.booleans(), preference=st.integers(-9, 9), retired_on=st.none() | DAYS,
    )  # fmt: skip
    partitions = draw(st.lists(rows, max_size=3, unique_by=lambda row: row.name)) if kinds else []
    settings = draw(st.lists(st.builds(Setting, **ROW, name=NAMES, value=TEXTS, why=TEXTS), max_size=2))
    quirks = draw(st.lists(st.builds(Quirk, **ROW, about=TEXTS, text=TEXTS), max_size=2))
    return draw(
        st.builds(
            Machine, **ROW, name=NAMES.filter(lambda name: name != "local"), title=TEXTS,
            partitions=st.just(tuple(partitions)), node_types=st.just(tuple(kinds)),
            settings=st.just(tuple(settings)), quirks=st.just(tuple(quirks)),
        )
    )  # fmt: skip


@given(machines())
def test_machine_is_read_as_it_was_written(machine: Machine) -> None:
    """Whatever a machine holds, quotes and line ends included, its file gives it back."""
    assert load.read_file(MachineFile(path="", text=as_toml(machine))) == machine
