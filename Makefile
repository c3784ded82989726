# make demo: the whole pipeline once. make test: every check. Both set up .venv first.
PYTHON ?= python3
BIN := .venv/bin
export PATH := $(CURDIR)/$(BIN):$(PATH)

.PHONY: setup demo test lint clean

setup: .venv/installed

# A set-up that broke off leaves no stamp, so the next run repeats it.
.venv/installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; (3, 10) <= sys.version_info[:2] < (3, 13) or sys.exit("Python 3.10 to 3.12 is needed, found %d.%d: make PYTHON=python3.11" % sys.version_info[:2])'
	@echo "Setting up .venv (a few minutes the first time)"
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

demo: setup
	$(BIN)/python demo.py

lint: setup
	ruff check .
	ruff format --check .
	mypy
	MYPYPATH=serving/backends/onnxruntime mypy serving/backends/onnxruntime/model.py
	lint-imports

test: lint
	python -m pytest

clean:
	rm -rf .venv checkpoints *.egg-info
