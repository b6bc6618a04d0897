# The very commands that the README and CI use.

.PHONY: run test prove check deny bench image

# Serves locks on the embedded store, on http://127.0.0.1:8080; needs only a Rust toolchain.
run:
	cargo run --release -- serve

# Everything that can fail, with the servers that it needs; on Debian it installs what is missing.
test: tools
	cargo test --workspace --all-targets -- --test-threads=4
	cargo test --workspace --doc

# Clients against all stores while things fail, for PROVE_SECONDS, and a judgement on what they were told.
prove: tools
	cargo build --release --bin lockkeeper
	cargo run --release -p prove

# The style and the rules that need no server.
check:
	cargo fmt --all --check
	cargo clippy --workspace --all-targets -- -D warnings
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

.PHONY: tools
tools:
	./tests/tools
