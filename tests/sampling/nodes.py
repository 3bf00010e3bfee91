"""Nodes whose drivers' files a test fills: documented trees, and devices of an MI300X without a tree around them."""

from pathlib import Path
from typing import Any

from tests.topology import trees

from echelon.node.survey import devices, process
from echelon.node.survey.nouns import Survey, SurveyedDevice
from echelon.topology import discover

GIB = 1 << 30


def survey(root: Path) -> Survey:
    """Return what a lookout knows of a tree before it samples."""
    node = discover.read(str(root), {})
    return Survey("node", devices=devices.read(node, {}), cores=process.read_cores(str(root), node))


def device(number: int = 0, **more: Any) -> SurveyedDevice:
    """Return a device at an address of its own."""
    fields: dict[str, Any] = {
        "vendor": "amd", "model": "gfx942", "pci": f"0000:{number + 5:02x}:00.0", "uuid": "", "numa": 0,
        "memory_bytes": 0, "chip": number, "is_allowed": True, "is_visible": True, "distance": 10, "nic": "",
    }  # fmt: skip
    return SurveyedDevice(number=number, **{**fields, **more})


class Files(trees.Tree):
    """The files of a tree that has been built already."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._before: dict[Path, bytes | None] = {}

    def write(self, path: str, text: object) -> None:
        self.put(path, f"{text}\n".encode() if str(text) else b"")

    def put(self, path: str, content: bytes) -> None:
        """Write a binary file."""
        target = self.root / path
        self._before.setdefault(target, target.read_bytes() if target.exists() else None)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)

    def restore(self) -> None:
        """Undo every change, so that the next test has the tree as it was built."""
        for path, content in self._before.items():
            if content is None:
                path.unlink(missing_ok=True)
            else:
                path.write_bytes(content)
        self._before.clear()

    def amd(self, address: str, **files: object) -> None:
        """Write files of an AMD device: a double underscore is a step into a folder, bytes are a binary file."""
        for name, content in files.items():
            path = f"sys/bus/pci/devices/{address}/{name.replace('__', '/')}"
            if isinstance(content, bytes):
                self.put(path, content)
            else:
                self.write(path, content)

    def host(
        self, idle: int, busy: int, *, available_kib: int = 3 << 20, cpus: "tuple[int, ...]" = tuple(range(128))
    ) -> None:
        """Write times of each core, and 4 GiB of memory."""
        lines = [f"cpu{cpu} {busy} 0 0 {idle} 0 0 0 0 0 0" for cpu in cpus]
        self.write("proc/stat", "\n".join(["cpu  1 2 3 4 5 6 7 8 9 0", *lines, "intr 5 5 5", "ctxt 7"]))
        self.write(
            "proc/meminfo", f"MemTotal: {4 << 20} kB\nMemFree: 100 kB\nMemAvailable: {available_kib} kB\nBuffers: 1 kB"
        )


def lumi_addresses() -> list[str]:
    return [f"0000:{bus}:00.0" for bus in trees.LUMI_BUSES]
