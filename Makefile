# Everything a developer runs. `make` lists the targets; each sets up what it needs, once.
.DEFAULT_GOAL := help
SHELL := /bin/bash
PIP = .venv/bin/python -m pip install --quiet --disable-pip-version-check
CODE = hotfuse tests benchmarks
# As pip does for a package that it copies: without it every start compiles the sources where Python may not write bytecode.
BYTECODE = .venv/bin/python -m compileall -q hotfuse

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: .venv/core.stamp ## run a small real model end to end, with a view of what happens
	@.venv/bin/hotfuse demo

test: lint typecheck ## lint, types, and every test that is not long (minutes)
	.venv/bin/python -m pytest -m "not long" $(ARGS)

test-all: lint typecheck ## the long tests too
	.venv/bin/python -m pytest $(ARGS)

test-pythons: ## the smoke test on every other supported Python present
	@own=$$(.venv/bin/python -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null); \
	scripts/pythons | while read -r python; do \
	  version=$$($$python -c 'import sys; print("%d.%d" % sys.version_info[:2])'); \
	  if [ "$$version" = "$$own" ]; then continue; fi; \
	  echo "Python $$version ($$python)"; \
	  [ -x .venv-$$version/bin/python ] || $$python -m venv .venv-$$version || exit 1; \
	  .venv-$$version/bin/python -m pip install --quiet --disable-pip-version-check -e . pytest pytest-timeout || exit 1; \
	  .venv-$$version/bin/python -m pytest tests/test_smoke.py || exit 1; \
	done

conformance: .venv/dev.stamp ## the public suites of onnx and torch, with the least that must pass (many minutes)
	.venv/bin/hotfuse conformance onnx --expect 2018
	.venv/bin/hotfuse conformance onnx --core --without-reference --expect 1350
	.venv/bin/hotfuse conformance opinfo --none-wrong

lint: .venv/dev.stamp ## ruff: rules and formatting
	.venv/bin/ruff check $(CODE)
	.venv/bin/ruff format --check $(CODE)

format: .venv/dev.stamp ## let ruff mend what it can
	.venv/bin/ruff check --fix $(CODE)
	.venv/bin/ruff format $(CODE)

typecheck: .venv/dev.stamp ## mypy, strict
	.venv/bin/mypy

setup: .venv/dev.stamp ## only install everything into .venv

clean: ## remove the environments and caches that these targets made
	rm -rf .venv .venv-3.* .mypy_cache .ruff_cache .pytest_cache .hypothesis *.egg-info

.venv/bin/python:
	@python=$$(scripts/pythons | head -n 1); \
	if [ -z "$$python" ]; then echo "No Python 3.11, 3.12 or 3.13 with venv was found; install one and run make again." >&2; exit 1; fi; \
	echo "Making .venv with $$python"; $$python -m venv .venv

.venv/core.stamp: pyproject.toml | .venv/bin/python
	@echo "Installing hotfuse into .venv"
	@$(PIP) -e .
	@$(BYTECODE)
	@touch $@

# torch comes first and by its exact version: what depends on it would otherwise pull in another one.
.venv/dev.stamp: pyproject.toml | .venv/bin/python
	@echo "Installing torch and the development tools into .venv"
	@$(PIP) torch==2.13.0
	@$(PIP) -e '.[dev]'
	@$(BYTECODE)
	@touch .venv/core.stamp $@

.PHONY: help demo test test-all test-pythons conformance lint format typecheck setup clean
