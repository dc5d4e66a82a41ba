# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The roce-cni authors

# After "go mod download" every target works offline, but for the first run of
# lint and vuln, which build their tools, and of bench, which builds upstream's.

VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo devel)
DESTDIR ?=
CNI_BIN_DIR ?= /opt/cni/bin
BINDIR ?= /usr/local/bin
IMAGE ?= roce-cni:$(VERSION)
TOOLS_BASE ?= docker.io/library/debian:12-slim
IMAGE_TOOL ?= $(firstword $(foreach t,docker podman buildah,$(shell command -v $(t))))
FUZZTIME ?= 30s

LINT_VERSION := v2.15.0
VULN_VERSION := v1.8.0
TOOLS := $(CURDIR)/.cache/bin
LINT := $(TOOLS)/golangci-lint-$(LINT_VERSION)
VULN := $(TOOLS)/govulncheck-$(VULN_VERSION)

# What make bench measures against, and what integration/cni tests with. BENCHFLAGS=-report
# prints without judging.
UPSTREAM_VERSION := v1.9.1
UPSTREAM := $(CURDIR)/.cache/plugins-$(UPSTREAM_VERSION)
UPSTREAM_PLUGINS := $(addprefix main/,macvlan host-device ptp bridge) $(addprefix ipam/,host-local static dhcp) $(addprefix meta/,sbr tuning bandwidth)
BENCHFLAGS ?= -times

# The tests that compare generated texts, and write them with -update.
GENERATED := ^(TestErrorsPageIsCurrent|TestFaultsPageIsCurrent|TestPackageMapIsCurrent|TestReferencePageIsCurrent|TestTroubleshootingPagesAreCurrent|TestTheChartIsMadeFromTheManifests)$$
GENERATORS := ./pkg/base/cnierr ./pkg/tool/doctor ./integration/arch ./cmd/rocectl ./integration/cluster/deploy

PLUGINS := bin/roce bin/roce-ipam
PROGRAMS := $(PLUGINS) bin/rocectl bin/roce-env bin/roce-hwtest

# As root there is no excuse: a test that cannot make a namespace fails
# instead of being skipped.
REQUIRE_NETNS ?= $(if $(filter 0,$(shell id -u)),1)
export REQUIRE_NETNS

.DEFAULT_GOAL := help
.PHONY: help build unit test test-vm vm-runs test-hwtest test-verify test-cluster test-versions test-road check lint fmt vuln golden gen gen-check fuzz size bench scale demo install image image-tools push-tools deploy release clean $(PROGRAMS)

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 12

build: $(PROGRAMS) ## build bin/roce, bin/roce-ipam, bin/rocectl, bin/roce-env and bin/roce-hwtest, static

# Where CNI plugins keep their version; what they print on VERSION and --version comes from it.
BUILD_VERSION := github.com/containernetworking/plugins/pkg/utils/buildversion.BuildVersion

# -buildvcs=false: the version comes from -X, and a checkout of another user
# must build too.
$(PROGRAMS): bin/%:
	CGO_ENABLED=0 go build -buildvcs=false -trimpath -ldflags '-s -w -X $(BUILD_VERSION)=$(VERSION)' -o $@ ./cmd/$*

# docs/testing.md has what each of these needs and takes.

# Temporary files and the linked tests live for seconds: where memory has room for them,
# all tests take a tenth less time. Containers usually have 64 MB, and no right to execute.
# With GOGC, the compiler, the linker and the tests collect garbage less often.
SHM = $(shell findmnt -bno OPTIONS,AVAIL /dev/shm | awk 'NR == 1 && $$1 !~ /noexec/ && $$2 > 2e9 {print "/dev/shm"}')
unit: ## the tests that need no root, no namespaces and no other programs
	TMPDIR=$(SHM) GOGC=400 go test -short ./pkg/... ./cmd/... ./integration/arch

# Tests that touch the machine run where they find nothing of others and leave nothing. There is
# no network there, so all modules are fetched before, and upstream's plugins, which some can do without.
GROUND := bash integration/ground.sh

test: ## all tests, with the race detector, in random order (root, or those with namespaces are skipped)
	bash integration/deps.sh
	for d in . integration/scale integration/others; do bash integration/again.sh go -C $$d mod download || exit 1; done
	$(MAKE) $(UPSTREAM) || [ -z '$(REQUIRE_UPSTREAM)' ]
	$(GROUND) go test -race -count=1 -shuffle=on -timeout 30m ./...
	$(GROUND) go -C integration/scale test -race -count=1 -shuffle=on ./...
	$(GROUND) go -C integration/others test -count=1 -shuffle=on ./...
	$(if $(REQUIRE_NETNS),$(MAKE) test-vm)

# What needs RDMA devices, in virtual machines with Soft-RoCE on two kernels: 6.1
# can move its devices to a pod, 7 lets pods that share them transfer.
# integration/rdma says what runs where.
test-vm: build .cache/vm/run ## the tests that boot virtual machines with Soft-RoCE (root)
	REQUIRE_VM=1 go test -count=1 ./integration/vm
	CGO_ENABLED=0 go test -c -o .cache/vm/unit.test ./pkg/plugin/rdma
	CGO_ENABLED=0 go test -c -o .cache/vm/suite.test ./pkg/plugin/kernel
	CGO_ENABLED=0 go test -c -o .cache/vm/rdma.test ./integration/rdma
	mpicc -O1 -Wall -o .cache/vm/allreduce integration/rdma/testdata/allreduce.c
	$(MAKE) --no-print-directory -j $(VM_JOBS) --output-sync=target vm-runs

# roce-hwtest waits for GIDs that never come, and fills tables, so its tests take longer
# than all others of test-vm. The latter has the steps that change nothing.
test-hwtest: build .cache/vm/run ## roce-hwtest in all kinds of virtual machines (root); not part of check
	CGO_ENABLED=0 go test -c -o .cache/vm/rdma.test ./integration/rdma
	$(MAKE) --no-print-directory -j $(VM_JOBS) --output-sync=target $(HWTEST_RUNS:%=vm-run-%)

test-verify: build .cache/vm/run ## rocectl verify on four nodes with faults, in namespaces and in virtual machines, and on a real API server and kubelet (root, 10 minutes); not part of check
	TEST_VERIFY=1 $(GROUND) go test -count=1 -run 'FourNodes' -v ./pkg/tool/verify
	CGO_ENABLED=0 go test -c -o .cache/vm/rdma.test ./integration/rdma
	$(MAKE) --no-print-directory vm-run-four-7
	bash integration/cluster/build.sh .cache/cluster $(CLUSTER_PROGRAMS)
	REQUIRE_CLUSTER=1 TEST_VERIFY=1 $(GROUND) go test -count=1 -run 'DaemonSetAreVerified' -v ./integration/cluster/e2e

# A machine boots on one processor and waits a lot, so two run at a time.
VM_JOBS ?= 2
VM_RUNS := unit-6.1 rdma-6.1 ofed-6.1 nodes-6.1 stock-6.1 sriov-6.1 pcie-6.1 rdma-7 nodes-7 readers-7
vm-runs: $(VM_RUNS:%=vm-run-%)
vm-run-unit-6.1:
	$(call in_vm,-kernel 6.1,unit.test -test.run '^TestReal')
	$(call in_vm,-kernel 6.1,suite.test -test.run '^TestLinuxObeysTheLaw$$/(ipvlan|VLAN)')
vm-run-rdma-6.1:
	$(call in_vm,-kernel 6.1,rdma.test -test.run '^Test(Shared|Exclusive|Mode|Discovery|Tell|Promise|Counters)')
vm-run-ofed-6.1:
	$(call in_vm,-kernel 6.1 -machine ofed-view,rdma.test -test.run '^Test(Shared|Exclusive|TellEach|PromiseEqual|PromiseExclusive|PromiseEvents)')
vm-run-nodes-6.1:
	$(call in_vm,-kernel 6.1 -machine mlx5-like -rails 5,rdma.test -test.run '^Test(MLX5|PromiseEqual(Holds|Fillers)|PromiseEvents)' -test.skip HWTest)
	$(call in_vm,-kernel 6.1 -nodes 2,rdma.test -test.run '^TestNodesExclusive')
vm-run-stock-6.1:
	$(call in_vm,-kernel 6.1 -rails 0,rdma.test -test.run '^TestStock',sh integration/rdma/testdata/stock.sh)
vm-run-sriov-6.1: $(UPSTREAM)
	$(call in_vm,-kernel 6.1 -machine sriov,rdma.test -test.run '^TestSRIOV' -test.skip HWTest)
vm-run-pcie-6.1:
	$(call in_vm,-kernel 6.1 -machine pcie -rails 5,rdma.test -test.run '^TestPCIe')
vm-run-rdma-7:
	$(call in_vm,-kernel 7,rdma.test -test.run '^Test(Shared|Mode|Discovery|Tell|PromiseEqual|PromiseNumber|Names|Healer|HWTestWithout)')
vm-run-nodes-7:
	$(call in_vm,-kernel 7 -nodes 2,rdma.test -test.run '^TestNodesShared' -test.skip HWTest)

# r2 is the network of the programs themselves.
vm-run-readers-7:
	$(call in_vm,-kernel 7 -nodes 2 -rails 3,rdma.test -test.run '^TestReaders')

HWTEST_RUNS := hwtest-6.1 hwtest-7 hwtest-ofed-6.1 hwtest-mlx5-6.1 hwtest-sriov-6.1 hwtest-nodes-7
vm-run-hwtest-6.1:
	$(call in_vm,-kernel 6.1,rdma.test -test.run '^TestHWTest')
vm-run-hwtest-7:
	$(call in_vm,-kernel 7,rdma.test -test.run '^Test(HWTestShared|TransferHWTest)')
vm-run-hwtest-ofed-6.1:
	$(call in_vm,-kernel 6.1 -machine ofed-view,rdma.test -test.run '^TestHWTest(Shared|Exclusive)')
vm-run-hwtest-mlx5-6.1:
	$(call in_vm,-kernel 6.1 -machine mlx5-like -rails 5,rdma.test -test.run '^TestMLX5HWTest')
vm-run-hwtest-sriov-6.1:
	$(call in_vm,-kernel 6.1 -machine sriov,rdma.test -test.run '^TestSRIOVHWTest')
vm-run-hwtest-nodes-7:
	$(call in_vm,-kernel 7 -nodes 2,rdma.test -test.run '^TestNodesSharedHWTest')

# rocectl verify on four nodes: r2 is the network of the test itself.
vm-run-four-7:
	$(call in_vm,-kernel 7 -nodes 4 -rails 3,rdma.test -test.run '^TestFourNodesShared')

in_vm = .cache/vm/run -timeout 45m $(1) -- $(3) env REQUIRE_RDMA=1 .cache/vm/$(2) -test.v

.PHONY: .cache/vm/run vm-run-four-7 $(VM_RUNS:%=vm-run-%) $(HWTEST_RUNS:%=vm-run-%)
.cache/vm/run:
	bash integration/deps.sh vm
	CGO_ENABLED=0 go build -o $@ ./integration/vm/run

# The programs stay in .cache/cluster; integration/cluster/build.sh has their
# versions, and builds those that are not there.
CLUSTER_PROGRAMS := etcd kube-apiserver kubectl kubelet containerd ctr containerd-shim-runc-v2 runc busybox multus bridge loopback host-local macvlan sbr tuning whereabouts whereabouts-controlloop whereabouts-crds helm promtool lws-crds pytorch-crds mpi-crds ray-crds

# Two of the tests boot virtual machines.
test-cluster: build .cache/vm/run ## the tests on a real etcd, kube-apiserver, Multus and kubelet (root)
	bash integration/cluster/build.sh .cache/cluster $(CLUSTER_PROGRAMS)
	.cache/vm/run -kernel 7 -- true
	REQUIRE_CLUSTER=1 $(GROUND) go test -count=1 -timeout 30m ./integration/cluster/...

# The programs and machines of test-cluster are there first, so that what fails is the version.
test-versions: build ## test-cluster with other versions of Kubernetes, Multus and containerd (root, hours); not part of check
	bash integration/deps.sh vm
	bash integration/cluster/build.sh .cache/cluster $(CLUSTER_PROGRAMS)
	bash integration/cluster/versions.sh .cache/cluster

# What a quick start needs beside that: the controllers, a registry, and the device plugin.
ROAD_PROGRAMS := $(CLUSTER_PROGRAMS) kube-controller-manager kube-scheduler docker-registry k8s-rdma-shared-dp

# It runs in namespaces of its own, which have no network, so all programs are made before.
test-road: build .cache/vm/run ## the quick start, pasted, on two nodes with Soft-RoCE (root, 10 to 30 minutes); not part of check
	bash integration/deps.sh road
	bash integration/cluster/build.sh .cache/cluster $(ROAD_PROGRAMS)
	.cache/vm/run -kernel 7 -- true
	CGO_ENABLED=0 go test -c -o .cache/vm/road.test ./integration/road
	cd integration/road && REQUIRE_ROAD=1 unshare --net --mount --pid --fork --kill-child --mount-proc \
		../../.cache/vm/road.test -test.v -test.count=1 -test.timeout 90m

# The formatters are linters too, so lint is also the check of the formatting,
# and go vet is one of them. What size tests is part of test.
# vuln is not here: it needs the vulnerability database, which build machines
# without internet cannot reach.
check: lint test gen-check ## what CI runs: with test-cluster, as root
	$(if $(REQUIRE_NETNS),$(MAKE) test-cluster)

lint: $(LINT) ## golangci-lint, formatting included
	$(LINT) run ./...
	cd integration/scale && $(LINT) run ./...
	cd integration/others && $(LINT) run ./...

fmt: $(LINT) ## format the Go files
	$(LINT) fmt ./...
	cd integration/scale && $(LINT) fmt ./...
	cd integration/others && $(LINT) fmt ./...

vuln: $(VULN) ## known vulnerabilities in the dependencies (needs internet)
	$(VULN) ./...

# The file names hold the versions, so that a new version is built when it is
# asked for.
$(LINT): PKG := github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$(LINT_VERSION)
$(VULN): PKG := golang.org/x/vuln/cmd/govulncheck@$(VULN_VERSION)
$(LINT) $(VULN):
	GOBIN=$(TOOLS) CGO_ENABLED=0 bash integration/again.sh go install $(PKG)
	mv $(TOOLS)/$(notdir $(firstword $(subst @, ,$(PKG)))) $@

golden: ## rewrite every golden file; read the diff afterwards
	grep -rl --include='*_test.go' --exclude-dir=arch 'flag.Bool("update"' pkg cmd integration | \
		xargs -n 1 dirname | sort -u | xargs -I DIR go test -count=1 ./DIR -update

gen: ## rewrite docs/errors.md, docs/doctor.md, docs/rocectl.md, docs/troubleshooting.md, the chart and the package map in docs/ARCHITECTURE.md
	@go test -count=1 -run '$(GENERATED)' $(GENERATORS) -update

gen-check: ## fail when make gen would change something
	@go test -count=1 -run '$(GENERATED)' $(GENERATORS) || { echo 'run: make gen' >&2; exit 1; }

fuzz: ## run every fuzz target for FUZZTIME (30s)
	@grep -rn --include='*_test.go' '^func Fuzz' pkg cmd | \
		sed -n 's|^\(.*\)/[^/]*:[0-9]*:func \(Fuzz[A-Za-z0-9_]*\)(.*|\1 \2|p' | \
		while read -r dir target; do \
			echo "$$dir $$target"; \
			go test -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZTIME) "./$$dir" </dev/null || exit 1; \
		done

size: ## fail when a plugin passes 10 MB or links what it must not
	go test -count=1 -run '^TestPlugins' ./integration/arch

# The ground has a tmpfs at /run, as nodes have: a rename on ext4 waits for the disk.
bench: build $(UPSTREAM) ## measure against upstream's plugins, and fail above the targets (root, 10 minutes)
	bash integration/deps.sh
	CGO_ENABLED=0 go build -buildvcs=false -trimpath -ldflags '-s -w' -o .cache/bench/ ./integration/bench ./integration/bench/peak ./integration/bench/minimal
	mkdir -p .cache/bench/installed
	cp bin/roce $(UPSTREAM)/* .cache/bench/minimal .cache/bench/installed/
	cd .cache/bench && bash $(CURDIR)/integration/ground.sh ./bench -ours installed -upstream installed -minimal installed -peak ./peak $(BENCHFLAGS)

# Built as ours are, from the module proxy, and no part of go.mod. The Makefile has the list.
$(UPSTREAM): Makefile
	mkdir -p $@.new
	GOBIN=$@.new CGO_ENABLED=0 bash integration/again.sh go install -trimpath -ldflags '-s -w' \
		$(UPSTREAM_PLUGINS:%=github.com/containernetworking/plugins/plugins/%@$(UPSTREAM_VERSION))
	rm -rf $@ && mv $@.new $@ && touch $@

# The program is a module of its own, which uses this one from ../... After a change of
# go.mod here: go -C integration/scale mod tidy. SCALEFLAGS=-h lists what can be chosen.
scale: ## claim with 10 to 5,000 nodes at once on a real API server, and model 10,000 (20 minutes)
	bash integration/cluster/build.sh .cache/cluster etcd kube-apiserver
	CGO_ENABLED=0 go -C integration/scale build -buildvcs=false -trimpath -o $(CURDIR)/.cache/scale .
	.cache/scale $(SCALEFLAGS)

demo: build .cache/vm/run ## two containers in a virtual machine with Soft-RoCE, from ADD to ib_write_bw (root; 3 minutes, the first time 7 and more)
	CGO_ENABLED=0 go build -o .cache/vm/cnitool github.com/containernetworking/cni/cnitool
	.cache/vm/run -timeout 20m -kernel 7 -- bash integration/demo/run.sh

# By rename, because a runtime may run the plugin at any moment.
install: build ## install into DESTDIR: the plugins in /opt/cni/bin, rocectl in /usr/local/bin
	mkdir -p '$(DESTDIR)$(CNI_BIN_DIR)' '$(DESTDIR)$(BINDIR)'
	for p in $(PLUGINS:bin/%=%); do \
		cp "bin/$$p" "$(DESTDIR)$(CNI_BIN_DIR)/.$$p.new" && \
		mv -f "$(DESTDIR)$(CNI_BIN_DIR)/.$$p.new" "$(DESTDIR)$(CNI_BIN_DIR)/$$p" || exit 1; \
	done
	cp bin/rocectl '$(DESTDIR)$(BINDIR)/.rocectl.new'
	mv -f '$(DESTDIR)$(BINDIR)/.rocectl.new' '$(DESTDIR)$(BINDIR)/rocectl'

# Of what build has made and nothing else, so it needs no network. A GOARCH in the
# environment is the image's as well.
image: image-tool build ## build the image IMAGE (roce-cni:VERSION) with docker, podman or buildah
	$(IMAGE_TOOL) build --network none --platform linux/$$(go env GOARCH) --build-arg 'VERSION=$(VERSION)' -t '$(IMAGE)' .

# Debian's packages on the image TOOLS_BASE, which may be that of a mirror, and our programs.
image-tools: image-tool build ## build IMAGE-tools for test pods: perftest, rping, iproute2, rocectl and roce-env
	$(IMAGE_TOOL) build --platform linux/$$(go env GOARCH) --build-arg 'BASE=$(TOOLS_BASE)' -f Dockerfile.tools -t '$(IMAGE)-tools' .

.PHONY: image-tool
image-tool:
	@[ -n '$(IMAGE_TOOL)' ] || { echo 'make: there is no docker, podman or buildah here; IMAGE_TOOL names another program' >&2; exit 1; }

# The times of the files are that of the last commit, so that a second build has the same
# bytes from the same commit with the same Go. RELEASE_ARCHS has the machine's own last.
RELEASE_ARCHS := $(filter-out $(shell go env GOHOSTARCH),amd64 arm64) $(shell go env GOHOSTARCH)
SOURCE_DATE_EPOCH ?= $(shell git log -1 --format=%ct 2>/dev/null || echo 0)
PACK = .cache/release -version '$(VERSION)' -time $(SOURCE_DATE_EPOCH)

# What has built it, for its statement of provenance: docs/releasing.md.
BUILDER ?= https://github.com/roce-cni/roce-cni/blob/main/docs/releasing.md#by-hand

release: ## all files of VERSION for amd64 and arm64, in dist: archives, image, chart, krew manifest, CycloneDX lists, provenance and sums
	rm -rf dist && mkdir dist
	CGO_ENABLED=0 go build -buildvcs=false -o .cache/release ./integration/release
	for arch in $(RELEASE_ARCHS); do $(MAKE) --no-print-directory build GOARCH=$$arch && $(PACK) -arch $$arch || exit 1; done
	$(PACK) -commit "$$(git rev-parse HEAD)" -builder '$(BUILDER)'
	cd dist && sha256sum -c --quiet SHA256SUMS

# The name that the examples have for the image; the sed of the quick start replaces it too.
EXAMPLE_IMAGE := registry.example.org/roce-cni:devel

# docs/quickstart.md explains it. It applies conf-examples/deploy as it is on disk. Without
# IMAGE it would push to a registry of strangers.
deploy: $(if $(filter file,$(origin IMAGE)),no-image) image ## build and push the image IMAGE, and apply agents, reaper and RDMA device plugin with kubectl
	$(IMAGE_TOOL) push '$(IMAGE)'
	kubectl kustomize conf-examples/deploy | sed 's|$(EXAMPLE_IMAGE)|$(IMAGE)|' | kubectl apply --server-side -f -
	kubectl apply -k conf-examples/deploy/rdma/device-plugin
	kubectl -n roce-cni rollout status daemonset/roce-cni-agent --timeout=15m
	kubectl -n roce-cni rollout status daemonset/roce-cni-heal --timeout=5m

push-tools: $(if $(filter file,$(origin IMAGE)),no-image) image-tools ## build and push IMAGE-tools, which the test pods of the examples have
	$(IMAGE_TOOL) push '$(IMAGE)-tools'

.PHONY: no-image
no-image:
	@echo 'make: IMAGE is not set: export IMAGE=REGISTRY/roce-cni:TAG, with a registry that the nodes reach' >&2; exit 1

clean: ## remove bin and dist (the tools in .cache stay)
	rm -rf bin dist
