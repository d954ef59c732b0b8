# Every target sets itself up in .venv: git, make and Python are all that must be there.

PYTHON ?= python3
VENV ?= .venv
MEMORY ?= 160MiB
RUN ?= runs/demo
TORCH ?= 2.14.1

BIN := $(VENV)/bin
INSTALL := $(BIN)/python -m pip install --quiet --quiet --no-compile --constraint constraints.txt

# Of the 12,000 files that are installed few are ever imported: those are compiled when they first
# are (which this variable would forbid if it were set), not all beforehand, which takes a minute.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: help demo test test-torch check format benchmarks accuracy techniques everything clean
.NOTPARALLEL:

help:
	@echo "make demo        train a small GPT inside $(MEMORY), predicted and measured, and write a page"
	@echo "make test        run the tests"
	@echo "make check       lint, types, and who may import whom"
	@echo "make format      format the code"
	@echo "make benchmarks  print what the benchmarks measure"
	@echo "make accuracy    predict what others measured, and write docs/accuracy.md: minutes"
	@echo "make techniques  measure every technique beside Hugging Face's Trainer, and write"
	@echo "                 docs/techniques.md: about an hour"
	@echo "make everything  train with every technique at once, beside the plain run: long"
	@echo "make test-torch TORCH=2.14.1"
	@echo "                 run the tests of the virtual GPU with another torch"
	@echo "make clean       remove what make has made, the demo's run included"

# A thread that waits for the other should sleep: where something else runs, spinning costs most.
demo: $(VENV)/.runtime
	rm -rf $(RUN)
	OMP_WAIT_POLICY=PASSIVE $(BIN)/python -m memfit train nanochat-d4 --data python \
		--vocab-size 4096 --seq-len 128 --tokens-per-step 1024 --steps 60 --learning-rate 2e-3 \
		--eval-every 20 --memory $(MEMORY) --out $(RUN) --html $(RUN)/report.html
	@echo "Open $(RUN)/report.html in a browser: memory over a step, predicted and measured"

# One process a core of two; each is told not to start threads for the other's core.
test: $(VENV)/.test
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 $(PYTEST_ARGS)

# The virtual GPU leans on private parts of torch.  The install is several GB for a CUDA build.
test-torch:
	$(PYTHON) -m venv build/torch-$(TORCH)
	build/torch-$(TORCH)/bin/python -m pip install --quiet "torch==$(TORCH)" --editable '.[test]'
	OMP_NUM_THREADS=1 build/torch-$(TORCH)/bin/python -m pytest -n 2 tests/tracing/virtual

check: $(VENV)/.test
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/.test
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

benchmarks: $(VENV)/.test
	$(BIN)/python benchmarks/records.py
	$(BIN)/python benchmarks/prediction.py

# Installs an older transformers into build/, for the rows that were measured with it.
accuracy: $(VENV)/.test
	$(BIN)/python -m benchmarks.accuracy

techniques: $(VENV)/.test
	OMP_WAIT_POLICY=PASSIVE $(BIN)/python -m benchmarks.techniques

everything: $(VENV)/.test
	OMP_WAIT_POLICY=PASSIVE $(BIN)/python -m benchmarks.everything

clean:
	rm -rf $(VENV) runs build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis

# The stamps .runtime and .test say what is installed; .test has all that .runtime has.
$(VENV)/.runtime: pyproject.toml constraints.txt | $(BIN)/pip
	@echo "Installing memfit and what it needs into $(VENV): once, a minute or more"
	$(INSTALL) --editable .
	touch $@

$(VENV)/.test: pyproject.toml constraints.txt | $(BIN)/pip
	@echo "Installing memfit, what it needs and the test tools into $(VENV): once, a minute or more"
	$(INSTALL) --editable '.[test]'
	touch $(VENV)/.runtime $@

$(BIN)/pip:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "memfit needs Python 3.11 or newer: make PYTHON=python3.12 ..."; exit 1; }
	@echo "Making a virtual environment in $(VENV)"
	$(PYTHON) -m venv $(VENV)
