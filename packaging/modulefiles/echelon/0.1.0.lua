help([[Takes a training script from one GPU to a whole supercomputer: echelon run -n 4 train.py]])
whatis("Name: echelon")
whatis("Version: 0.1.0")
whatis("Description: takes a training script from one GPU to a whole supercomputer")

-- Before: make pyz; mkdir -p ROOT/bin; cp echelon.pyz ROOT
--         printf '#!/bin/sh\nexec python3 ROOT/echelon.pyz "$@"\n' >ROOT/bin/echelon; chmod +x ROOT/bin/echelon
local root = "/opt/echelon/0.1.0"

-- python3 is the user's own: it has PyTorch
prepend_path("PATH", pathJoin(root, "bin"))
