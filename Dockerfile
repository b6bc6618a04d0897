# syntax=docker/dockerfile:1
# The service alone: no shell, no package manager, a user without rights, a directory for leases.

FROM rust:1-slim-bookworm AS build
WORKDIR /build
COPY . .
# The caches keep crates and dependencies over builds; the image does not get them. The C compiler
# that mimalloc and ring need is in this stage's image already.
RUN --mount=type=cache,target=/usr/local/cargo/registry \
    --mount=type=cache,target=/build/target \
    cargo build --release --locked --bin lockkeeper \
    && install -D --strip target/release/lockkeeper /image/usr/local/bin/lockkeeper \
    && install -d -m 0700 -o 65532 -g 65532 /image/var/lib/lockkeeper

# Distroless rather than bookworm-slim: glibc and the system's certificates are all that the binary
# needs, and what is not there needs no patches. Its glibc is that of the stage above.
FROM gcr.io/distroless/cc-debian12:nonroot
LABEL org.opencontainers.image.title="lockkeeper" \
      org.opencontainers.image.description="A distributed lock service over HTTP" \
      org.opencontainers.image.licenses="MIT OR Apache-2.0"
COPY --from=build /image/usr/local/bin/lockkeeper /usr/local/bin/lockkeeper
COPY --from=build --chown=65532:65532 /image/var/lib/lockkeeper /var/lib/lockkeeper

# From outside of a container only this address can be reached. So the service refuses to start
# until it is given [[api_keys]], or LOCKKEEPER_ALLOW_ANONYMOUS=true by whoever runs it.
ENV LOCKKEEPER_LISTEN=0.0.0.0:8080 \
    LOCKKEEPER_STORE=embedded:/var/lib/lockkeeper
VOLUME /var/lib/lockkeeper
EXPOSE 8080
USER 65532:65532
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=10s --retries=3 \
    CMD ["/usr/local/bin/lockkeeper", "healthcheck"]
ENTRYPOINT ["/usr/local/bin/lockkeeper"]
CMD ["serve"]
