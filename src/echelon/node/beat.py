"""Show the supervisor each second that this process runs.

A thread sends the beat: where a slow disk stops the agent's loop, the training goes on, and so does the beat.
"""

import _thread  # threading would cost every agent memory
import time

from .channel import Channel, encode

BEAT_SECONDS = 1.0


def start(channel: Channel) -> None:
    """Send a beat over the channel until it is closed."""
    _thread.start_new_thread(_beat, (channel,))


def _beat(channel: Channel) -> None:
    line = encode("beat")
    while channel.send_beside(line):
        time.sleep(BEAT_SECONDS)
