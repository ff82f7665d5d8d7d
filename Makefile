# Everything runs in .venv, which the first target that needs it makes from the hashed requirement files.
# Needs: Python >= 3.10 with venv and pip, and make.

PYTHON ?= python3
JOBS ?= 2

VENV := .venv
BIN := $(VENV)/bin
RUN_STAMP := $(VENV)/run.stamp
DEV_STAMP := $(VENV)/dev.stamp
TORCH_STAMP := $(VENV)/torch.stamp

INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check
COMPILE := $(BIN)/python -m uv pip compile --universal --python-version 3.10 --generate-hashes --upgrade --quiet \
	--no-emit-index-url --no-emit-find-links --custom-compile-command "make requirements"

TARGET_REQUIREMENTS := onnx_cfad/targets/requirements

DEMO_MODEL := models/gnmt_v2.onnx
DEMO_GRADIENT := build/demo/gnmt_v2.grad.onnx

.DEFAULT_GOAL := help
.PHONY: help demo test test-quick test-targets targets targets-table conformance lint format torch requirements clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' Makefile

demo: $(RUN_STAMP)  ## differentiate a real model, print its plan and report, check the result against ONNX Runtime
	@mkdir -p $(dir $(DEMO_GRADIENT))
	$(BIN)/onnx-cfad inspect $(DEMO_MODEL)
	$(BIN)/onnx-cfad transform $(DEMO_MODEL) -o $(DEMO_GRADIENT)
	$(BIN)/onnx-cfad validate $(DEMO_MODEL) $(DEMO_GRADIENT)

test: lint  ## lint, check the types and run every test
	$(BIN)/python -m pytest -n $(JOBS)

test-quick: $(DEV_STAMP)  ## run the tests that are neither slow nor need a download
	$(BIN)/python -m pytest -n $(JOBS) -m "not slow and not download"

targets: $(RUN_STAMP)  ## install both builds of TVM, as a user would, for `onnx-cfad compile` and its tests
	$(BIN)/onnx-cfad targets install relay relax
	$(BIN)/onnx-cfad targets check relay relax

test-targets: $(DEV_STAMP) targets  ## run the tests that need TVM
	$(BIN)/python -m pytest -n $(JOBS) -m "relay or relax"

targets-table: $(DEV_STAMP) targets  ## compile the corpus with both builds of TVM and write docs/targets-table.md (an hour)
	@mkdir -p build
	$(BIN)/python -m tests.targets build/targets.jsonl --form host --page docs/targets-table.md

conformance: $(DEV_STAMP)  ## judge every model of onnx's own test suite and write docs/conformance.md (some minutes)
	$(BIN)/python -m tests.conformance

lint: $(DEV_STAMP)  ## ruff (lint and format) and strict type checking
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/basedpyright

format: $(DEV_STAMP)  ## format the code and fix what ruff can fix
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

torch: $(TORCH_STAMP)  ## add PyTorch to the environment, for the tests and export scripts that use it

requirements: $(RUN_STAMP)  ## resolve the hashed requirement files anew
	$(INSTALL) uv
	$(COMPILE) requirements/build.in -o requirements/build.txt
	$(COMPILE) pyproject.toml -o requirements/run.txt
	$(COMPILE) pyproject.toml --extra dev -o requirements/dev.txt
	$(COMPILE) $(TARGET_REQUIREMENTS)/relay.in -o $(TARGET_REQUIREMENTS)/relay.txt
	$(COMPILE) $(TARGET_REQUIREMENTS)/relax.in -o $(TARGET_REQUIREMENTS)/relax.txt

clean:  ## remove the environment and everything that was built
	rm -rf $(VENV) build dist .pytest_cache .ruff_cache .hypothesis

$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 10) else "onnx-cfad needs Python 3.10 or newer")'
	$(PYTHON) -m venv $(VENV)

$(RUN_STAMP): requirements/build.txt requirements/run.txt pyproject.toml | $(BIN)/python
	$(INSTALL) --require-hashes -r requirements/build.txt
	$(INSTALL) --require-hashes -r requirements/run.txt
	$(INSTALL) --no-deps --no-build-isolation --editable .
	@touch $@

$(DEV_STAMP): requirements/dev.txt $(RUN_STAMP)
	$(INSTALL) --require-hashes -r requirements/dev.txt
	@touch $@

$(TORCH_STAMP): requirements/torch.txt $(DEV_STAMP)
	$(INSTALL) -r requirements/torch.txt
	@touch $@
