# make demo: the whole pipeline once. make test: every check. Both set up .venv first.
PYTHON ?= python3
BIN := .venv/bin
export PATH := $(CURDIR)/$(BIN):$(PATH)

.PHONY: setup demo test lint clean perf_analyzer benchmarks

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
	mypy serving/backends/onnxruntime/model.py
	mypy serving/backends/openvino/model.py
	lint-imports

# NVIDIA's load generator: a program inside an older wheel, with two libraries that the server's wheel brings.
perf_analyzer: .perf_analyzer/bin/perf_analyzer

.perf_analyzer/bin/perf_analyzer: .venv/installed
	@mkdir -p .perf_analyzer/lib
	@for library in b64:libb64.so.0d cudart:libcudart.so.12; do \
		ln -sf "$$(ls "$(CURDIR)"/.venv/lib/python*/site-packages/nvidia_pytriton.libs/lib$${library%%:*}-*.so*)" \
			.perf_analyzer/lib/$${library##*:} || exit 1; \
	done
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --upgrade \
		--target .perf_analyzer tritonclient==2.51.0
	@touch $@

test: lint perf_analyzer
	python -m pytest

# Every result again, one at a time, and the report made of them: an hour and a half on two cores that do nothing else.
RESULTS ?= benchmarks/results

benchmarks: setup perf_analyzer
	python benchmarks/latency.py --batch 1 --batch 64 --batch 5000 --runtimes all \
		--precision fp32,bf16,int8 --memory --json $(RESULTS)/latency.json
	python benchmarks/latency.py --sweep --json $(RESULTS)/sweep.json
	python benchmarks/rewrites.py --json $(RESULTS)/rewrites-run-1.json
	python benchmarks/rewrites.py --json $(RESULTS)/rewrites-run-2.json
	python benchmarks/frontier.py --output $(RESULTS)/studies/frontier
	python benchmarks/operators.py --model vitbn --json $(RESULTS)/operators-vitbn.json
	python benchmarks/operators.py --model vitbn-tiny --json $(RESULTS)/operators-vitbn-tiny.json
	python benchmarks/accuracy.py --json $(RESULTS)/accuracy.json
	python benchmarks/engines.py --json $(RESULTS)/engines.json
	python benchmarks/overhead.py --json $(RESULTS)/overhead.json
	python benchmarks/throughput.py --model vitbn --model vitbn-small --model vitbn-tiny --model cnn \
		--in-flight 1 --in-flight 2 --in-flight 8 --in-flight 32 --json $(RESULTS)/throughput.json
	python benchmarks/report.py build $(RESULTS) --output $(RESULTS)

clean:
	rm -rf .venv .perf_analyzer checkpoints *.egg-info
