# `make` alone lists the targets. Everything runs with Go, Git and a C compiler; `generate` and `check` also need protoc.

GO      ?= go
TOOL    := $(GO) tool -modfile=tools.mod
VERSION := $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
LDFLAGS := -X main.version=$(VERSION)

# How many inputs each fuzz target tries, as an argument of -fuzztime.
FUZZ  ?= 30000x
# The first seed and the number of seeds of a simulation; `make sim SEED=N` plays one with its trace.
FIRST ?= 1
# LMDB, a peer of bench-snapshot, where it is installed (liblmdb-dev).
LMDB = $(shell echo '\#include <lmdb.h>' | cc -E - >/dev/null 2>&1 && echo -llmdb)
SEEDS ?= 100
# What chaos is told, each optional.
CHAOS = $(if $(FAULTS),--faults $(FAULTS)) $(if $(SEED),--seed $(SEED)) $(if $(DURATION),--duration $(DURATION))
# With FAULTS=upgrade, or upgrade among others, all nodes begin with the previous release, which is built from the history.
PREVIOUS = $(if $(findstring upgrade,$(FAULTS)),--previous bin/rhumb-previous)

.DEFAULT_GOAL := help
.PHONY: help build demo test arm64 race e2e check bench bench-kv sidebyside peers peers-jars peers-test bench-snapshot soak sim sim-scale model fuzz generate clean terraform-test helm-test release deb hostctl deploy-test terraform-local terraform-lint provider-test chaos soak-image chaos-availability jepsen-compile

help: ## list the targets
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z0-9-]+):.*## /\1\t/' | sort | awk -F'\t' '{printf "  %-10s %s\n", $$1, $$2}'

build: ## build bin/rhumb
	@mkdir -p bin
	$(GO) build -ldflags '$(LDFLAGS)' -o bin/rhumb ./cmd/rhumb

demo: build ## run three regions of three nodes on this machine (ARGS='--latency none' and the like)
	bin/rhumb demo $(ARGS)

test: ## run all tests
	$(GO) test -timeout 30m ./...

# The emulator does not tell the address of a SIGBUS, which TestGuard wants to see; flipped bits take it minutes.
arm64: ## test what has assembly under emulation (Debian package qemu-user)
	GOARCH=arm64 CGO_ENABLED=0 $(GO) test -short -exec qemu-aarch64 -skip '^(TestGuard|TestFlippedBits)$$' ./snapshot/rtree ./snapshot/reader

race: ## run all tests under the race detector
	$(GO) test -race -timeout 30m ./...

e2e: build ## run the tests with real processes only
	$(GO) test -count=1 -timeout 15m ./cmd/...

check: ## what CI demands beside the tests: vet, staticcheck, gofumpt, tidy modules, generated code clean
	$(GO) vet ./...
	cd bench/peers && $(GO) vet ./...
	cd deploy/terraform/lint && $(GO) vet ./...
	$(TOOL) staticcheck ./...
	@unformatted=$$($(TOOL) gofumpt -l .); test -z "$$unformatted" || { echo "not formatted by gofumpt:"; echo "$$unformatted"; exit 1; }
	$(GO) mod tidy -diff
	@for module in $$(git ls-files '*/go.mod'); do (cd $$(dirname $$module) && $(GO) list -deps ./... >/dev/null) || { echo "$$module lacks what this repository imports by now: run go mod tidy there"; exit 1; }; done
	@$(MAKE) --no-print-directory generate
	@stale=$$(git status --porcelain -- api/rhumbpb); test -z "$$stale" || { echo "generated code differs from api/*.proto, run make generate:"; echo "$$stale"; exit 1; }

generate: ## generate api/rhumbpb from api/*.proto
	api/generate.sh

bench: ## run the micro benchmarks
	$(GO) test -run '^$$' -bench . -benchmem ./...

peers: ## build bin/peers, which runs and drives the peers of the benchmarks
	@mkdir -p bin
	cd bench/peers && $(GO) build -o ../../bin/peers .

# Kafka and Cassandra are taken from Maven Central; the other peers from Go modules and packages of the system.
peers-jars: ## fetch Kafka and Cassandra into bin/jars (Maven)
	mvn -q -B -f bench/peers/kafka.xml dependency:copy-dependencies -DincludeScope=runtime -DoutputDirectory=$(CURDIR)/bin/jars/kafka
	mvn -q -B -f bench/peers/cassandra.xml dependency:copy-dependencies -DincludeScope=runtime -DoutputDirectory=$(CURDIR)/bin/jars/cassandra

peers-test: ## start each peer that this machine has, and run its operations
	cd bench/peers && $(GO) test -count=1 -v .

bench-kv: build peers ## compare Put and Get with embedded etcd in one interleaved run
	bin/rhumb bench kv $(ARGS)

sidebyside: build peers ## measure Rhumb, its peers and the limits of the machine in turn (ARGS='--quick --report DIR')
	bin/rhumb bench sidebyside $(ARGS)

bench-snapshot: build ## compare reads from shared memory with their counterparts (ARGS='--records 40000000 --plots DIR')
	cc -O3 -march=native -o bin/image-worker bench/image/c/worker.c -lm $(LMDB)
	bin/rhumb snapshot bench $(if $(LMDB),,--lmdb=false) $(ARGS)

soak: build ## hold a load through all faults for DURATION (2h) at one SEED, check everything, and judge memory, goroutines, files and data of nodes (root; ARGS)
	$(GO) build -o bin/jepsen-local ./jepsen/chaos
	bin/jepsen-local --binary bin/rhumb --soak --duration $(or $(DURATION),2h) --out bin/soak $(if $(SEED),--seed $(SEED)) $(if $(FAULTS),--faults $(FAULTS)) $(ARGS) || test $$? = 3

soak-image: ## kill publishers and readers of an image for DURATION (24h), checking every view
	$(GO) test -count=1 -timeout 0 -v -run '^TestSoak$$' ./snapshot/faults -soak $(or $(DURATION),24h)

sim: ## simulate clusters: SEED=N plays one seed with its trace, else SEEDS seeds from FIRST
	@mkdir -p bin
	$(GO) test -count=1 -timeout 60m -v -run '^Test(One)?Seeds?$$' ./sim $(if $(SEED),-artifacts -outputdir $(CURDIR)/bin -sim.seed $(SEED),-sim.first $(FIRST) -sim.seeds $(SEEDS))

sim-scale: ## print how messages, metadata and failover grow with nodes and ranges (ARGS='-nodes 3,9 -ranges 64')
	$(GO) run ./sim/sizing $(ARGS)

chaos: build ## do what faults do to a secured cluster on hosts of this machine (root; FAULTS=kill,cut DURATION=5m SEED=7, each optional; ARGS)
	$(GO) build -o bin/jepsen-local ./jepsen/chaos
	$(if $(PREVIOUS),deploy/release/previous.sh bin/rhumb-previous)
	bin/jepsen-local --binary bin/rhumb $(CHAOS) $(PREVIOUS) $(ARGS) || test $$? = 3 # 3: not possible here, as it said

jepsen-compile: ## compile the suite for Jepsen as far as its artifacts can be had (Java 17, Maven, protoc; JEPSEN_CLASSPATH)
	jepsen/suite/compile.sh

chaos-availability: build ## measure the time without service of a key in TRIALS (20) of each fault; stops after DURATION (1h), and continues when run again (root; FAULTS, ARGS)
	$(GO) build -o bin/jepsen-local ./jepsen/chaos
	$(if $(PREVIOUS),deploy/release/previous.sh bin/rhumb-previous)
	bin/jepsen-local --binary bin/rhumb --trials $(or $(TRIALS),20) --duration $(or $(DURATION),1h) --out bin/availability $(if $(FAULTS),--faults $(FAULTS)) $(PREVIOUS) $(ARGS) || test $$? = 3

model: ## check the protocol's model exhaustively within its bounds
	$(GO) run ./sim/modelcheck $(ARGS)

fuzz: ## fuzz every target, FUZZ inputs each
	@set -e; for pkg in $$($(GO) list ./...); do \
		for target in $$($(GO) test -list '^Fuzz' $$pkg | grep '^Fuzz' || true); do \
			echo "$$pkg $$target"; $(GO) test -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZ) $$pkg; \
		done; \
	done

terraform-test: terraform-lint ## test the Terraform modules (Terraform 1.11; no network)
	$(GO) test -count=1 -timeout 15m -v ./deploy/terraform

terraform-lint: ## test the layers of providers with stand-ins for their resources
	cd deploy/terraform/lint && $(GO) test -count=1 -v .

release: ## build what a release contains into bin/release: program, package, bill of materials, checksums (ARGS=--verify builds twice)
	deploy/release/build.sh $(ARGS)

deb: build ## build a Debian package of bin/rhumb into bin/release
	deploy/deb/build.sh bin/rhumb $(VERSION) bin/release

hostctl: ## build bin/hostctl, which brings up hosts on this machine
	@mkdir -p bin
	CGO_ENABLED=0 $(GO) build -o bin/hostctl ./deploy/hostctl

terraform-local: ## bring up, grow and destroy a cluster of hosts on this machine by Terraform, and one node by cloud-init (root)
	$(GO) test -count=1 -timeout 15m -v -run '^Test(Local|CloudInitOnHost)$$' ./deploy/terraform -local

helm-test: ## lint and render the Helm chart, and as root run its containers as processes (compiles for minutes the first time)
	cd deploy/helm && $(GO) vet ./... && $(GO) test -count=1 -v . -local

provider-test: ## test the Terraform provider against a secured cluster of processes (Terraform 1.11; compiles for minutes the first time)
	cd deploy/terraform-provider-rhumb && $(GO) vet ./... && TF_ACC=1 TF_ACC_TERRAFORM_PATH=$$(command -v terraform) $(GO) test -count=1 -timeout 20m -v ./...

deploy-test: ## test what of deploy takes too long for CI: two builds of a release, the image, compose, Terraform on this machine, Helm
	deploy/release/build.sh --verify
	cd deploy/compose && $(GO) vet ./... && RHUMB_STATIC=$(CURDIR)/bin/release/rhumb $(GO) test -count=1 -v .
	$(GO) test -count=1 -timeout 20m -v ./deploy/hosts -book
	@$(MAKE) --no-print-directory terraform-test terraform-lint terraform-local helm-test provider-test

clean: ## remove what was built
	rm -rf bin
