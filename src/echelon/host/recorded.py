"""A host that answers from recordings, for tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from echelon.host.host import Finished, Host, ToolMissing


class RecordedHost(Host):
    """Answer each command line with the recorded output of a real machine; other commands are missing."""

    def __init__(
        self, *, environ: Mapping[str, str], answers: Mapping[tuple[str, ...], Finished], now: float = 0.0
    ) -> None:
        self._environ = dict(environ)
        self._answers = dict(answers)
        self._now = now
        self.asked: list[tuple[str, ...]] = []

    @property
    def environ(self) -> Mapping[str, str]:
        return self._environ

    def now(self) -> float:
        return self._now

    def ask(
        self,
        argv: Sequence[str],
        *,
        timeout_seconds: float,  # noqa: ARG002
        environ: Mapping[str, str] | None = None,  # noqa: ARG002
    ) -> Finished:
        self.asked.append(tuple(argv))
        if tuple(argv) not in self._answers:
            raise ToolMissing(f"{argv[0]} is not installed here")
        return self._answers[tuple(argv)]
