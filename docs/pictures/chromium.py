"""A headless Chromium that is led through its pipe: pages, clicks and pictures, with the standard library alone.

The protocol: https://chromedevtools.github.io/devtools-protocol/. Each message is JSON and ends with a zero byte;
Chromium reads from descriptor 3 and writes to descriptor 4.
"""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from types import TracebackType
from typing import Any

PROGRAM = shutil.which("chromium") or shutil.which("google-chrome") or ""
SECONDS = 60.0
_OPTIONS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-dev-shm-usage",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--remote-debugging-pipe",
)  # fmt: skip


class Browser:
    """One page in a new profile; use it in a `with` block."""

    def __init__(self, *, width: int = 1280, height: int = 900, scale: float = 1.0) -> None:
        self._folder = tempfile.mkdtemp(prefix="echelon-chromium-")
        self._number = 0
        self._text = b""
        self.said: list[str] = []
        """What the page wrote to its console, violations of its policy among it, and errors that nobody caught."""
        self.asked: list[str] = []
        """The addresses that the page asked for."""
        self._start()
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        self._session = ""
        self._session = str(self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"])
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._call(f"{domain}.enable")
        self.resize(width, height, scale)

    def _start(self) -> None:
        self._session = ""
        theirs_in, self._out = os.pipe()
        self._in, theirs_out = os.pipe()
        # sh puts the pipes where Chromium looks for them
        line = f'exec "$0" "$@" 3<&{theirs_in} 4>&{theirs_out}'
        self._process = subprocess.Popen(
            ["bash", "-c", line, PROGRAM, *_OPTIONS, f"--user-data-dir={self._folder}", "about:blank"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=(theirs_in, theirs_out),
        )
        os.close(theirs_in)
        os.close(theirs_out)

    def __enter__(self) -> Browser:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._out)  # a Chromium without its pipe ends
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._in)
        shutil.rmtree(self._folder, ignore_errors=True)

    def resize(self, width: int, height: int, scale: float = 1.0, *, is_phone: bool = False) -> None:
        """Set the size of the window, in pixels of the page."""
        self._call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=scale, mobile=is_phone
        )

    def prefer(self, scheme: str) -> None:
        """Ask for a "dark" or "light" page."""
        self._call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def open(self, address: str) -> None:
        """Go to a page."""
        self._call("Page.navigate", url=address)

    def value(self, expression: str) -> Any:
        """Return what an expression of JavaScript gives on the page."""
        result = self._call("Runtime.evaluate", expression=expression, returnByValue=True)
        if "exceptionDetails" in result:
            raise ValueError(f"{expression}: {result['exceptionDetails']}")
        return result["result"].get("value")

    def until(self, expression: str, seconds: float = SECONDS) -> Any:
        """Return the value of an expression once it is true; raise TimeoutError with the page's text."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if value := self.value(expression):
                return value
            time.sleep(0.05)
        raise TimeoutError(f"{expression} is not so; the page: {self.value('document.body.innerText')}; {self.said}")

    def key(self, name: str) -> None:
        """Press a key, such as Tab or Escape."""
        codes = {"Tab": 9, "Enter": 13, "Escape": 27, "ArrowRight": 39}
        for kind in ("keyDown", "keyUp"):
            text = {"text": "\r"} if name == "Enter" and kind == "keyDown" else {}
            self._call("Input.dispatchKeyEvent", type=kind, key=name, windowsVirtualKeyCode=codes[name], **text)

    def picture(self, *, whole: bool = True) -> bytes:
        """Return the page as PNG."""
        taken = self._call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        return base64.b64decode(taken["data"])

    def _call(self, method: str, **words: Any) -> Any:
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": words}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + SECONDS
        while True:
            answer = self._message(deadline - time.monotonic())
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise ValueError(f"{method}: {answer['error']}")
                return answer["result"]
            self._hear(answer)

    def _hear(self, event: dict[str, Any]) -> None:
        words = event.get("params", {})
        if event.get("method") == "Log.entryAdded":
            self.said.append(str(words["entry"]["text"]))
        elif event.get("method") == "Runtime.exceptionThrown":
            self.said.append(str(words["exceptionDetails"].get("exception", {}).get("description")))
        elif event.get("method") == "Runtime.consoleAPICalled":
            self.said.append(str(words["args"]))
        elif event.get("method") == "Network.requestWillBeSent":
            self.asked.append(str(words["request"]["url"]))

    def _message(self, seconds: float) -> dict[str, Any]:
        while b"\0" not in self._text:
            ready, _, _ = select.select([self._in], [], [], max(0.0, seconds))
            data = os.read(self._in, 1 << 16) if ready else b""
            if not data:
                raise TimeoutError("Chromium does not answer")
            self._text += data
        text, _, self._text = self._text.partition(b"\0")
        message: dict[str, Any] = json.loads(text)
        return message
