# `make` alone lists the targets. Each sets up what it needs: .venv with requirements.txt, the compiled libraries.
#
# PYTHON=...  an interpreter that has torch, used as it is: nothing is fetched or installed
# TESTS=...   what `make test` runs, with pytest's options: make test TESTS="tests/test_operators.py -k strides"
# Settings of the build (USE_CUDA, DEBUG, EXTENSION_CPP_ABI, ...): see setup.py.

ifdef PYTHON
GIVEN_PYTHON := $(PYTHON)
# Absolute: some recipes run in another folder. An interpreter without torch stops here, before anything is built.
override PYTHON := $(shell python=$$(command -v "$(subst ~/,$(HOME)/,$(PYTHON))") && \
  cd "$$(dirname "$$python")" && echo "$$PWD/$$(basename "$$python")")
ENVIRONMENT := .check-python
else
PYTHON := $(CURDIR)/.venv/bin/python
ENVIRONMENT := .venv/ready
endif

# Python that creates .venv.
BASE_PYTHON ?= python3
TESTS ?= tests
# Test processes: with pytest-xdist as many as there are processors, up to 8; without it, this one.
JOBS = $(shell "$(PYTHON)" -c "import xdist, os; print('-n', min(8, len(os.sched_getaffinity(0))))" 2>/dev/null)
# Tests of minutes: a process that is done takes some from another. (Not others: a module whose tests are taken back is
# set up twice, and some load a library, which a process can do once.)
STEAL = $(shell "$(PYTHON)" -c "from xdist.scheduler import WorkStealingScheduling; print('--dist worksteal')" 2>/dev/null)
# Beside the interpreter, else on PATH.
CLANG_FORMAT = PATH="$$(dirname "$(PYTHON)"):$$PATH" clang-format
# Not asked of git, which an unpacked source distribution has none of.
CXX_SOURCES = $(shell find . \( -name '.?*' -o -name build \) -prune -o -name '*.h' -print -o -name '*.cpp' -print \
  -o -name '*.cu' -print -o -name '*.cuh' -print)

# The package is used from the source tree; tests, examples and benchmarks find it whichever folder they run in.
export PYTHONPATH := $(CURDIR)$(if $(PYTHONPATH),:$(PYTHONPATH))

.PHONY: help demo check test test-all test-slow test-aten sanitize sanitize-cuda bench build wheel check-cuda new-op lint format clean \
  .check-python .check-sanitizer

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-13s %s\n", $$1, $$2}' Makefile

demo: build ## fused_op on real input: results, gradients, compiled, trained with, and its speed
	"$(PYTHON)" examples/quickstart.py

check: $(ENVIRONMENT) ## build what changed, then check one operator and time it: OP=name OPTIONS=--quick
	@"$(PYTHON)" -m extension_cpp.testing "$$OP" $(OPTIONS)

CUDA_TARGETS = --ir

test: build ## the test suite, CUDA tests too where there is a GPU
	"$(PYTHON)" setup.py check_cuda --optional $(CUDA_TARGETS)
	"$(PYTHON)" -m pytest -q $(JOBS) -m "not slow" $(TESTS)

test-all: export EVERY_BUILT = 1
test-all: CUDA_TARGETS =
test-all: BATTERY_MARKS =
test-all: test test-slow test-aten sanitize ## everything: also wheels, the aten build, sanitizers

test-slow: build
	"$(PYTHON)" -m pytest -q $(JOBS) $(STEAL) -m slow $(TESTS)

# The battery over another build, which lies in a folder of its own: the libraries in the source
# tree stay as they are.
BATTERY = "$(PYTHON)" -m pytest -q $(JOBS) -m "$(BATTERY_MARKS)" -c "$(CURDIR)/pyproject.toml" \
  --rootdir "$(CURDIR)" "$(CURDIR)/tests/test_operators.py"

# `test-all` asks slow checks, too: what others repeat.
BATTERY_MARKS = not slow

# Those of what the two builds may differ in. .ci/run leaves some out.
ATEN_CHECKS ?= forward or backward or layouts or strides or bad_inputs or signature or opcheck

test-aten: $(ENVIRONMENT) ## the correctness checks over the aten build
	EXTENSION_CPP_ABI=aten "$(PYTHON)" setup.py build --build-lib build/aten
	cd build/aten && PYTHONPATH="$(CURDIR)/build/aten" $(BATTERY) -k "$(ATEN_CHECKS)"

# The runtime of AddressSanitizer has to come first in the process, and libstdc++ with it, in which
# it looks up __cxa_throw as it starts. Leaks are not looked for: Python and torch never free all.
sanitize: $(ENVIRONMENT) ## the correctness checks under AddressSanitizer and UBSan, on CPU
	SANITIZE=1 USE_CUDA=0 "$(PYTHON)" setup.py build --build-lib build/sanitize
	cd build/sanitize && PYTHONPATH="$(CURDIR)/build/sanitize" ASAN_OPTIONS=detect_leaks=0 \
	  LD_PRELOAD="$$(c++ -print-file-name=libasan.so) $$(c++ -print-file-name=libstdc++.so)" \
	  $(BATTERY) -k "forward or backward or layouts or bad_inputs"

# Memory out of bounds; the same with an allocation for each tensor; races in shared memory.
sanitize-cuda: .check-sanitizer build ## calls of all operators, or of OP=name, under compute-sanitizer; needs a GPU
	compute-sanitizer --error-exitcode 1 "$(PYTHON)" tests/sanitize_cuda.py $(OP)
	compute-sanitizer --error-exitcode 1 "$(PYTHON)" tests/sanitize_cuda.py --exact $(OP)
	compute-sanitizer --error-exitcode 1 --tool racecheck "$(PYTHON)" tests/sanitize_cuda.py $(OP)

# Before all is built.
.check-sanitizer: $(ENVIRONMENT)
	@command -v compute-sanitizer > /dev/null || { echo "There is no compute-sanitizer on PATH: \
	it is in the bin folder of a CUDA toolkit"; exit 1; }
	@"$(PYTHON)" -c "import torch; torch.cuda.is_available() or exit('There is no GPU')"

bench: build ## time operators against PyTorch and others: OPERATORS="..." OPTIONS="..." (benchmarks/README.md)
	"$(PYTHON)" benchmarks/run.py $(OPERATORS) $(OPTIONS)

build: $(ENVIRONMENT) ## compile the libraries in place, what changed alone
	"$(PYTHON)" setup.py build_ext --inplace

wheel: $(ENVIRONMENT) ## a wheel in dist/
	"$(PYTHON)" -m pip wheel --no-build-isolation --no-deps --wheel-dir dist .

check-cuda: $(ENVIRONMENT) ## compile the CUDA sources for two architectures; needs nvcc, no GPU
	"$(PYTHON)" setup.py check_cuda

new-op: $(ENVIRONMENT) ## an operator from FROM=file.py:function or SCHEMA="name(Tensor x, ...) -> Tensor" (templates/README.md)
	@"$(PYTHON)" templates/new_op.py "$$SCHEMA" $(if $(FROM),--from "$(FROM)") $(OPTIONS)

lint: $(ENVIRONMENT) ## the form of all sources, and types
	"$(PYTHON)" -m ruff check .
	"$(PYTHON)" -m ruff format --check .
	"$(PYTHON)" -m mypy
	$(CLANG_FORMAT) --dry-run --Werror $(CXX_SOURCES)

format: $(ENVIRONMENT) ## bring all sources into form
	"$(PYTHON)" -m ruff check --fix-only .
	"$(PYTHON)" -m ruff format .
	$(CLANG_FORMAT) -i $(CXX_SOURCES)

clean: ## remove what builds and tests made; .venv stays
	rm -rf build dist *.egg-info extension_cpp/*.so extension_cpp/_build_info.json compile_commands.json
	rm -rf .cache .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -not -path './.venv/*' -prune -exec rm -rf {} +

.venv/ready: requirements.txt
	@$(BASE_PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
	  { echo "make: Python 3.10 or newer is needed: set BASE_PYTHON=..., or PYTHON=... to one that has torch"; exit 1; }
	$(BASE_PYTHON) -m venv .venv || \
	  { echo "make: no virtual environment could be made (Debian, Ubuntu: apt install python3-venv)"; exit 1; }
	.venv/bin/python -m pip install --progress-bar on -r requirements.txt
	@touch $@

.check-python:
	@[ -n "$(PYTHON)" ] || { echo "make: PYTHON=$(GIVEN_PYTHON): no such command"; exit 1; }
	@"$(PYTHON)" -c 'import sys, importlib.util as i; sys.exit(i.find_spec("torch") is None)' || \
	  { echo "make: $(PYTHON) has no torch; leave PYTHON out to use .venv"; exit 1; }
