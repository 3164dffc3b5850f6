# Every target does its own set-up: a virtual environment in .venv, with the versions of constraints.txt.
#   make test   the fast suite, under 3 minutes on 2 cores      make demo   a network learns its widths, from drawing
#                                                                           its data to a report
#   make slow   the rest: the model zoos                        make lint   ruff and mypy
PYTHON ?= python3
VENV ?= .venv
PYTEST_ARGS ?=

BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PIP := $(BIN)/python -m pip --disable-pip-version-check install -qq --progress-bar off -c constraints.txt

# Two test processes with one thread each: two cores, not oversubscribed.
export OMP_NUM_THREADS ?= 1
export MKL_NUM_THREADS ?= 1

.DELETE_ON_ERROR:
.PHONY: test slow lint demo setup clean

test: $(STAMP)
	$(BIN)/python -m pytest -n 2 -m "not slow" $(PYTEST_ARGS)

slow: $(STAMP)
	$(BIN)/python -m pytest -n 2 -m slow $(PYTEST_ARGS)

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Both runs side by side, one core each: networks this small do not gain from a second thread.
demo: $(STAMP)
	$(BIN)/autowidth train demo-baseline --quiet > /dev/null & \
	$(BIN)/autowidth train demo && wait $$!
	$(BIN)/autowidth report runs/demo --baseline runs/demo-baseline --html runs/demo/report.html
	$(BIN)/autowidth report runs/demo --baseline runs/demo-baseline
	$(BIN)/autowidth verify runs/demo

setup: $(STAMP)

# torch comes first and alone, so that nothing after it brings another build of it along. torchvision and timm come
# without their dependencies for the same reason: the rest of what they need is installed by then.
$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) torch
	$(PIP) hatchling editables
	$(PIP) --no-build-isolation -e ".[dev,transformers,data,tensorboard]"
	$(PIP) --no-deps torchvision timm
	touch $@

clean:
	rm -rf $(VENV) build dist runs .pytest_cache .hypothesis .mypy_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
