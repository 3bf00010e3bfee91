help([[Takes a training script from one GPU to a whole supercomputer: echelon run -n 4 train.py]])
whatis("Name: echelon")
whatis("Version: 0.1.0")
whatis("Description: takes a training script from one GPU to a whole supercomputer")

-- Before: python3 -m venv ROOT; ROOT/bin/pip install .; mkdir ROOT/links; ln -s ../bin/echelon ROOT/links
local root = "/opt/echelon/0.1.0"

-- links has echelon alone: with bin in PATH, the environment's own python would hide the user's
prepend_path("PATH", pathJoin(root, "links"))
