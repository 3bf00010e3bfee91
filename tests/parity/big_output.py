"""Five megabytes of output arrive whole and in order."""

for line in range(100_000):
    print(f"{line:08d} the quick brown fox jumps over the lazy dog")
