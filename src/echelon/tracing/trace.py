"""The program that `echelon fit` starts: run a script without computing it, and write the log of its memory."""

import ctypes
import json
import os
import runpy
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from ..orders.trace import CONFIG, FUNCTION, MODULE, TraceOrder
from ..pytorch import internals
from ..train import patches
from ..train.wire import lines
from . import builders, kernels, pretended, unknown_shapes
from .course import StepTracer, StopTracing
from .ledger import Ledger, Storage
from .places import KIND, TensorDevices
from .reads import Reads
from .scratch import Scratch

FORMAT = 1
PR_SET_PDEATHSIG = 1  # linux/prctl.h
_WHY = "A script that is traced sees its own arguments."
_open = open  # the script gets another
_TELL_SECONDS = 2.0

_FOREIGN = tuple(
    os.path.dirname(os.path.abspath(one)) + os.sep
    for one in (torch.__file__, runpy.__file__, os.path.dirname(os.path.dirname(__file__)))
)


class Failed(NamedTuple):
    """Why a script cannot be traced."""

    kind: str
    message: str
    line: str
    trace: str


def main(order: TraceOrder) -> int:
    """Trace as the order says, and write the log, or {"failed": …}."""
    _end_with_parent()
    log = Tracer(order, os.path.abspath(order.out) + ".files").run()
    with _open(order.out, "w", encoding="utf-8") as file:
        json.dump(log, file)
    return 0


def _end_with_parent() -> None:
    """Let the kernel end this process when `echelon fit` is killed: a script may take hours to its first step."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


class Tracer:
    """Runs the script under all that replaces its device and its data."""

    def __init__(self, order: TraceOrder, folder: str) -> None:
        self._order = order
        self._is_gpu = order.device == "gpu"
        self._ledger = Ledger(counts_all=not self._is_gpu)
        self._mode = internals.fake_tensors().FakeTensorMode(allow_non_fake_inputs=True)
        self._places = TensorDevices(self._ledger, self._mode)
        self._course = StepTracer(self._ledger)
        self._reads = Reads(order.assumed or {}, order.target)
        self._scratch = Scratch(folder)
        self._compiling = Compiling()

    def run(self) -> dict[str, Any]:
        if self._is_gpu:
            pretended.install(self._order.device_bytes)
            kernels.install()
        pretended.install_one_device()
        self._places.install()
        self._reads.install()
        torch.distributions.Distribution.set_default_validate_args(False)
        self._scratch.install()
        self._compiling.install()
        self._course.install()
        threading.Thread(target=self._tell, args=(self._order.out + ".progress",), daemon=True).start()
        with self._ledger:
            failed = self._run_script()
        return self._log(failed)

    def _tell(self, path: str) -> None:
        """Keep a line in a file that says how far the trace is."""
        while True:
            with _open(path, "w", encoding="utf-8") as file:
                file.write(self._course.progress)
            time.sleep(_TELL_SECONDS)

    def _events(self) -> list[Any]:
        """Return the events of the device's memory; of all if the script uses no device."""
        ledger = self._ledger
        if not (self._is_gpu and self._places.are_used):
            return list(ledger.events)
        return [
            event
            for event in ledger.events
            if not isinstance(event, int) or ledger.storages[max(event, -event - 1)].is_on_device
        ]

    def _run_script(self) -> Failed | None:
        silence = os.open(os.devnull, os.O_WRONLY)
        kept = os.dup(1), os.dup(2)
        os.dup2(silence, 1)
        os.dup2(silence, 2)
        try:
            self._train()
        except StopTracing:
            return None
        except SystemExit as error:
            return Failed("SystemExit", f"it ends with exit code {error.code}", "", "") if error.code else None
        except BaseException as error:  # noqa: BLE001  (whatever the script raises is told)
            return self._failed(error)
        finally:
            os.dup2(kept[0], 1)
            os.dup2(kept[1], 2)
            self._course.end()
        return None

    def _train(self) -> None:
        order, place = self._order, KIND if self._is_gpu else "cpu"
        if order.kind == FUNCTION:
            builders.of_function(order.target, order.optimizer, place)()
        elif order.kind == CONFIG:
            shape = order.rows, order.length
            builders.of_config(order.target, *shape, order.optimizer, order.dtype, place)()
        else:
            patches.replace(sys, "argv", [order.target, *order.arguments], why=_WHY)
            sys.path.insert(0, os.getcwd() if order.kind == MODULE else os.path.dirname(os.path.abspath(order.target)))
            run = runpy.run_module if order.kind == MODULE else runpy.run_path
            run(order.target, run_name="__main__")

    def _failed(self, error: BaseException) -> Failed:
        """Return an error with the frames of the script and its own modules, of packages if there are no others."""
        known = [part for part in traceback.extract_tb(error.__traceback__) if _is_of_script(part.filename)]
        frames = [part for part in known if not lines.is_of_package(part.filename)] or known
        places = [f"{os.path.basename(part.filename)}:{part.lineno or 0}" for part in frames]
        text = "".join([*traceback.format_list(frames), *traceback.format_exception_only(type(error), error)])
        return Failed(type(error).__name__, str(error).partition("\n")[0], places[-1] if places else "", text)

    def _log(self, failed: Failed | None) -> dict[str, Any]:
        ledger, course = self._ledger, self._course
        return {
            "format": FORMAT,
            "torch": torch.__version__,
            "device": "gpu" if self._is_gpu else "cpu",
            "uses_device": self._places.are_used or not self._is_gpu,
            "rows": course.rows,
            "steps": course.num_steps,
            "optimizers": course.optimizers,
            "unshared": course.sharing.refusal,
            "flops": ledger.flops,
            "half": course.half,
            "blocks": course.block_names,
            "weights": course.weights(),
            "modules": course.modules,
            "tensors": [
                [storage.bytes, storage.category, storage.module, int(storage.is_of_rows)]
                for storage in ledger.storages
            ],
            "events": self._events(),
            "notes": [*self._reads.notes(), *unknown_shapes.notes(), *self._compiling.notes(), *self._course.notes()],
            "failed": failed._asdict() if failed else None,
        }


def _row(storage: Storage) -> list[Any]:
    return [storage.bytes, storage.category, storage.module, int(storage.is_of_rows)]


def _is_of_script(path: str) -> bool:
    """Say whether a frame is neither of echelon, nor of PyTorch or Python."""
    if path.startswith("<"):
        return False
    return not os.path.abspath(path).startswith(_FOREIGN)


_WHY_COMPILING = "A compiler would run a training that is only traced."
_NOTE = "torch.compile was left out: the peak is that of the model as it is written"


class Compiling:
    """Leaves out compilation, and tells so."""

    def __init__(self) -> None:
        self._is_asked = False

    def install(self) -> None:
        patches.replace(torch, "compile", self._compile, why=_WHY_COMPILING)

    def notes(self) -> list[str]:
        """Return a sentence if the script compiles."""
        return [_NOTE] if self._is_asked else []

    def _compile(self, model: object = None, **_: object) -> Any:
        self._is_asked = True
        as_it_is: Callable[[Any], Any] = lambda function: function  # noqa: E731  (the decorator's other form)
        return as_it_is if model is None else model
