"""Text that cannot be written at the end gives exit code 120, as under plain Python."""

import os

os.close(1)
print("nowhere")
