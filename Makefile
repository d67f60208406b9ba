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
# Hundreds of processes are started: none compiles again what another has.
PYTEST      := PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest
PIP         := $(BIN)/python -m pip --disable-pip-version-check
# People see what is downloaded, and how far it is.
QUIET       := $(if $(CI),--quiet)
TORCH       := $(shell grep '^torch==' constraints.txt)
INSTALLED   := $(VENV)/.installed
# Tested where they are installed. Not among them: box2d, and football, whose wheel takes 6 to 7 minutes to build (docs/environments.md).
OPTIONAL    := mpi,vizdoom,mujoco,classic-control,sweep,neptune,mlflow-server,wandb,docs
COMPLETE    := $(VENV)/.installed-all

# A trained agent of Breakout, whose folder under results/ keeps its parameters.
AGENT       ?= $(patsubst %/checkpoints,%,$(firstword $(wildcard results/breakout_lanes/nstep/seed-*/checkpoints results/*/*/seed-*/checkpoints)))

.PHONY: breakout watch test test-slow test-all check format test-cluster chaos results docs install install-all clean

breakout: $(INSTALLED)  ## train Breakout on this machine; Ctrl-C ends it with a checkpoint; ARGS=--resume goes on
	$(BIN)/dba3c train breakout $(ARGS)

watch: $(INSTALLED)  ## film a game of a trained Breakout agent, its value and action probabilities beside it; AGENT=results/…
	@test -n "$(AGENT)" || { echo "no folder under results/ holds a trained agent (checkpoints/): name a run of yours, make watch AGENT=runs/…"; exit 1; }
	$(BIN)/dba3c record $(AGENT) --overlay --output runs/watch/game.mp4 --gif runs/watch/game.gif $(ARGS)

test: $(if $(CI),$(COMPLETE),$(INSTALLED))  ## what proves the product, in minutes (ARGS="tests/launch -k topology" for a part); CI=true: with all of install-all
	$(PYTEST) -n $(TESTS_AT_ONCE) --dist worksteal -m "not slow" $(ARGS)

test-slow: $(if $(CI),$(COMPLETE),$(INSTALLED))  ## long learning runs, 10,000 schedules, a chaos campaign, trackers' servers, guides, packages, the site
	$(PYTEST) -n $(TESTS_AT_ONCE) --dist worksteal -m slow --durations=12 $(ARGS)

test-all: test test-slow test-cluster  ## all there is (root, for Slurm)

check: $(INSTALLED)  ## what pre-commit and the reviewers run
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(INSTALLED)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

test-cluster: $(INSTALLED)  ## a real Slurm of 71 nodes on this machine (root only to install it and to start its daemons)
	tests/cluster/install_slurm.sh
	DBA3C_TEST_CLUSTER=1 $(PYTEST) -n 2 --dist loadgroup --durations=12 tests/cluster $(ARGS)

chaos: $(INSTALLED)  ## a real run under random faults, then an independent reader of what it left; MINUTES=10, SEED=… repeats one
	$(BIN)/python -m tests.chaos --minutes $(MINUTES) $(if $(SEED),--seed $(SEED)) $(ARGS)

results: $(INSTALLED)  ## redraw every plot under results/ from the data beside it
	$(BIN)/python results/plot.py

docs: $(INSTALLED)  ## the documentation as a site: build/site/index.html; a link that leads nowhere fails it
	@test -x $(BIN)/zensical || $(PIP) install --quiet --constraint constraints.txt --editable '.[docs]'
	$(BIN)/python scripts/make_site.py

install: $(INSTALLED)

install-all: $(COMPLETE)  ## and what is optional: MPI, Horovod (built once, 4 minutes), ViZDoom, MuJoCo, trackers

$(INSTALLED): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; (3, 10) <= v <= (3, 13) or sys.exit(f"Python 3.10 to 3.13 is needed; $(PYTHON) is {v[0]}.{v[1]}. Choose another: make PYTHON=python3.12 ...")'
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { echo "$(PYTHON) has no venv module. On Debian and Ubuntu: sudo apt-get install python3-venv"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(PIP) install $(QUIET) --constraint constraints.txt $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) '$(TORCH)'
	$(PIP) install $(QUIET) --constraint constraints.txt --editable '.[dev]'
	touch $@

$(COMPLETE): $(INSTALLED) launch/install/horovod.sh
	$(PIP) install $(QUIET) --constraint constraints.txt --editable '.[dev,$(OPTIONAL)]'
	@echo "launch/install/horovod.sh $(VENV)   # its words are in $(VENV)/horovod.log"
	@launch/install/horovod.sh $(VENV) >$(VENV)/horovod.log 2>&1 || echo "Horovod is not installed, its tests are skipped: $$(tail -n 1 $(VENV)/horovod.log)"
	touch $@

clean:
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache *.egg-info
