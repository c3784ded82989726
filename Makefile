# make demo: the whole pipeline once. make test: every test. make check: the quick ones. Each sets up .venv first.
PYTHON ?= python3
BIN := .venv/bin
export PATH := $(CURDIR)/$(BIN):$(PATH)

.PHONY: setup setup-gpu demo test all-tests check quick-tests lint style types clean perf_analyzer bindings report benchmarks \
	benchmarks-gpu

setup: .venv/installed

# A set-up that broke off leaves no stamp, so the next run repeats it.
.venv/installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; (3, 11) <= sys.version_info[:2] < (3, 13) or sys.exit("Python 3.11 or 3.12 is needed, found %d.%d: make PYTHON=python3.11" % sys.version_info[:2])'
	@echo "Setting up .venv (a few minutes the first time)"
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

# The GPU's packages and the CPU's exclude each other, so they have an environment each.
setup-gpu: .venv-gpu/installed

.venv-gpu/installed: pyproject.toml constraints-gpu.txt
	@echo "Setting up .venv-gpu (several gigabytes the first time)"
	$(PYTHON) -m venv .venv-gpu
	.venv-gpu/bin/python -m pip install --quiet --disable-pip-version-check -c constraints-gpu.txt -e '.[gpu,tensorrt,train,client]'
	@touch $@

# With a GPU and its environment the demo runs there.
demo: setup
	@if command -v nvidia-smi >/dev/null && nvidia-smi -L >/dev/null 2>&1 && [ -e .venv-gpu/installed ]; then \
		PATH="$(CURDIR)/.venv-gpu/bin:$$PATH" .venv-gpu/bin/python demo.py; \
	else \
		echo "On the CPU: no GPU here, or no .venv-gpu (make setup-gpu)"; $(BIN)/python demo.py; \
	fi

lint: style types

style: setup
	ruff check .
	ruff format --check .
	lint-imports

# A minute in a fresh clone, later a few seconds.
types: setup
	mypy
	mypy serving/backends/onnxruntime/model.py
	mypy serving/backends/openvino/model.py

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

# The Python side of the oldest TensorRT that is supported, 1 MB: the tests check every call against it, and against the
# newest one in .venv. Neither holds TensorRT itself.
bindings: .tensorrt/tensorrt_bindings

.tensorrt/tensorrt_bindings: .venv/installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --upgrade \
		--target .tensorrt tensorrt_cu12_bindings==10.0.1
	@touch $@

# One thread of PyTorch for each worker, for threads that share a core wait for one another. Bytecode is kept even where
# the environment says otherwise: the tests start hundreds of interpreters.
PYTEST := PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 python -m pytest --dist loadfile --no-loadscope-reorder

# Types are checked beside the tests: on two cores both together are quicker than one after the other.
test: style perf_analyzer bindings
	@$(MAKE) --no-print-directory --jobs=2 all-tests types

# Three workers on two cores, for each waits for servers a fifth of its time. A failed test runs once more: on a shared
# machine a server or a browser can miss its time. The summary shows why.
all-tests: setup
	$(PYTEST) -n 3 --reruns 1 --rerun-show-tracebacks

# The daily loop: no server, no trained network, no export, and no test that takes over a second.
check: style
	@$(MAKE) --no-print-directory --jobs=2 quick-tests types

quick-tests: setup
	$(PYTEST) -n 2 -q -m "not slow and not live"

# The page and its plots, from the committed results.
RESULTS ?= benchmarks/results
NEW := $(RESULTS).new

report: setup
	python benchmarks/report.py build $(RESULTS) --output $(RESULTS)

# Every file that the page reads, measured again into a new folder that then replaces the old files: two and a half hours
# on two cores that do nothing else. An interrupted run leaves the old results as they are.
benchmarks: setup perf_analyzer
	rm -rf $(NEW)
	python benchmarks/latency.py --batch 1 --batch 64 --runtimes all --precision fp32,bf16,int8 --seconds 20 \
		--json $(NEW)/latency.json
	python benchmarks/latency.py --batch 5000 --models vitbn --runtimes torch,onnx,onnx-optimized \
		--precision fp32,int8 --memory --seconds 20 --json $(NEW)/latency-5000.json
	python benchmarks/latency.py --sweep --json $(NEW)/sweep.json
	python benchmarks/rewrites.py --json $(NEW)/rewrites.json
	python benchmarks/frontier.py --output $(NEW)/studies/frontier
	python benchmarks/operators.py --model vitbn --json $(NEW)/operators-vitbn.json
	python benchmarks/operators.py --model vitbn-tiny --json $(NEW)/operators-vitbn-tiny.json
	python benchmarks/accuracy.py --json $(NEW)/accuracy.json
	python benchmarks/engines.py --json $(NEW)/engines.json
	python benchmarks/overhead.py --json $(NEW)/overhead.json
	python benchmarks/foreign.py --json $(NEW)/foreign.json
	python benchmarks/faults.py --json $(NEW)/faults.json
	python benchmarks/faults.py --scenario sigterm --hours 0.5 --json $(NEW)/soak.json
	python benchmarks/proxy.py --json $(NEW)/proxy.json
	python benchmarks/bulk.py --json $(NEW)/bulk.json
	python benchmarks/throughput.py --model vitbn --model vitbn-tiny --model cnn --in-flight 1 --in-flight 8 \
		--json $(NEW)/throughput.json
	python benchmarks/throughput.py --sharing 1x0 --batch 1 --rate 500 --rate 1000 --rate 2000 \
		--json $(NEW)/throughput-rates.json
	python benchmarks/conditions.py --images 100 --output $(NEW)
	rm -f $(RESULTS)/*.json $(RESULTS)/*.png $(RESULTS)/report.* $(RESULTS)/studies/frontier/frontier-measured*
	cp -R $(NEW)/. $(RESULTS) && rm -rf $(NEW)
	$(MAKE) report

# All that is measured on a GPU, in at most 30 minutes; DRY_RUN=1 prints the commands and checks options and imports.
# It runs in the Python that is on PATH: .venv holds the CPU's packages (docs/usage.md, Measure).
benchmarks-gpu:
	python benchmarks/gpu.py $(if $(DRY_RUN),--dry-run)

clean:
	rm -rf .venv .venv-gpu .perf_analyzer .tensorrt checkpoints *.egg-info
