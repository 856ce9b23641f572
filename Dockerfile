FROM rust:1.95-slim-bookworm AS build
WORKDIR /src
# The allocator is built by its own makefile, which the slim image has no make for.
RUN apt-get update && apt-get install -y --no-install-recommends make && rm -rf /var/lib/apt/lists/*
COPY . .
RUN cargo build --release --locked --bin weir

# The same Debian release as the builder, so that the C library is the one Weir was linked against.
FROM debian:bookworm-slim

COPY --from=build /src/target/release/weir /usr/local/bin/weir
# Under the name of envoyproxy/ratelimit it is `weir rls`: manifests of meshes run this path.
RUN ln -s /usr/local/bin/weir /bin/ratelimit
# Whom upstreams with `https://` and no `ca` are verified by.
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
COPY config/container.yaml /etc/weir/weir.yaml

# By number: Kubernetes cannot tell from a name that a user is not root, and refuses to start it.
USER 65532:65532
EXPOSE 8080 9901 9902
ENTRYPOINT ["/usr/local/bin/weir"]
CMD ["run"]
