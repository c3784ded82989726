# make demo: the whole pipeline once. make test: every test. make check: the quick ones. Each sets up .venv first.
PYTHON ?= python3
BIN := .venv/bin
export PATH := $(CURDIR)/$(BIN):$(PATH)

.PHONY: setup setup-gpu demo test test-clients all-tests check quick-tests lint style types clean perf_analyzer \
	bindings lock report benchmarks benchmarks-gpu

CHECK_PYTHON = $(PYTHON) -c 'import sys; (3, 11) <= sys.version_info[:2] < (3, 13) or sys.exit("Python 3.11 or 3.12 is needed, found %d.%d: make PYTHON=python3.11" % sys.version_info[:2])'

setup: .venv/installed

# The hashes of requirements.lock hold for PyPI, this Python and this machine; another index may have other files.
PUBLIC_INDEX = ! $(BIN)/python -m pip config list | grep -E 'index-url|no-index|find-links' >/dev/null
LOCKED_PYTHON = $(BIN)/python -c 'import platform, sys; sys.exit((*sys.version_info[:2], platform.machine()) != (3, 11, "x86_64"))'

# Compiles on all cores, where pip uses a single core. A third of the files is left out, since no code here imports them:
# other packages' tests, and parts of large packages. Errors are ignored: some packages bring files for other Pythons.
COMPILE = { $(BIN)/python -m compileall -qq -j 0 -x '/(tests?|plotly|databricks|mypyc?|fontTools)/' .venv/lib || true; }

# A set-up that broke off leaves no stamp, so the next run repeats it.
.venv/installed: pyproject.toml constraints.txt
	@$(CHECK_PYTHON)
	@echo "Setting up .venv (a few minutes the first time)"
	$(PYTHON) -m venv .venv
	@if $(PUBLIC_INDEX) && $(LOCKED_PYTHON); then echo "With hashes, but for torch"; \
		$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile --require-hashes --no-deps -r requirements.lock; fi
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt -e '.[dev]'
	@$(COMPILE)
	@touch $@

# Run it after a change of pyproject.toml or constraints.txt, with an index that has PyPI's own files, for PyPI's hashes.
lock:
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --dry-run --ignore-installed --report - \
		-c constraints.txt '.[dev]' | $(BIN)/python docs/write_lock.py

# The GPU's packages and the CPU's exclude each other, so they have an environment each.
setup-gpu: .venv-gpu/installed

.venv-gpu/installed: pyproject.toml constraints-gpu.txt
	@echo "Setting up .venv-gpu (several gigabytes the first time)"
	$(PYTHON) -m venv .venv-gpu
	.venv-gpu/bin/python -m pip install --quiet --disable-pip-version-check -c constraints-gpu.txt -e '.[gpu,tensorrt,train,client]'
	@touch $@

# Tests rewritten files in optimum and sentence-transformers, which need transformers 4 and so their own environment.
test-clients: .venv-clients/installed
	.venv-clients/bin/python -m pytest tests/export/compiler/test_clients.py

.venv-clients/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv-clients
	grep -vE '^(transformers|huggingface_hub|tokenizers)=' constraints.txt > .venv-clients/constraints.txt
	.venv-clients/bin/python -m pip install --quiet --disable-pip-version-check -c .venv-clients/constraints.txt \
		-e '.[base,clients]' hypothesis pytest pytest-timeout
	@touch $@

# The demonstration needs no development tools: a newcomer waits for less than half of the packages.
.venv/demo: pyproject.toml constraints.txt
	@$(CHECK_PYTHON)
	@[ -e .venv/installed ] || { echo "Setting up .venv (a few minutes the first time)"; $(PYTHON) -m venv .venv && \
		$(BIN)/python -m pip install --disable-pip-version-check --no-compile -c constraints.txt \
		-e '.[base,serve,client]' && $(COMPILE); }
	@touch $@

# With a GPU and its environment the demo runs there.
demo: .venv/demo
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

# A single PyTorch thread per worker, since threads that share a core wait for one another. Bytecode is written even if
# the environment forbids it, since the tests start hundreds of interpreters.
PYTEST := PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 python -m pytest --dist loadfile --no-loadscope-reorder

# Types are checked while the tests run: on two cores this is faster than in sequence.
test: style perf_analyzer bindings
	@$(MAKE) --no-print-directory --jobs=2 all-tests types

# Three workers on two cores, since a worker waits for servers a fifth of its time. Failed tests (exit code 1) run once
# more in a new process: on a shared machine a server or a browser can miss its time limit.
all-tests: setup
	$(PYTEST) -n 3 || { [ $$? = 1 ] && echo "Failed tests once more" && $(PYTEST) --last-failed --last-failed-no-failures none; }

# The quick tests: no server, no trained network, no export, and no test that takes over a second.
check: style
	python benchmarks/report.py build --check
	@$(MAKE) --no-print-directory --jobs=2 quick-tests types

quick-tests: setup
	$(PYTEST) -n 3 -q -m "not slow and not live"

# The tables of all pages, and their pictures, from the committed results.
RESULTS := benchmarks/results
NEW := $(RESULTS).new

report: setup
	python benchmarks/report.py build

# Measures every result that the pages read into a new folder, whose files then replace the old files. It leaves out
# norms.json, which needs a study's networks, and decoders.json and packed.json, which need the extra `foreign` and minutes
# to build their networks. SECONDS_x is the time of a command on two idle cores, 56 minutes in all; slower cores took 91.
# After an interruption the next run measures only the missing files.
MEASURED := latency latency-5000 sweep rewrites frontier garments operators-vitbn operators-vitbn-tiny accuracy conditions brought engines \
	added foreign faults soak proxy bulk throughput rates

benchmarks: setup perf_analyzer $(NEW)/steady.json
	$(MAKE) --no-print-directory $(MEASURED:%=$(NEW)/%.json)
	mv $(NEW)/*.json $(RESULTS) && rmdir $(NEW)
	$(MAKE) report

# An unsteady machine stops the measurement with the reason, unless ANYWAY=1; every result says whether the machine was steady.
$(NEW)/steady.json: .venv/installed
	@mkdir -p $(NEW)
	python benchmarks/steady.py $(if $(ANYWAY),--anyway) --json $@.part && mv $@.part $@

$(NEW)/foreign.json: .venv/foreign

.venv/foreign: .venv/installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[foreign]'
	@touch $@

# The file of an interrupted command stays a .part, which counts as missing.
$(NEW)/%.json:
	@mkdir -p $(NEW)
	@all=0; for each in $(foreach name,$(MEASURED),$(name):$(SECONDS_$(name))); do \
		[ $${each%:*} = $* ] && done=$$all; all=$$((all + $${each#*:})); done; \
		echo "[minute $$((done / 60)) of $$((all / 60))] $*"
	python benchmarks/$(call command,$*) --json $(NEW)/$*.part && mv $(NEW)/$*.part $@

command = $(COMMAND_$(1))
COMMAND_latency := latency.py --batch 1 --batch 64 --seconds 240 --runtime all \
	$(foreach kind,fp32 bf16 int8,--precision $(kind))
SECONDS_latency := 370
COMMAND_latency-5000 := latency.py --batch 5000
SECONDS_latency-5000 := 190
COMMAND_sweep := latency.py --preset sweep --seconds 240
SECONDS_sweep := 170
COMMAND_rewrites := latency.py --preset rewrites
SECONDS_rewrites := 670
COMMAND_frontier := latency.py --preset frontier
SECONDS_frontier := 105
COMMAND_garments := latency.py --preset frontier --dataset fashion-mnist
SECONDS_garments := 80
COMMAND_operators-vitbn := latency.py --preset operators --model vitbn
SECONDS_operators-vitbn := 55
COMMAND_operators-vitbn-tiny := latency.py --preset operators --model vitbn-tiny
SECONDS_operators-vitbn-tiny := 60
COMMAND_accuracy := accuracy.py
SECONDS_accuracy := 120
COMMAND_conditions := accuracy.py --conditions
SECONDS_conditions := 60
COMMAND_brought := accuracy.py --brought
SECONDS_brought := 150
COMMAND_engines := latency.py --preset engines
SECONDS_engines := 40
COMMAND_added := throughput.py --preset added
SECONDS_added := 190
COMMAND_foreign := foreign.py
SECONDS_foreign := 290
COMMAND_faults := faults.py
SECONDS_faults := 240
COMMAND_soak := faults.py --hours 0.05
SECONDS_soak := 190
COMMAND_proxy := throughput.py --preset proxy
SECONDS_proxy := 95
COMMAND_bulk := throughput.py --preset bulk
SECONDS_bulk := 110
COMMAND_throughput := throughput.py --model vitbn --model vitbn-tiny --model cnn --in-flight 1 --in-flight 8
SECONDS_throughput := 300
COMMAND_rates := throughput.py --preset rates
SECONDS_rates := 35

# All measurements on a GPU, in the GPU's environment. DRY_RUN=1 needs no GPU: it prints the commands and rehearses each
# on a stub device, in the environment of the CPU.
benchmarks-gpu: $(if $(DRY_RUN),setup,setup-gpu) perf_analyzer
ifdef DRY_RUN
	python tests/gpu/gpu_dry_run.py
else
	PATH="$(CURDIR)/.venv-gpu/bin:$$PATH" python benchmarks/latency.py --preset gpu
endif

clean:
	rm -rf .venv .venv-gpu .venv-clients .perf_analyzer .tensorrt checkpoints *.egg-info
