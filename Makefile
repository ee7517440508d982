# `make` or `make help` lists the targets. Everything happens in a virtual environment in .venv, which is made on first
# use and re-used until pyproject.toml changes. PYTHON chooses the interpreter it is made from.

PYTHON ?= python3
JOBS   ?= 2

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.NOTPARALLEL:
.DELETE_ON_ERROR:

VENV := .venv
BIN  := $(VENV)/bin
# Twice quiet: errors are shown, warnings are not.
PIP  := $(BIN)/python -m pip --disable-pip-version-check install --quiet --quiet

# An environment only works where it was made. The stamp holds that place; a copied or moved checkout makes its own.
MADE_FOR := $(shell test -x $(BIN)/python && cat $(VENV)/.made-for 2>/dev/null)
ifneq ($(MADE_FOR),$(CURDIR))
$(VENV)/.made-for $(VENV)/.installed $(VENV)/.installed-app $(VENV)/.installed-dev: FORCE
endif

say = @printf '\n==> %s\n'

.PHONY: help
help:  ## List these targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

.PHONY: setup
setup: $(VENV)/.installed-dev  ## Make .venv with argrad and the tools to work on it

.PHONY: demo
demo: $(VENV)/.installed  ## Show argrad at work on the digits that ship with scikit-learn
	@$(BIN)/argrad demo

.PHONY: app
app: $(VENV)/.installed-app  ## Look inside the models in runs/, such as those of the demo, in a browser
	@$(BIN)/argrad app

.PHONY: test
test: lint  ## Run every quick check: style, types, layers, tests, documentation
	$(say) 'pytest: tests, doctests, documentation snippets'
	@$(BIN)/python -m pytest -q -n $(JOBS) --dist loadgroup -m 'not slow'
	$(say) 'all checks passed'

.PHONY: test-slow
test-slow: $(VENV)/.installed-dev browser  ## Run the tests marked slow
	$(say) 'pytest: slow tests'
	@$(BIN)/python -m pytest -m slow

.PHONY: lint
lint: $(VENV)/.installed-dev  ## Check style, types and import layers
	$(say) 'ruff check: rules'
	@$(BIN)/ruff check
	$(say) 'ruff format: layout'
	@$(BIN)/ruff format --check
	$(say) 'mypy: types'
	@$(BIN)/mypy --strict src
	$(say) 'import-linter: layers'
	@$(BIN)/lint-imports --no-logo

.PHONY: format
format: $(VENV)/.installed-dev  ## Lay out the code and apply the safe fixes
	@$(BIN)/ruff check --fix
	@$(BIN)/ruff format

.PHONY: bench
bench: $(VENV)/.installed  ## Time training steps with every estimator against plain PyTorch
	@$(BIN)/argrad bench estimators

.PHONY: docs
docs: $(VENV)/.installed-dev  ## Build the documentation site, to be read without a server or a network
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet
	$(say) 'open $(CURDIR)/build/site/index.html'

.PHONY: clean
clean:  ## Remove .venv, caches and build output; runs and data stay
	rm -rf $(VENV) build dist .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find src tests $(wildcard benchmarks) -name __pycache__ -type d -prune -exec rm -rf {} +

# --- the environment ---------------------------------------------------------------------------------------------------

# Keeps an environment in which pip works; anything else, such as one left half-made by an interruption, is made anew.
$(VENV)/.made-for:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	    echo "argrad needs Python 3.11 or newer; '$(PYTHON)' is not. Try: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 1; }
	@rm -f $(VENV)/.installed*
	@if [[ "$(MADE_FOR)" != "$(CURDIR)" && -e $(VENV)/.made-for ]] || ! $(BIN)/python -m pip --version >/dev/null 2>&1; then \
	    printf '\n==> making %s\n' '$(VENV)'; $(PYTHON) -m venv --clear $(VENV); fi
	@printf '%s' '$(CURDIR)' >$@

$(VENV)/.installed: pyproject.toml | $(VENV)/.made-for
	$(say) 'installing argrad into $(VENV) (a few minutes the first time)'
	@$(PIP) --editable .
	@touch $@

$(VENV)/.installed-app: pyproject.toml | $(VENV)/.made-for
	$(say) 'installing argrad and its web app into $(VENV) (a few minutes the first time)'
	@$(PIP) --editable '.[app]'
	@touch $(VENV)/.installed $@

$(VENV)/.installed-dev: pyproject.toml | $(VENV)/.made-for
	$(say) 'installing argrad and its development tools into $(VENV) (a few minutes the first time)'
	@$(PIP) --editable '.[dev]'
	@touch $(VENV)/.installed $(VENV)/.installed-app $@

# The tests of the web app and of the documentation use a Chromium that is on the machine, and skip without one.
.PHONY: browser
browser:
	@command -v chromium chromium-browser google-chrome >/dev/null || { \
	    if [[ $$(id -u) == 0 ]] && command -v apt-get >/dev/null; then \
	        printf '\n==> installing Chromium to test the web app with\n'; \
	        apt-get update -qq && apt-get install -qq -y chromium >/dev/null; \
	    else echo 'no Chromium here: the tests in a browser will be skipped (apt install chromium)' >&2; fi; }

.PHONY: FORCE
FORCE:
