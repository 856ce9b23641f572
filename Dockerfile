FROM rust:1.95-slim-bookworm AS build
WORKDIR /src
# The build of the allocator needs make, which the slim image lacks.
RUN apt-get update && apt-get install -y --no-install-recommends make && rm -rf /var/lib/apt/lists/*
COPY . .
RUN cargo build --release --locked --bin weir

# The same Debian release as the build stage, so that the C library is the one that Weir was linked against.
FROM debian:bookworm-slim

COPY --from=build /src/target/release/weir /usr/local/bin/weir
# Started as /bin/ratelimit, the path of envoyproxy/ratelimit in manifests of meshes, the binary acts as `weir rls`.
RUN ln -s /usr/local/bin/weir /bin/ratelimit
# System certificate authorities, which verify upstreams with `https://` and without `ca`.
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
COPY config/container.yaml /etc/weir/weir.yaml

# A number, because with runAsNonRoot Kubernetes does not start an image whose user is a name.
USER 65532:65532
EXPOSE 8080 9901 9902
ENTRYPOINT ["/usr/local/bin/weir"]
CMD ["run"]
