# Two commands for everyone:  make caption [IMAGE=photo.jpg]   and   make test
# All paths are relative and quoted, so that a folder with a space in its name works too.
# PIP_ARGS="..." is passed to every pip install; PYTHON=python3.12 picks the interpreter.
.DELETE_ON_ERROR:
.PHONY: caption prepare test test-slow site lint lint-format lint-code lint-types lint-layers clean moved
.DEFAULT_GOAL := caption

IMAGE ?= examples/photos/cat.jpg
PYTEST_ARGS ?=
# A photo's name travels in the environment: make never splits it and the shell never expands it.
export IMAGE
export PIP_DISABLE_PIP_VERSION_CHECK := 1

# -qq: errors are shown, progress and the warnings of unusual pip settings are not.
PIP = .venv/bin/python -m pip install -qq $(PIP_ARGS) -c constraints.txt
# One thread for each of the two pytest workers; torch would otherwise start one per core in both.
THREADS = OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false
# An environment that was moved or copied along with the folder points to the old place: make it anew.
# The same holds for one whose interpreter is gone.
MOVED := $(shell [ "$$(cat .venv/.place 2>/dev/null)" = "$$(pwd)" ] \
  && .venv/bin/python -c "" 2>/dev/null || echo moved)

caption: .venv/.runtime
	@.venv/bin/fuseprompt caption --prepare -- "$$IMAGE"

prepare: .venv/.runtime
	@.venv/bin/fuseprompt prepare

test: .venv/.dev prepare
	$(THREADS) .venv/bin/python -m pytest -n 2 $(PYTEST_ARGS)

test-slow: .venv/.dev prepare
	$(THREADS) .venv/bin/python -m pytest -n 2 -m "slow and not gpu and not hub" $(PYTEST_ARGS)

site: .venv/.dev
	@NO_MKDOCS_2_WARNING=1 .venv/bin/python -m mkdocs build --quiet --strict

lint: lint-format lint-code lint-types lint-layers

lint-format: .venv/.dev
	.venv/bin/python -m ruff format --check --output-format=concise .

lint-code: .venv/.dev
	.venv/bin/python -m ruff check --output-format=concise .

lint-types: .venv/.dev
	.venv/bin/python -m mypy

lint-layers: .venv/.dev
	.venv/bin/lint-imports

clean:
	rm -rf .venv dist build .ci/out .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The environment: made once, made again when the folder moved, installed again when the pins change.
.venv/.made: $(MOVED)
	@python=$$(sh .ci/find-python "$(PYTHON)") && echo "Making .venv (once) with $$python ..." >&2 \
	  && rm -rf .venv && "$$python" -m venv .venv
	@$(PIP) --upgrade pip
	@pwd > .venv/.place
	@touch .venv/.made

.venv/.runtime: .venv/.made pyproject.toml constraints.txt
	@echo "Installing fuseprompt and its dependencies into .venv (once) ..." >&2
	@$(PIP) hatchling editables
	@$(PIP) --no-build-isolation -e .
	@touch .venv/.runtime

.venv/.dev: .venv/.runtime
	@echo "Installing the development tools into .venv (once) ..." >&2
	@$(PIP) --no-build-isolation -e ".[dev,docs]"
	@touch .venv/.dev

moved:
