# The very commands that the README and CI use.

.PHONY: run test test-all clients prove fuzz check deny bench image dist dist-test

# Serves locks on the embedded store, on http://127.0.0.1:8080; needs only a Rust toolchain.
run:
	cargo run --release -- serve

# The tests of every change: style, units, the embedded store and one Redis, the HTTP contract, streams,
# `exec`, the README, the PHP package. On Debian it installs what is missing.
test: tools
	cargo test -p lockkeeper -p orders --lib --bins --test tidy --test it -- --test-threads=8 $(MORE:%=--skip %)

# What `test-all` has more: other servers, browsers, languages and faults.
MORE = ::cluster:: ::redlock:: ::sentinel:: api::schemathesis api::sdk browser:: clients::recipes clients::rows \
  dashboard:: deploy:: docs:: embedded_faults:: examples:: exec::mounts fenced:: hold::proxies hold::recipes hook::long \
  interop:: legacy:: mcp::sdk migration:: orders::whole php:: php_frameworks:: php_kills:: redis_faults:: redlock:: \
  topology_faults:: traces:: waiting::

# All tests. Those of CLIENTS generate and compile clients: few at a time, and the recipes alone.
test-all: tools-all
	cargo test --workspace --all-targets --no-fail-fast -- --test-threads=8 $(CLIENTS:%=--skip %) --skip clients::recipes
	cargo test --workspace --test it -- --test-threads=4 $(CLIENTS)
	cargo test --workspace --test it -- clients::recipes
	cargo test --workspace --doc
CLIENTS = api::schemathesis api::sdk clients::rows fenced::

# The packages of all languages: their tests, and all of clients/SITUATIONS.md for ROUNDS rounds.
clients: tools-all
	cargo build --bin lockkeeper
	tests/clients/all $(ROUNDS)
ROUNDS = 1

# Clients against all stores while things fail, for PROVE_SECONDS, and a judgement on what they were told.
prove: tools-all
	cargo build --release --bin lockkeeper
	cargo run --release -p prove

# Inputs that nobody thought of, for FUZZ_SECONDS each: requests, connections, settings, damaged files.
FUZZ_SECONDS ?= 60
FUZZ_TARGETS ?= request connection settings file
fuzz:
	command -v cargo-fuzz >/dev/null || cargo install --locked cargo-fuzz
	for target in $(FUZZ_TARGETS); do mkdir -p target/fuzz/$$target; \
	  RUSTC_BOOTSTRAP=1 cargo fuzz run --release --sanitizer none $$target target/fuzz/$$target fuzz/corpus/$$target -- \
	  -max_total_time=$(FUZZ_SECONDS) -max_len=4096 -timeout=60 -dict=fuzz/http.dict || exit 1; done

# The style and the rules that need no server.
check:
	cargo fmt --all --check
	cargo clippy --workspace --all-targets -- -D warnings
	cargo clippy --lib --bins --features portable -- -D warnings
	RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --document-private-items
	$(MAKE) deny
	$(MAKE) release-check

# The version in every place that states it, and what a release of this tree would need.
.PHONY: release-check
release-check:
	./deploy/release-check

# Licences, sources and bans of the dependencies.
deny:
	command -v cargo-deny >/dev/null || cargo install --locked cargo-deny
	cargo deny check bans licenses sources

# Ratios against peers in the same run.
bench: tools-all
	cargo build --release --bin lockkeeper
	cargo run --release -p bench

# The container image.
image:
	docker build -t lockkeeper .

# What a release publishes: static programs of two architectures, this machine's packages and list of
# parts, packages of all languages, checksums.
dist:
	./deploy/dist
	./deploy/dist-clients
	./deploy/assets $(DIST)
DIST = target/dist

# Each file of `make dist`, installed and tried where there is nothing else, and the image's steps; as
# root.
dist-test: tools-all
	./tests/dist/all $(DIST)
	./tests/dist/image

.PHONY: tools tools-all
tools:
	./tests/tools
tools-all:
	./tests/tools all
