# Everything from a bare machine. Knobs: PYTHON=python3.12, ARGS="--workers 4", TORCH_INDEX=https://download.pytorch.org/whl/cpu
# (PyPI's Linux torch brings CUDA along, gigabytes that a CPU cluster never uses; TORCH_INDEX points at the small CPU build).
PYTHON      ?= python3
VENV        ?= .venv
TORCH_INDEX ?=
ARGS        ?=
# Tests mostly wait for processes that they start: more at once than there are cores.
TESTS_AT_ONCE ?= 3
MINUTES     ?= 10
SEED        ?=
BIN         := $(VENV)/bin
PIP         := $(BIN)/python -m pip --disable-pip-version-check
TORCH       := $(shell grep '^torch==' constraints.txt)
INSTALLED   := $(VENV)/.installed
# Tested where they are installed. Not among them: football, whose wheel takes 7 minutes to build (docs/environments.md).
OPTIONAL    := mpi,vizdoom,mujoco,neptune,mlflow-server,wandb
COMPLETE    := $(VENV)/.installed-all

.PHONY: breakout test check format test-cluster chaos results install install-all clean

breakout: $(INSTALLED)  ## train Breakout on this machine; Ctrl-C ends it with a checkpoint; ARGS=--resume goes on
	$(BIN)/dba3c train breakout $(ARGS)

test: $(if $(CI),$(COMPLETE),$(INSTALLED))  ## the whole test suite (ARGS="tests/launch -k topology" for a part); CI=true: nothing optional left out
	$(BIN)/python -m pytest -n $(TESTS_AT_ONCE) --dist worksteal $(ARGS)

check: $(INSTALLED)  ## what pre-commit and the reviewers run
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(INSTALLED)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

test-cluster: $(INSTALLED)  ## a real Slurm of 64 nodes on this machine (root only to install it and to start its daemons)
	tests/cluster/install_slurm.sh
	DBA3C_TEST_CLUSTER=1 $(BIN)/python -m pytest tests/cluster $(ARGS)

chaos: $(INSTALLED)  ## a real run under random faults, then an independent reader of what it left; MINUTES=10, SEED=… repeats one
	$(BIN)/python -m tests.chaos --minutes $(MINUTES) $(if $(SEED),--seed $(SEED)) $(ARGS)

results: $(INSTALLED)  ## redraw every plot under results/ from the data beside it
	$(BIN)/python results/plot.py

install: $(INSTALLED)

install-all: $(COMPLETE)  ## and what is optional: MPI, Horovod (built once, 4 minutes), ViZDoom, MuJoCo, trackers

$(INSTALLED): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; (3, 10) <= v <= (3, 13) or sys.exit(f"Python 3.10 to 3.13 is needed; $(PYTHON) is {v[0]}.{v[1]}. Choose another: make PYTHON=python3.12 ...")'
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { echo "$(PYTHON) has no venv module. On Debian and Ubuntu: sudo apt-get install python3-venv"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(PIP) install --quiet --constraint constraints.txt $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) '$(TORCH)'
	$(PIP) install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

$(COMPLETE): $(INSTALLED) launch/install/horovod.sh
	$(PIP) install --quiet --constraint constraints.txt --editable '.[dev,$(OPTIONAL)]'
	@echo "launch/install/horovod.sh $(VENV)   # its words are in $(VENV)/horovod.log"
	@launch/install/horovod.sh $(VENV) >$(VENV)/horovod.log 2>&1 || echo "Horovod is not installed, its tests are skipped: $$(tail -n 1 $(VENV)/horovod.log)"
	touch $@

clean:
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache *.egg-info
