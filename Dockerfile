# syntax=docker/dockerfile:1
# The service as an image: `docker build -t fanfare .` (BuildKit, which is Docker's default, for the cache mounts).
# tests/it/packaging.rs reads this file: sources, names of settings, ports and commands are checked there.

FROM rust:1.95.0-slim-trixie AS build
# aws-lc and SQLite are C; the compiler comes with the image. The certificates are for the image that runs.
RUN apt-get update \
    && apt-get install -y --no-install-recommends ca-certificates \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY Cargo.toml Cargo.lock build.rs ./
COPY config ./config
COPY migrations ./migrations
COPY src ./src
# The caches keep registry and target directory between builds, so that a changed line compiles one crate, not 300.
RUN --mount=type=cache,target=/usr/local/cargo/registry \
    --mount=type=cache,target=/src/target \
    cargo build --locked --release --bin fanfare \
    && install -D target/release/fanfare /out/fanfare \
    && install -d /out/data

FROM debian:trixie-slim AS run
ARG VERSION=0.1.0
LABEL org.opencontainers.image.title="fanfare" \
      org.opencontainers.image.description="Fans one match event out to every follower's phone through FCM HTTP v1" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="$VERSION"
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
COPY --from=build /out/fanfare /usr/local/bin/fanfare
# A number, so that Kubernetes can see that it is not root (runAsNonRoot). /data is all it may write to.
COPY --from=build --chown=65532:65532 /out/data /data
USER 65532:65532
WORKDIR /data
# PORT means every address, and platforms that choose the port set it anew. Health and metrics have no keys: publish 9090
# to nobody but probes and Prometheus.
ENV PORT=8080 \
    FANFARE__OPS__LISTEN=0.0.0.0:9090 \
    LOG_FORMAT=json
EXPOSE 8080 9090
# A drain takes up to drain.grace_ms, 30 s: let whoever stops the container wait longer (docker stop -t 45).
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s --retries=3 CMD ["fanfare", "healthcheck"]
ENTRYPOINT ["fanfare"]
CMD ["serve"]
