# On a machine with python3 (3.11 or newer), its venv module and make:
#
#   make run     install into .venv and run the main job          make run ARGS="+recipe=nanogpt_bin"
#   make test    install into .venv and run the tests that one runs before each commit
#                                                                 make test ARGS="tests/batch -x"  (some, but all of them)
#   make test-full                                                the same, and everything else that is tested
#   make lint    check style and types
#   make bench   run the benchmarks; minutes                      make bench ARGS=tests/benchmarks/tokens.py
#   make clean   remove what these made
#
# Everything may be repeated: packages are installed again only when pyproject.toml or constraints.txt have changed.
# Another Python: make run PYTHON=python3.12 (after `make clean`).

PYTHON := python3
VENV := .venv
ARGS :=
# Tests at a time: one for each processor; `nproc` would take the threads of OpenMP for them.
WORKERS := $(shell env -u OMP_NUM_THREADS -u OMP_THREAD_LIMIT nproc 2>/dev/null || echo 2)
PYTEST = $(BIN)/python -m pytest $(or $(ARGS),--numprocesses $(WORKERS) --dist worksteal $(1))
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check

# Compiled once, into the venv, whatever the surroundings say: a start of the program is otherwise a second longer.
export PYTHONPYCACHEPREFIX := $(abspath $(VENV))/pycache
unexport PYTHONDONTWRITEBYTECODE

.PHONY: run test test-full lint bench clean
.DELETE_ON_ERROR:

run: $(VENV)/installed
	$(BIN)/python -m flodl_pipe $(or $(ARGS),+recipe=olmo_shards)

test: $(VENV)/installed-test
	$(call PYTEST,-m "not full")

test-full: $(VENV)/installed-full
	$(call PYTEST)

lint: $(VENV)/installed-dev
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

# All of them are run, whichever misses its target; the exit status tells whether one did.
bench: $(VENV)/installed-test
	@status=0; for script in $(or $(ARGS),$$(grep -l __main__ tests/benchmarks/*.py)); do \
		echo "== $$script"; PYTHONPATH=. $(BIN)/python $$script || status=1; \
	done; exit $$status

clean:
	rm -rf $(VENV) dist build outputs multirun .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find flodl_pipe tests docs -name __pycache__ -type d -prune -exec rm -rf {} +

# A venv that is there and works is kept, so that one with a torch of your choice can be made beforehand. One that is
# half made (no ensurepip, an interrupt) is made anew.
$(VENV)/made:
	@command -v $(PYTHON) >/dev/null || { echo "make: $(PYTHON) not found; install Python 3.11 or newer, or name it: make PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; v = sys.version.split()[0]; sys.exit(sys.version_info < (3, 11) and f"make: $(PYTHON) is Python {v}, and flodl_pipe needs 3.11 or newer; name another: make PYTHON=python3.12")'
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || { rm -rf $(VENV) && $(PYTHON) -m venv $(VENV); }
	@touch $@

$(VENV)/installed: extras :=
$(VENV)/installed-test: extras := [test]
$(VENV)/installed-full: extras := [test,ecosystem,slurm]
$(VENV)/installed-dev: extras := [dev]
$(VENV)/installed $(VENV)/installed-test $(VENV)/installed-full $(VENV)/installed-dev: $(VENV)/made pyproject.toml constraints.txt
	$(PIP) install --constraint constraints.txt --editable '.$(extras)'
	@touch $@
