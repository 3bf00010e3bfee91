"""What happens in a rank: each event is hooked once, and its listeners are called in the order that is stated here.

Who watches a training, and computes nothing in its place, listens. Who computes something else replaces names itself
(`patches`): `replay.stubs` repeats steps without computing, and asks one optimizer whether a scaler let it step;
`local_sgd.hooks` counts a step that a scaler leaves out, and `tracing.course` gives steps other closures.

The loader's batches, backward passes, collectives and saves have no event of PyTorch's here. Who measures or records
them needs what it began with, also when the call fails, and most others compute something else: wrappers say this more
plainly. They stack, and docs/scale.md has their order.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any, NamedTuple

from . import patches

OPTIMIZERS = "torch.optim.optimizer"
Listener = Callable[..., bool | None]


class _Entry(NamedTuple):
    place: int
    listener: Listener
    why: str


class Event:
    def __init__(self, *places: str) -> None:
        self._places = places
        self._entries: list[_Entry] = []
        self.listeners: tuple[Listener, ...] = ()

    def listen(self, place: str, listener: Listener, *, why: str = "") -> None:
        """Call a listener from now on, after those of earlier places; if it returns True, later ones are left out."""
        self._entries.append(_Entry(self._places.index(place), listener, why))
        self._entries.sort(key=lambda entry: entry.place)
        self.listeners = tuple(entry.listener for entry in self._entries)

    def __call__(self, *arguments: Any) -> None:
        for listener in self.listeners:
            if listener(*arguments):
                return


class _Hooked(Event):
    """An event of optimizers, which PyTorch is made to tell of once somebody listens."""

    def __init__(self, hook: Callable[[Any, Event], list[Any]], *places: str) -> None:
        super().__init__(*places)
        self._hook = hook
        self._rows: list[Any] = []

    def listen(self, place: str, listener: Listener, *, why: str = "") -> None:
        if self._rows and not self._rows[0].is_installed:
            self._rows, self._entries = [], []
        super().listen(place, listener, why=why)
        patches.Hooks().when_imported(OPTIMIZERS, self._begin, why=why)

    def _begin(self, module: object) -> None:
        """Hook what tells of this event, the first time; the reasons of the listeners are those of the hook."""
        self._rows = self._rows or self._hook(module, self)
        for row in self._rows:
            row.why = " ".join(dict.fromkeys(entry.why for entry in self._entries if entry.why))

    def __call__(self, optimizer: object, *_: object) -> None:
        for listener in self.listeners:
            if listener(optimizer):
                return


def _hook_makers(module: Any, event: Event) -> list[Any]:
    original = module.Optimizer.__init__

    @wraps(original)
    def init(self: object, *arguments: object, **options: object) -> None:
        original(self, *arguments, **options)
        event(self)

    return [patches.replace(module.Optimizer, "__init__", init, why="")]


def _hook_clearing(module: Any, event: Event) -> list[Any]:
    from torch import nn

    def telling(original: Callable[..., None]) -> Callable[..., None]:
        @wraps(original)
        def zero_grad(self: object, *arguments: object, **options: object) -> None:
            event(self)
            original(self, *arguments, **options)

        return zero_grad

    owners: tuple[Any, ...] = (module.Optimizer, nn.Module)
    return [patches.replace(owner, "zero_grad", telling(owner.zero_grad), why="") for owner in owners]


class _Steps(_Hooked):
    """The steps of optimizers, in which closures of the script compute losses."""

    def __call__(self, optimizer: object, *arguments: Any) -> Any:
        """Tell the listeners; return the arguments of the step with a closure that tells of itself, None without."""
        super().__call__(optimizer)
        args, named = arguments or ((), {})
        act = named.get("closure", args[1] if len(args) > 1 else None)
        if not callable(act) or not closing.begin.listeners:
            return None
        if "closure" in named:
            return args, {**named, "closure": _told(act)}
        return (args[0], _told(act), *args[2:]), named


def _told(act: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(act)
    def closure(*args: Any, **kwargs: Any) -> Any:
        with closing:
            return act(*args, **kwargs)

    return closure


class Span:
    """The begin and the end of what takes a while: `with computing:`."""

    def __init__(self, *places: str) -> None:
        self.begin, self.end = Event(*places), Event(*places)

    def __enter__(self) -> None:
        for listener in self.begin.listeners:
            listener()

    def __exit__(self, *_: object) -> None:
        for listener in self.end.listeners:
            listener()


made = _Hooked(_hook_makers, "parallelism", "names", "journal")
"""The script has made an optimizer."""
cleared = _Hooked(_hook_clearing, "measuring", "journal", "parallelism")
"""An optimizer or a module is about to clear its gradients."""
before_step = _Steps(
    lambda module, event: [patches.hook(module.register_optimizer_step_pre_hook, event, why="")],
    "measuring",
    "nudge",  # a rehearsal moves the gradients of a rank by their last bits
    "row trials",
    "children",  # of the script, which may not train; those that load samples leave out what follows
    "parallelism",
    "draws",
    "record",
    "first step",
    "later steps",
    "bits",
)
after_step = _Hooked(
    lambda module, event: [patches.hook(module.register_optimizer_step_post_hook, event, why="")],
    "pulse",  # first: the agent's times of steps leave out what other listeners do
    "measuring",
    "bench",
    "record",  # before the parallelism, which may give all ranks other weights
    "parallelism",
    "pace",
    "rehearsal",
    "profile",
)
batch = Event("later steps", "record")
"""The script gets a batch that ranks share: the batch of this rank, and the indices of all its samples."""
stream = Event("later steps")
"""All ranks have read the same batch of a stream."""
call = Event("later steps")
"""A model is about to compute a batch: its own call, the module, its arguments, those of each shard, and their rows."""
clipped = Event("measuring")
"""The norm of the gradients is known, because the script clips by it."""
loss = Event("record")
"""The gradients of a loss are those of the whole batch."""
loading, computing = Span("pace"), Span("pace")
"""A batch is loaded; a model, or its backward pass, computes."""
checking = Span("measuring")
"""Echelon computes a model call again, to compare it with one device, or with its parts."""
closing = Span("measuring")
"""A closure of the script computes within an optimizer's step, as Lightning's and those of LBFGS do."""
