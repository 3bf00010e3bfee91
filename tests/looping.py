"""A loop that serves what is registered with a selector, in a thread, as an agent's loop does."""

import contextlib
import selectors
import socket
import threading
from collections.abc import Iterator


@contextlib.contextmanager
def looping(selector: selectors.BaseSelector) -> Iterator[None]:
    """Serve until the block ends."""
    ends, wakes = socket.socketpair()
    selector.register(ends, selectors.EVENT_READ, lambda: None)

    def loop() -> None:
        while True:
            for key, _ in selector.select():
                if key.fileobj is ends:
                    return
                if selector.get_map().get(key.fd) is key:
                    key.data()

    thread = threading.Thread(target=loop)
    thread.start()
    try:
        yield
    finally:
        wakes.send(b"x")
        thread.join()
        ends.close()
        wakes.close()
