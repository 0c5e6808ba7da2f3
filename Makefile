# The commands of this project. `make` alone lists them.
BIN           := .bin
VERSION       := $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
GOLANGCI_LINT := $(BIN)/golangci-lint-v2.15.0
ACTIONLINT    := $(BIN)/actionlint-v1.7.12
GOVULNCHECK   := $(BIN)/govulncheck-v1.9.0
CYCLONEDX     := $(BIN)/cyclonedx-gomod-v1.10.0
# One package that brings nothing else with it, so its version pins all of it.
REDOCLY       := $(BIN)/redocly-v2.77.0
# This one as well.
TYPESCRIPT    := $(BIN)/typescript-v5.9.3
# Types alone are used of it. The version is that of docker-compose.yml's Grafana.
GRAFANA       := $(BIN)/grafana-schema-v12.4.11
# The race detector is written in C: without a C compiler the tests run without it.
RACE          := $(if $(shell command -v $$(go env CC)),-race)

# The image's program, byte for byte, from any directory: no path, no commit and no
# C library get into it. tests/reproducible.sh holds this and the Dockerfile to it.
GO_BUILD      := CGO_ENABLED=0 go build -trimpath -buildvcs=false -ldflags '-s -w -X main.version=$(VERSION)'

.PHONY: help build api-run test test-container compose-test torture torture-short bench bench-short fuzz lint openapi-lint fmt clean generate generate-check clients-test alerts-test console-test dashboard-lint vuln vulndb licences sbom reproducible operations-test upgrade-test

help: ## list these commands
	@sed -nE 's/^([a-z-]+):.*## (.*)/make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 21

build: ## build the service into .bin/api
	$(GO_BUILD) -o $(BIN)/api ./cmd/api

# One key of each role, for the README's examples.
api-run: export API_DEMO_KEYS ?= merchant-demo,chain-1=relayer-demo:relayer,chain-1=listener-demo:listener,desk=operator-demo:operator
api-run: build ## run the service on 127.0.0.1:8080, with a PostgreSQL of its own under .data/
	@exec $(BIN)/api

# tests/tokens runs go test, and fails where a token is in what the tests print.
test: ## run every test, on a real PostgreSQL that they find or start, and look for tokens in what they print
	go run ./tests/tokens -logs intentd/cmd/api,intentd/internal/api,intentd/client -- $(RACE) -shuffle=on ./...
	go run ./tests/tokens -C torture -- $(RACE) -shuffle=on ./...
	go run ./tests/tokens -C bench -- $(RACE) -shuffle=on ./...

# Found by what they import, so that none is forgotten.
test-container: export TEST_DATABASE = container
test-container: export TEST_DATABASE_URL =
test-container: ## run the tests that need a database, each package in a container of its own
	go test $(RACE) -tags container -shuffle=on -count=1 ./internal/pgtest \
		$$(grep -rl '"intentd/internal/pgtest"' --include='*_test.go' . | xargs -n1 dirname | sort -u)

compose-test: export VERSION := $(VERSION)
compose-test: ## build the image and try what docker-compose.yml promises
	tests/compose.sh

# The first Python of the machine that has httpx: Debian's has it by apt-get
# install python3-httpx, others by pip.
clients-test: export CLIENTS_PYTHON = $(shell for p in python3 /usr/bin/python3; do $$p -c 'import httpx' 2>/dev/null && { command -v $$p; break; }; done)
clients-test: export CLIENTS_TSC = $(abspath $(TYPESCRIPT))/node_modules/typescript/bin/tsc
clients-test: $(TYPESCRIPT) ## run the programs of docs/clients.md (needs curl, Node.js, npm and Python with httpx)
	@for p in bash curl node; do command -v $$p >/dev/null || { echo "make clients-test needs $$p"; exit 1; }; done
	@[ -n "$$CLIENTS_PYTHON" ] || { echo 'make clients-test needs a python3 with httpx: apt-get install python3-httpx'; exit 1; }
	go test -tags clients -run '^TestDocs' -count=1 ./client

torture: ## try every fault for 30 s each, some minutes in all; SEED=n repeats one (needs pgbouncer, libfaketime and redis-server)
	cd torture && go run . $(if $(SEED),-seed $(SEED)) -duration 30s

torture-short: ## a selection of the faults, in under a minute
	cd torture && go run . $(if $(SEED),-seed $(SEED)) -short

bench: ## measure beside Redis and others, about 35 minutes; BENCH='-only get' passes flags (needs redis-server)
	cd bench && go run . -out $(abspath $(BIN))/bench $(BENCH)

bench-short: ## see in a minute that the bench works
	cd bench && go run . -short

fuzz: ## fuzz each target for 20 seconds
	@grep -rlE '^func Fuzz' --include='*_test.go' . | while read -r file; do \
		for target in $$(sed -nE 's/^func (Fuzz[A-Za-z0-9_]+)\(.*/\1/p' $$file); do \
			go test -run '^$$' -fuzz "^$$target\$$" -fuzztime 20s ./$$(dirname $$file) || exit 1; \
		done; \
	done

# What is generated is kept in the repository; the generators' versions stand in
# the go:generate lines.
generate: ## make the generated code anew, from openapi.yaml
	go generate ./...

GENERATED      = $(shell git ls-files -co --exclude-standard '*.gen.go')
generate-check:
	@before=$$(cat $(GENERATED) | sha256sum) && go generate ./... && \
		{ [ "$$before" = "$$(cat $(GENERATED) | sha256sum)" ] || { echo 'the generated code was not that of openapi.yaml; it is now: commit it'; exit 1; }; }

lint: $(GOLANGCI_LINT) $(ACTIONLINT) generate-check ## check format, generated code, go.mod, code and workflows
	@test -z "$$(gofmt -l .)" || { gofmt -l .; echo 'gofmt would change these: make fmt'; exit 1; }
	go mod tidy -diff
	cd torture && go mod tidy -diff && go vet ./...
	cd bench && go mod tidy -diff && go vet ./...
	$(GOLANGCI_LINT) run ./...
	$(ACTIONLINT)

openapi-lint: export REDOCLY_TELEMETRY = off
openapi-lint: export REDOCLY_SUPPRESS_UPDATE_NOTICE = true
openapi-lint: $(REDOCLY) ## check openapi.yaml by the rules of redocly.yaml (needs Node.js and npm)
	$(REDOCLY)/node_modules/.bin/redocly lint openapi.yaml

alerts-test: ## check deploy/prometheus, each alert, and each query of the dashboard on a service at work (needs prometheus)
	promtool check config deploy/prometheus/prometheus.yml deploy/prometheus/compose.yml
	promtool test rules deploy/prometheus/alerts_test.yml
	go test -tags prometheus -run '^TestDashboard$$' -count=1 ./cmd/api

dashboard-lint: $(GRAFANA) $(TYPESCRIPT) ## check the dashboard's file against Grafana's own types (needs Node.js and npm)
	node tests/dashboard.mjs $(GRAFANA) $(TYPESCRIPT)

console-test: ## go through the console in Chromium; SCREENSHOTS=directory keeps pictures (needs chromium, or its path in CHROMIUM)
	go test -tags browser -run '^TestConsole_Browser$$' -count=1 ./internal/console

# As built by the toolchain that go.mod asks for, which a machine may lack.
vuln: export GOTOOLCHAIN = $(shell sed -n 's/^toolchain //p' go.mod)
vuln: $(GOVULNCHECK) ## look for known vulnerabilities in what is called (asks vuln.go.dev; GOVULNDB=url another, make vulndb makes one)
	$(abspath $(GOVULNCHECK)) $(if $(GOVULNDB),-db $(GOVULNDB)) -test ./...
	cd torture && $(abspath $(GOVULNCHECK)) $(if $(GOVULNDB),-db $(GOVULNDB)) -test ./...
	cd bench && $(abspath $(GOVULNCHECK)) $(if $(GOVULNDB),-db $(GOVULNDB)) -test ./...

vulndb: ## make the vulnerability database from its module, where only a module proxy can be reached: .bin/vulndb
	rm -rf $(BIN)/vulndb
	dir=$$(go mod download -json golang.org/x/vulndb@latest | sed -nE 's/^\s*"Dir": "(.*)",?$$/\1/p') && \
		go run golang.org/x/vulndb/cmd/indexdb@latest -vulns "$$dir/data/osv" -out $(BIN)/vulndb

licences: ## list the licences of all modules, and fail for one that may not be used
	@echo '# the service'
	@CGO_ENABLED=0 GOOS=linux go run ./tests/licences ./cmd/api
	@for dir in . torture bench; do \
		printf '\n# %s, tests included\n' "$$dir" && go run ./tests/licences -C $$dir -test ./... || exit 1; \
	done

sbom: build $(CYCLONEDX) ## list what is in .bin/api, as CycloneDX JSON in .bin/api.cdx.json
	$(CYCLONEDX) bin -json -std -noserial -notimestamp -version $(VERSION) -output $(BIN)/api.cdx.json $(BIN)/api

reproducible: ## build the service twice, in other directories and caches, and compare
	tests/reproducible.sh $(VERSION)

operations-test: build ## do what docs/operations.md says of PostgreSQL, on servers of its own
	tests/operations.sh

upgrade-test: ## run an older program (FROM=commit) beside this one on this one's schema, for a minute
	tests/upgrade.sh $(FROM)

fmt: ## format the code
	gofmt -w .

$(GOLANGCI_LINT): # a tool, and no dependency: its licence and its modules stay out of go.mod
	GOBIN=$(abspath $(BIN))/tmp go install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0
	mv $(BIN)/tmp/golangci-lint $@

$(ACTIONLINT):
	GOBIN=$(abspath $(BIN))/tmp go install github.com/rhysd/actionlint/cmd/actionlint@v1.7.12
	mv $(BIN)/tmp/actionlint $@

$(GOVULNCHECK):
	GOBIN=$(abspath $(BIN))/tmp go install golang.org/x/vuln/cmd/govulncheck@v1.9.0
	mv $(BIN)/tmp/govulncheck $@

$(CYCLONEDX):
	GOBIN=$(abspath $(BIN))/tmp go install github.com/CycloneDX/cyclonedx-gomod/cmd/cyclonedx-gomod@v1.10.0
	mv $(BIN)/tmp/cyclonedx-gomod $@

$(REDOCLY):
	npm install --prefix $(BIN)/tmp/redocly --no-save --no-audit --no-fund --loglevel=error @redocly/cli@2.77.0
	mv $(BIN)/tmp/redocly $@

$(TYPESCRIPT):
	@command -v npm >/dev/null || { echo 'this needs Node.js and npm'; exit 1; }
	npm install --prefix $(BIN)/tmp/typescript --no-save --no-audit --no-fund --loglevel=error typescript@5.9.3
	mv $(BIN)/tmp/typescript $@

$(GRAFANA):
	@command -v npm >/dev/null || { echo 'make dashboard-lint needs Node.js and npm'; exit 1; }
	npm install --prefix $(BIN)/tmp/grafana-schema --no-save --no-audit --no-fund --loglevel=error @grafana/schema@12.4.11
	mv $(BIN)/tmp/grafana-schema $@

clean: ## remove what was built; .data/ and its database stay
	rm -rf $(BIN)
