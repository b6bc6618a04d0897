# The very commands that the README and CI use.

.PHONY: run test test-clients prove fuzz check deny bench image dist

# Serves locks on the embedded store, on http://127.0.0.1:8080; needs only a Rust toolchain.
run:
	cargo run --release -- serve

# All tests but those of `test-clients`, with the servers that they need; on Debian it installs what
# is missing.
test: tools
	cargo test --workspace --all-targets -- --test-threads=8 $(CLIENTS:%=--skip %)
	cargo test --workspace --doc

# Tests by clients that are generated from openapi.yaml, or compiled: they take Go, Java and npm, and
# as long as all others.
CLIENTS = api::schemathesis api::sdk examples::keep_alive fenced::
test-clients: tools
	cargo test --workspace --test it -- --test-threads=4 $(CLIENTS)

# Clients against all stores while things fail, for PROVE_SECONDS, and a judgement on what they were told.
prove: tools
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
	cargo clippy --all-targets --features otel -- -D warnings
	RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --document-private-items
	$(MAKE) deny

# Licences, sources and bans of the dependencies.
deny:
	command -v cargo-deny >/dev/null || cargo install --locked cargo-deny
	cargo deny check bans licenses sources

# Ratios against peers in the same run.
bench: tools
	cargo bench --bench http

# The container image.
image:
	docker build -t lockkeeper .

# What a release publishes, for this machine's architecture: packages, list of parts, checksums.
dist:
	./deploy/dist

.PHONY: tools
tools:
	./tests/tools
