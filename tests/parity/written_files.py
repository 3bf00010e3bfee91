"""Files that the script writes are the same: names, bytes and permissions."""

import os
import sys

os.chdir(sys.argv[1])
with open("text", "w") as file:
    file.write("Grüße\n")
os.mkdir("made")
os.symlink("text", "link")
for name in sorted(os.listdir()):
    print(name, oct(os.lstat(name).st_mode))
