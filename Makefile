# make example   train, measure and search the collection that ships, in a minute (make, Python >= 3.11)
# make paper     the paper's system on it, compared with that, in some minutes
# make test      the quick tests, offline
# make test-programs   tests of whole programs, clusters and the page, seconds each
# make test-all  both in one run, as continuous integration
# make lint      ruff, mypy and spelling
# make docs      the documentation site, into site/
# make results   the table of the README, of measured files (DATA=DIR: trains and measures it again; about 80 minutes)
# make licences  the licence of every dependency; an error if one is not allowed

# Containers often set it; every process that a test starts would compile the libraries again, which takes longer than most tests.
unexport PYTHONDONTWRITEBYTECODE

PYTHON ?= python3
BIN := .venv/bin
WORKERS := $(shell expr $$(getconf _NPROCESSORS_ONLN) + 1)# some tests wait

.PHONY: example paper test test-programs test-all lint docs licences results clean

example: .venv/example
	$(BIN)/dsi train minipedia runs/example
	$(BIN)/dsi evaluate runs/example minipedia
	$(BIN)/dsi search runs/example "which capitals are on the danube" -k 3

paper: example
	$(BIN)/dsi train minipedia runs/paper --config paper-minilm
	$(BIN)/dsi compare runs/paper runs/example minipedia --measures nDCG@10 Hit@1 Hit@10

test: .venv/installed
	$(BIN)/python -m pytest -q -n $(WORKERS) --dist worksteal

test-programs: .venv/installed
	$(BIN)/python -m pytest -q -n $(WORKERS) --dist worksteal -m "(programs or cluster or browser) and not (slow or fuzz or gpu)"

test-all: .venv/installed
	$(BIN)/python -m pytest -q -n $(WORKERS) --dist worksteal -m "not (slow or fuzz or gpu)"

lint: .venv/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/typos

docs: .venv/installed
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

results: .venv/installed
	$(BIN)/dsi results $(if $(DATA),--data $(DATA)) --output runs/results

licences: .venv/installed
	$(BIN)/python -m tests.support.licences

WORKSHOP := --editable ".[example,dev,docs]" --editable "scripts[figures,irds,rerank]"
install = $(BIN)/uv pip install --quiet --constraint constraints.txt $(1) || \
  $(BIN)/pip install --quiet --no-compile --constraint constraints.txt $(1)

# What the example needs: the library and its encoder. pip takes the torch that it is configured for; uv is faster with all else, but
# does not read pip's configuration: where it fails, pip does that too.
.venv/example: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --no-compile --constraint constraints.txt torch uv
	$(call install,--editable ".[example]")
	touch $@

# The workshop: tests, linters, documentation, and the papers' wing.
.venv/installed: .venv/example scripts/pyproject.toml
	$(call install,$(WORKSHOP))
	touch $@

clean:
	rm -rf .venv runs site
