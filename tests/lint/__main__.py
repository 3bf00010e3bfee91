"""Write what is known of the rules into docs/lint.md: `python -m tests.lint`."""

from tests.lint.page import PATH, rendered, score

if __name__ == "__main__":
    PATH.write_text(rendered(PATH.read_text("utf-8")), "utf-8")
    print(score())
