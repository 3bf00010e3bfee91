"""Draw docs/pictures/memory.png: the memory of one step of the script on docs/fit.md, as `echelon fit --plot` does."""

import re
import subprocess
import sys
import tempfile
from pathlib import Path

PICTURES = Path(__file__).parent
PAGE = PICTURES.parent / "fit.md"


def main() -> None:
    """Run the command of the page on its script."""
    script = re.search(r"```python train\.py\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "train.py").write_text(script[1] if script else "")
        words = [sys.executable, "-m", "echelon", "fit", "--device", "a100-40", "--plot", "memory", "train.py"]
        subprocess.run(words, cwd=folder, check=False, stdout=subprocess.DEVNULL)
        (PICTURES / "memory.png").write_bytes((Path(folder) / "memory.png").read_bytes())


if __name__ == "__main__":
    main()
