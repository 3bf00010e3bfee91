"""The script may recurse exactly as deep as under plain Python."""


def depth(level: int) -> int:
    try:
        return depth(level + 1)
    except RecursionError:
        return level


print(depth(0))
