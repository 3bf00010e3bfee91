"""Add the second step to the log of a script that takes only one: with the states that the first one has left."""

from __future__ import annotations

from echelon.estimate.log import END, STEP, Event, EventLog
from echelon.estimate.timeline import last_step


def repeated(log: EventLog) -> EventLog:
    """Return the log with its last step once more; what no step leaves behind is replaced as in a loop.

    Gradients of the first step end before the second begins. States of the optimizer stay, and are not made again.
    """
    begin = last_step(log.events)
    end = log.events.index(END) if END in log.events else len(log.events)
    step = log.events[begin:end]
    tensors, events = list(log.tensors), list[Event](log.events[:end])
    made = {event for event in step if type(event) is int and event >= 0}
    kept = made - {-event - 1 for event in step if type(event) is int and event < 0}
    events += [STEP, *(-index - 1 for index in sorted(kept) if log.tensors[index].category == "gradient")]
    copies: dict[int, int] = {}
    for event in step[1:]:
        if type(event) is not int:
            events.append(event)
        elif event < 0 and -event - 1 in copies:
            events.append(-copies[-event - 1] - 1)
        elif event >= 0 and log.tensors[event].category not in ("parameter", "state", "buffer"):
            copies[event] = len(tensors)
            tensors.append(tensors[event])
            events.append(copies[event])
            if event in kept and log.tensors[event].category != "gradient":
                events.append(-event - 1)
    return log.changed(tensors=tensors, events=(*events, END))
