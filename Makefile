# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The roce-cni authors

# After "go mod download" every target works offline, but for the first run of
# lint and vuln, which build their tools.

VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo devel)
DESTDIR ?=
CNI_BIN_DIR ?= /opt/cni/bin
BINDIR ?= /usr/local/bin
FUZZTIME ?= 30s

LINT_VERSION := v2.15.0
VULN_VERSION := v1.8.0
TOOLS := $(CURDIR)/.cache/bin
LINT := $(TOOLS)/golangci-lint-$(LINT_VERSION)
VULN := $(TOOLS)/govulncheck-$(VULN_VERSION)

# The tests that compare generated texts, and write them with -update.
GENERATED := ^(TestErrorsPageIsCurrent|TestPackageMapIsCurrent|TestReferencePageIsCurrent)$$
GENERATORS := ./pkg/cnierr ./integration/arch ./cmd/rocectl

PLUGINS := bin/roce bin/roce-ipam
PROGRAMS := $(PLUGINS) bin/rocectl

# As root there is no excuse: a test that cannot make a namespace fails
# instead of being skipped.
REQUIRE_NETNS ?= $(if $(filter 0,$(shell id -u)),1)
export REQUIRE_NETNS

.DEFAULT_GOAL := help
.PHONY: help build test check lint fmt vuln golden gen gen-check fuzz size demo install clean $(PROGRAMS)

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 12

build: $(PROGRAMS) ## build bin/roce, bin/roce-ipam and bin/rocectl, static

# -buildvcs=false: the version comes from -X, and a checkout of another user
# must build too.
$(PROGRAMS): bin/%:
	CGO_ENABLED=0 go build -buildvcs=false -trimpath -ldflags '-s -w -X main.version=$(VERSION)' -o $@ ./cmd/$*

test: ## go vet and all tests, with the race detector, in random order
	bash integration/deps.sh
	go vet ./...
	go test -race -count=1 -shuffle=on ./...
	go test -count=1 -run '^TestCost' ./pkg/ipam # the race detector costs more than what it measures

# The formatters are linters too, so lint is also the check of the formatting.
# vuln is not here: it needs the vulnerability database, which build machines
# without internet cannot reach.
check: lint test size gen-check ## what CI runs

lint: $(LINT) ## golangci-lint, formatting included
	$(LINT) run ./...

fmt: $(LINT) ## format the Go files
	$(LINT) fmt ./...

vuln: $(VULN) ## known vulnerabilities in the dependencies (needs internet)
	$(VULN) ./...

# The file names hold the versions, so that a new version is built when it is
# asked for.
$(LINT): PKG := github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$(LINT_VERSION)
$(VULN): PKG := golang.org/x/vuln/cmd/govulncheck@$(VULN_VERSION)
$(LINT) $(VULN):
	GOBIN=$(TOOLS) CGO_ENABLED=0 go install $(PKG)
	mv $(TOOLS)/$(notdir $(firstword $(subst @, ,$(PKG)))) $@

golden: ## rewrite every golden file; read the diff afterwards
	grep -rl --include='*_test.go' --exclude-dir=arch 'flag.Bool("update"' pkg cmd integration | \
		xargs -n 1 dirname | sort -u | xargs -I DIR go test -count=1 ./DIR -update

gen: ## rewrite docs/errors.md, docs/rocectl.md and the package map in docs/ARCHITECTURE.md
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

demo: build ## attach two containers on this machine and look at the result (root)
	bash integration/deps.sh
	bash integration/demo/run.sh

# By rename, because a runtime may run the plugin at any moment.
install: build ## install into DESTDIR: the plugins in /opt/cni/bin, rocectl in /usr/local/bin
	mkdir -p '$(DESTDIR)$(CNI_BIN_DIR)' '$(DESTDIR)$(BINDIR)'
	for p in $(PLUGINS:bin/%=%); do \
		cp "bin/$$p" "$(DESTDIR)$(CNI_BIN_DIR)/.$$p.new" && \
		mv -f "$(DESTDIR)$(CNI_BIN_DIR)/.$$p.new" "$(DESTDIR)$(CNI_BIN_DIR)/$$p" || exit 1; \
	done
	cp bin/rocectl '$(DESTDIR)$(BINDIR)/.rocectl.new'
	mv -f '$(DESTDIR)$(BINDIR)/.rocectl.new' '$(DESTDIR)$(BINDIR)/rocectl'

clean: ## remove bin (the tools in .cache stay)
	rm -rf bin
