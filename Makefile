# Every target lists itself: the text after ## is its help.
.DEFAULT_GOAL := help
PYTHON := .venv/bin/python
WORKERS ?= 2
ARGS ?=

.PHONY: test-launchers test-slurm test-skypilot tutorials exec-server images help setup demo test test-full test-speed test-clients test-cheats test-agents check golden docs pins clean cluster cluster-needs cluster-down test-cluster cluster-run bench-sandbox bench-proxy bench-rollout proxy-nightly proxy-mutants

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: ## Make .venv (Python 3.12 and all packages); quick when nothing changed
	@scripts/setup.sh

demo: setup ## Train the tiny policy on this machine, start to report (ARGS="train.steps=4" changes settings)
	@$(PYTHON) workflows/submit.py local --profile demo $(ARGS)

test: setup ## Run the tests without a network (ARGS="-k proxy" picks some, WORKERS=8 on a larger machine)
	@$(PYTHON) -m pytest -n $(WORKERS) --dist worksteal $(ARGS)

test-full: setup ## Run the tests, the short demo end to end, and all tests on the cluster
	@$(PYTHON) -m pytest -n $(WORKERS) --dist worksteal $(ARGS)
	@$(PYTHON) -m pytest -m speed $(ARGS)
	@$(PYTHON) -m pytest -m e2e $(ARGS)
	@$(MAKE) test-cluster

test-speed: setup ## Hold the costs of calls and rollouts to their bounds (quiet machine, 2 minutes)
	@$(PYTHON) -m pytest -m speed $(ARGS)

cluster: cluster-needs setup ## Bring up a real Kubernetes control plane for tests (root; built the first time, 20 minutes)
	@$(PYTHON) -m testbed up

cluster-needs: ## Say what of this machine the cluster needs and lacks
	@scripts/cluster_needs.sh

cluster-down: ## End it and leave nothing
	@$(PYTHON) -m testbed down

bench-sandbox: cluster ## Measure sandboxes on it beside other clients; writes docs/results/sandbox.json (quiet machine, 20 minutes; ARGS="--parts exec" or "--missing" for some)
	@$(PYTHON) -m testbed run $(PYTHON) -m benchmarks.sandbox $(ARGS)

bench-proxy: setup ## Measure the proxy beside rllm-model-gateway; writes docs/results/proxy.json (quiet machine; ARGS=--quick: 1 minute)
	@$(PYTHON) -m benchmarks.proxy $(if $(ARGS),$(ARGS),--output docs/results/proxy.json)

bench-rollout: setup ## Measure rollouts beside bare Harbor; writes docs/results/rollout.json (quiet machine; ARGS=--quick: 1 minute)
	@$(PYTHON) -m benchmarks.rollout $(if $(ARGS),$(ARGS),--output docs/results/rollout.json)

proxy-nightly: setup ## Drive the proxy against its oracle by 10,000 random lives (EXAMPLES=500 for less; 20 minutes)
	@PROXY_EXAMPLES=$(or $(EXAMPLES),10000) $(PYTHON) -m pytest -n $(WORKERS) --dist worksteal tests/agentic/proxy/proof/test_proxy_machine.py $(ARGS)

proxy-mutants: setup ## Break each invariant of the proxy on purpose and see its test fail (3 minutes)
	@$(PYTHON) -m scripts.proxy_mutants

test-cluster: cluster ## Run the tests that need it (ARGS="-k exec" picks some)
	@$(PYTHON) -m testbed run $(PYTHON) -m pytest -m cluster $(ARGS)

cluster-run: cluster ## Run the whole workflow as pods, with faults; writes docs/results/cluster-run.txt
	@CLUSTER_RUN_TRANSCRIPT=docs/results/cluster-run.txt $(PYTHON) -m testbed run $(PYTHON) -m pytest -m cluster -v tests/cluster/test_pipeline_run.py $(ARGS)

test-clients: setup ## Run the real agents (Codex, Claude Code, opencode, ...) through the proxy, on a script and on vLLM
	@$(PYTHON) -m agentic.rollout.agents install >/dev/null
	@$(PYTHON) -m pytest -m 'not e2e' tests/clients $(ARGS)

test-agents: setup ## Run the real agents by their names, in trials in real sandboxes, on a script (10 minutes with the installs)
	@$(PYTHON) -m agentic.rollout.agents install >/dev/null
	@$(PYTHON) -m pytest -m 'not e2e' tests/agents $(ARGS)

test-cheats: setup ## Try to earn rewards without solving tasks, 75 ways, with a control for each (10 minutes)
	@$(PYTHON) -m pytest -m '' tests/cheats $(ARGS)

tutorials: setup ## Run each tutorial, shortened, and hold what it shows against what happens (ARGS="-k tools" picks some)
	@$(PYTHON) -m pytest -m 'not gpu' tests/tutorials $(ARGS)

test-launchers: setup ## The quick part of the next two: jobs on a real Slurm, tasks in SkyPilot's loader (root; 3 minutes)
	@scripts/slurm_needs.sh
	@scripts/skypilot_env.sh
	@$(PYTHON) -m pytest -m 'slurm or skypilot' -n $(WORKERS) --dist worksteal tests/slurm/test_slurm_jobs.py tests/workflows/targets/test_skypilot_loader.py $(ARGS)

test-slurm: setup ## Run jobs on a real Slurm of two nodes on this machine: requeue, preemption, training on both (root; 20 minutes)
	@scripts/slurm_needs.sh
	@$(PYTHON) -m pytest -m slurm tests/slurm $(ARGS)

test-skypilot: setup ## Have SkyPilot read our tasks, and run one on two local Ray nodes (5 minutes with the install)
	@scripts/skypilot_env.sh
	@$(PYTHON) -m pytest -m skypilot tests/workflows/targets $(ARGS)

check: setup ## Check format, lint, types, import rules and length bounds
	@$(PYTHON) -m ruff format --check .
	@$(PYTHON) -m ruff check .
	@$(PYTHON) -m mypy
	@$(PYTHON) -m pytest -q tests/test_rooms.py

images: setup ## Build and push our own images (ARGS="steps trainer --registry registry.example/team --buildkit tcp://127.0.0.1:1234")
	@$(PYTHON) -m agentic.images build $(ARGS)

exec-server: ## Build the exec server of sandboxes, one static binary, into build/
	@cd images/exec-server && CGO_ENABLED=0 GOFLAGS= go build -trimpath -ldflags "-s -w" -o ../../build/exec-server .

golden: setup ## Rewrite the golden files from today's output; read the diff before committing it
	@$(PYTHON) -m pytest -q --write-golden tests

docs: setup ## Rewrite the documents that the code generates
	@$(PYTHON) -m scripts.settings_reference >docs/settings.md.new && mv docs/settings.md.new docs/settings.md
	@$(PYTHON) -m scripts.troubles_reference >docs/troubles.md.new && mv docs/troubles.md.new docs/troubles.md

pins: setup ## Resolve constraints/cpu.txt and constraints/gpu.txt anew
	@scripts/pin.sh

clean: ## Remove .venv, caches and build leftovers; keeps workspace/
	rm -rf .venv .bootstrap build .pytest_cache .mypy_cache .ruff_cache .hypothesis *.egg-info packaging/*/build packaging/*/*.egg-info
	find . -name __pycache__ -not -path './workspace/*' -type d -prune -exec rm -rf {} +
