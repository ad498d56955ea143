.PHONY: help up quick test test-debian check demo soak bench generate durations dist clean

help: ## list these targets
	@sed -n 's/^\([a-z-]*\):.* ## /\1\t/p' Makefile | while IFS='	' read -r target about; do printf '  make %-10s %s\n' "$$target" "$$about"; done

up: ## install what is missing and start the platform; Ctrl-C stops the control plane, ./berth down everything
	@scripts/setup.sh run
	@exec ./berth up

quick: ## types, lint, unit tests and tests on fake drivers, without root; CHANGED=1 runs only what the work tree affects
	@scripts/setup.sh quick
	@npm run --silent quick -- $(if $(CHANGED),--changed)

test: ## install what is missing, check the code and run every test
	@scripts/setup.sh test
	@npm run --silent check
	@npm test --silent

test-debian: ## run RELEASE=bookworm|trixie in a directory, start Berth there and run tests: PART=bounded|all|none, or TESTS='file ...'
	@exec scripts/debian/test.sh "$(RELEASE)" $(TESTS)

check: ## check types, lint and format of TypeScript, shell and Perl, without tests
	@scripts/setup.sh check
	@npm run --silent check

demo: ## play a restore session in one minute
	@scripts/setup.sh run
	@exec scripts/demo.sh

soak: ## restores compared with the log, with clock steps and damage; every pair of operations twenty times at once
	@scripts/setup.sh test
	@BERTH_SOAK_ROUNDS=20 npm test --silent -- --no-file-parallelism test/e2e/race
	@exec scripts/node.sh scripts/soak.ts

bench: ## run the benchmarks
	@scripts/setup.sh bench
	@exec scripts/node.sh bench/run.ts

generate: ## regenerate the derived files
	@scripts/setup.sh npm
	@npm run --silent generate

durations: ## run every test and note how long each file took, so that the longest start first
	@scripts/setup.sh test
	@BERTH_WRITE_DURATIONS=1 npm test --silent

dist: ## build a release tarball with checksum in dist/
	@scripts/setup.sh npm
	@scripts/dist.sh

clean: ## remove npm packages, caches and releases, but not the platform's home
	@rm -rf node_modules .cache dist
