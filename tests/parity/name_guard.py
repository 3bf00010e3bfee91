"""Code behind the `__main__` guard runs, once."""

print("top")
if __name__ == "__main__":
    print("guarded")
