# syntax=docker/dockerfile:1
# Only the service: no shell, no package manager, an unprivileged user, a directory for leases.

# The release workflow sets both by digest.
ARG BUILD_IMAGE=rust:1-slim-bookworm
ARG RUN_IMAGE=gcr.io/distroless/static-debian12:nonroot

# On the builder's own machine, also for the other one.
FROM --platform=$BUILDPLATFORM ${BUILD_IMAGE} AS build
RUN apt-get update && apt-get install -y --no-install-recommends python3-venv
WORKDIR /build
COPY . .
ARG TARGETARCH
# The caches keep crates and dependencies between builds, outside of the image.
RUN --mount=type=cache,target=/usr/local/cargo/registry \
    --mount=type=cache,target=/build/target,sharing=locked \
    deploy/musl \
    && deploy/static-binary /image/usr/local/bin/lockkeeper $TARGETARCH \
    && install -d -m 0700 -o 65532 -g 65532 /image/var/lib/lockkeeper

# The binary needs no library, only the system's certificates and /tmp, which "scratch" lacks.
FROM ${RUN_IMAGE}
LABEL org.opencontainers.image.title="lockkeeper" \
      org.opencontainers.image.description="A distributed lock service over HTTP" \
      org.opencontainers.image.licenses="MIT OR Apache-2.0"
COPY --from=build /image/usr/local/bin/lockkeeper /usr/local/bin/lockkeeper
COPY vendor/scalar/LICENSES.txt /usr/share/doc/lockkeeper/scalar/
COPY --from=build --chown=65532:65532 /image/var/lib/lockkeeper /var/lib/lockkeeper

# Only this address can be reached from outside of a container, so the service refuses to start
# without [[api_keys]], or LOCKKEEPER_ALLOW_ANONYMOUS=true and LOCKKEEPER_ALLOWED_HOSTS.
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
