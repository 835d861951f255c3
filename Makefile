# The two commands: make run shows what govs does, make test checks all of it.
# Everything they need that Debian 12's archive has, they install (as root).

GO ?= go
OUT := out
COMMAND := $(OUT)/bin/govs-verbs-test

PREFIX ?= /usr/local

.PHONY: help run test check build install unit lint bench bench-vm bench-victim clean

help: ## Say what there is to make.
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

run: ## Run the conformance suite: Go engine and Linux siw, all pairings; report in out/report.
	@GO='$(GO)' ci/suite

test: ## Run every test of the project, those in the guest included (about 25 minutes on two CPUs).
	@GO='$(GO)' ci/test

check: ## Run the quick tests, without a guest, between edits (3 minutes).
	@GO='$(GO)' ci/check

build: ## Build the command, as out/bin/govs-verbs-test.
	@GO='$(GO)' ci/build $(COMMAND)

install: build ## Install the command and the libraries of exec below PREFIX (default /usr/local).
	install -D -t $(DESTDIR)$(PREFIX)/bin $(COMMAND)
	install -D -m 644 -t $(DESTDIR)$(PREFIX)/lib/govs $(OUT)/lib/govs/*.so

unit: ## Run the tests that need neither root nor a guest, under the race detector.
	NO_GUEST=1 $(GO) test -race $$(ci/build --tags) ./...

lint: ## Run golangci-lint with the project's walls between packages.
	@GO='$(GO)' ci/lint

bench: ## Measure the engine beside raw TCP, UCX and libfabric (20 minutes); results in docs/benchmarks.
	@GO='$(GO)' ci/bench/run host

bench-vm: ## Measure the engine beside siw in the guest (10 minutes); results in docs/benchmarks.
	@GO='$(GO)' ci/bench/run guest

bench-victim: ## Measure one connection beside hostile peers (10 minutes); results in docs/benchmarks.
	@GO='$(GO)' ci/bench/run victim

clean: ## Remove what was built here; downloads and kernels stay in the cache (ci/vm/README.md).
	rm -rf $(OUT)
