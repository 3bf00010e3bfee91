"""At the script's top level there is one frame: no frame of a launcher lies below it."""

import inspect

for frame in inspect.stack():
    print(frame.filename, frame.lineno, frame.function)
