# One word for each thing a newcomer wants. `make help` prints this list.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

.DEFAULT_GOAL := help
.PHONY: help demo test quick check format picture clean

help: ## print this list
	@awk -F':.*## ' '/^[a-z]+:.*## / {printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(STAMP) ## cores that go where the load is, live on a local Spark, in about a minute
	@$(BIN)/elasticutor demo

test: $(STAMP) ## all tests and doctests
	@$(BIN)/python -m pytest

quick: $(STAMP) ## the tests that need neither Spark nor processes: a minute or two
	@$(BIN)/python -m pytest --quiet tests/core tests/sim tests/state tests/transport tests/process src/elasticutor/core

check: $(STAMP) ## ruff, mypy --strict, codespell (doctests run with `make test` too)
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/codespell
	@$(BIN)/python -m pytest --quiet --durations=0 src

format: $(STAMP) ## let ruff put everything into shape
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

picture: $(STAMP) ## draw the README's picture anew
	@$(BIN)/elasticutor demo --plain --plot docs/rush.svg

clean: ## remove the virtual environment and caches
	@rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(STAMP): pyproject.toml constraints.txt scripts/setup
	@PYTHON="$(PYTHON)" VENV="$(VENV)" sh scripts/setup
	@touch $(STAMP)
