# Everything starts here; `make help` lists the targets. Needs Python >= 3.11, make and git.
# Variables: PRESET, SEEDS, STORE (book), ARGS (test), UPGRADE (lock), PYTHON (which interpreter).

.DEFAULT_GOAL := help
.PHONY: help book test bench lint notebooks lock clean broken

PRESET ?= classroom
VENV := .venv
BIN := $(VENV)/bin

# The venv is made anew or completed whenever the lock, pyproject.toml or the place of the checkout
# changes. Contents count, not dates, so that a cached venv or another branch is recognised.
KEY := $(shell { pwd; cat requirements.lock pyproject.toml; } | cksum | cut -d' ' -f1)
READY := $(VENV)/.installed-$(KEY)

WORKS := $(shell $(BIN)/python -c 'print("yes")' 2>/dev/null)

# Notebooks must start this venv's interpreter, not one that the user registered with Jupyter.
export JUPYTER_PREFER_ENV_PATH := 1
export PATH := $(CURDIR)/$(BIN):$(PATH)
unexport JUPYTER_PATH PYTHONPATH PYTHONHOME
export PIP_DISABLE_PIP_VERSION_CHECK := 1

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-10s %s\n", $$1, $$2 }' Makefile

book: $(READY) ## build the book: [PRESET=classroom] [SEEDS=n] [STORE=folder]
	@$(BIN)/python -m sptlib run all --preset "$(PRESET)" $(if $(SEEDS),--seeds "$(SEEDS)") \
		$(if $(STORE),--store "$(STORE)") --if-changed
	@# Sphinx reports a page's warnings only when it reads the page: unless the last build passed,
	@# forget what it has read, or the same fault would pass the second time
	@[ -e _build/.passed ] || rm -rf _build/.doctrees; rm -f _build/.passed
	@$(BIN)/jupyter-book build . -W -n --keep-going
	@touch _build/.passed
	@echo "The book ($(PRESET) preset) is file://$(CURDIR)/_build/html/index.html"

test: $(READY) ## run the tests with the coverage bar; ARGS="--no-cov -k store" for some of them
	@$(BIN)/python -m pytest -n auto --cov --cov-report=term $(ARGS)

bench: $(READY) ## run the benchmarks
	@set -e; for file in bench/*.py; do \
		if [ -f "$$file" ]; then echo "== $$file"; $(BIN)/python "$$file"; \
		else echo "there are no benchmarks yet"; fi; \
	done

lint: $(READY) ## check the code's style
	@$(BIN)/python -m ruff check .

notebooks: $(READY) ## bring notebooks/*.ipynb and their .md twins in step
	@set -e; for file in notebooks/*.md; do \
		if [ -f "$$file" ]; then $(BIN)/python -m jupytext --sync "$$file"; fi; \
	done

# The header and the pins with a marker (for other platforms) are kept from the present lock. What
# torch brings along for an accelerator is left to torch, which pins it itself.
lock: $(READY) ## write requirements.lock from the venv; UPGRADE=1 takes the newest versions first
	@$(BIN)/python -m pip install --no-build-isolation -e '.[book,llm,cluster,test]' \
		$(if $(UPGRADE),--upgrade --upgrade-strategy eager)
	@$(BIN)/python -m pip freeze --all --exclude-editable --exclude pip \
		> $(VENV)/freeze.txt
	@{ sed -n '/^#/p' requirements.lock; \
		{ grep ';' requirements.lock || true; \
		  sed -E -e '/^(#|nvidia-|cuda-|triton==)/d' -e 's/\+[^ ;]*//' $(VENV)/freeze.txt; } \
		| LC_ALL=C sort -f -s -u -t= -k1,1; } > $(VENV)/requirements.lock
	@mv $(VENV)/requirements.lock requirements.lock
	@$(BIN)/python -m pip check

clean: ## remove the built book and caches; keeps the run store and the venv
	rm -rf _build results/notebooks build sptlib.egg-info .pytest_cache .ruff_cache .hypothesis
	rm -rf htmlcov .coverage .coverage.*
	find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +

# A venv of another place or without a working interpreter is replaced.
$(READY): $(if $(WORKS),,broken)
	@python=; for name in $(or $(PYTHON),python3 python3.14 python3.13 python3.12 python3.11); do \
		if "$$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; \
		then python=$$name; break; fi; \
	done; \
	if [ -z "$$python" ]; then \
		echo "make: no Python >= 3.11 found; install one, or name it: make PYTHON=/path/to/python3" >&2; \
		exit 1; \
	fi; \
	if ! "$$python" -c 'import ensurepip, venv' 2>/dev/null; then \
		echo "make: $$python cannot make virtual environments; on Debian and Ubuntu," \
			"apt install python3-venv mends that" >&2; \
		exit 1; \
	fi; \
	if ! { $(BIN)/python -c '' && grep -qF "$(CURDIR)/$(BIN)/python" $(BIN)/pip; } 2>/dev/null; then \
		echo "making $(VENV) with $$($$python --version)"; \
		"$$python" -m venv --clear $(VENV); \
	fi
	@echo "installing the packages of requirements.lock into $(VENV); this takes minutes the first time"
	@$(BIN)/python -m pip install --quiet -r requirements.lock
	@$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation -e .
	@rm -f $(VENV)/.installed-*
	@touch $@
