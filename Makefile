# One word for each thing a newcomer wants. `make help` prints this list.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

.DEFAULT_GOAL := help
.PHONY: help demo test quick matrix seeds check format picture clean

help: ## print this list
	@awk -F':.*## ' '/^[a-z]+:.*## / {printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(STAMP) ## cores that go where the load is, live on a local Spark, in about a minute
	@$(BIN)/elasticutor demo

test: $(STAMP) ## every claim once: tests and doctests, about 11 minutes on 2 cores
	@$(BIN)/python scripts/suite.py test

quick: $(STAMP) ## the tests that need neither Spark nor a cluster's processes: at most 90 seconds
	@$(BIN)/python scripts/suite.py quick

matrix: $(STAMP) ## the exhaustive rest: every kill point, every seed, every planted bug
	@$(BIN)/python scripts/suite.py matrix
	@$(BIN)/elasticutor check --seeds 2000

seeds: $(STAMP) ## search for the seed by which each planted bug is found, and store it
	@$(BIN)/python scripts/store_seeds.py

check: $(STAMP) ## ruff, mypy --strict, codespell
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/codespell

format: $(STAMP) ## let ruff put everything into shape
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

picture: $(STAMP) ## draw the README picture again
	@$(BIN)/elasticutor demo --plain --plot docs/rush.svg

clean: ## remove the virtual environment and caches
	@rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(STAMP): pyproject.toml constraints.txt scripts/setup
	@PYTHON="$(PYTHON)" VENV="$(VENV)" sh scripts/setup
	@touch $(STAMP)
