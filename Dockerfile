# syntax=docker/dockerfile:1
#
# One image for amd64 and arm64, without a shell or a package manager:
#
#   docker buildx build --platform linux/amd64,linux/arm64 --sbom=true --tag weir --build-arg REVISION=$(git rev-parse HEAD) .
#
# The compiler always runs on the platform of the builder and cross-compiles, because emulation is ten times slower. The software bill of
# materials (CycloneDX) is in the image at /usr/share/sbom/weir.cdx.json; `--target sbom --output .` writes only that file.

FROM --platform=$BUILDPLATFORM rust:1.95-slim-bookworm AS tools
ARG TARGETARCH
WORKDIR /src
# make builds the allocator. The compilers for both platforms are installed on either.
RUN apt-get update \
    && apt-get install -y --no-install-recommends make libc6-dev crossbuild-essential-$TARGETARCH \
    && rm -rf /var/lib/apt/lists/*
# Kernels for arm64 have pages of 4, 16 or 64 KiB. jemalloc works with pages up to the size that it was built for, here 64 KiB.
RUN <<SCRIPT
set -eu
case $TARGETARCH in
    amd64) cpu=x86_64 page_bits=12 ;;
    arm64) cpu=aarch64 page_bits=16 ;;
    *) echo "unsupported platform $TARGETARCH" >&2; exit 1 ;;
esac
rustup target add $cpu-unknown-linux-gnu
echo $cpu-unknown-linux-gnu > /target
cat > /usr/local/cargo/config.toml <<CONFIG
[build]
target = "$cpu-unknown-linux-gnu"
[target.$cpu-unknown-linux-gnu]
linker = "$cpu-linux-gnu-gcc"
# A megabyte less, with the C library that is in the image (glibc 2.36).
rustflags = ["-Clink-arg=-Wl,-z,pack-relative-relocs"]
[env]
JEMALLOC_SYS_WITH_LG_PAGE = "$page_bits"
CONFIG
SCRIPT

# The manifests, with empty crates. That of the program has no tests and benchmarks, whose files are not in the context (.dockerignore);
# cargo reads the manifest of the others, too.
FROM tools AS manifest
COPY Cargo.toml Cargo.lock ./
COPY .cargo .cargo
COPY tests/Cargo.toml tests/
COPY crates crates
RUN sed -i -e '/^\[\[test\]\]/,/^$/d' -e '/^\[\[bench\]\]/,/^$/d' Cargo.toml \
    && for crate in crates/*; do \
        find $crate -mindepth 1 -maxdepth 1 -not -name Cargo.toml -exec rm -r {} + && mkdir $crate/src && touch $crate/src/lib.rs; \
    done

# The dependencies alone, in a layer that changes only with the manifest and the lock file.
FROM tools AS dependencies
COPY --from=manifest /src ./
RUN mkdir src && echo 'fn main() {}' > src/main.rs && touch src/lib.rs \
    && cargo build --profile dist --features jemalloc --locked --bin weir

# What the program does under load, by which it is optimised. A profile belongs to a platform, so that of the builder has no effect on an
# image for another platform.
FROM tools AS profile
COPY --from=manifest /src ./
RUN apt-get update \
    && apt-get install -y --no-install-recommends nghttp2-client openssl python3 wrk \
    && rm -rf /var/lib/apt/lists/* \
    && rustup component add llvm-tools
COPY crates crates
COPY src src
COPY benches benches
RUN python3 benches/pgo.py profile --target "$(rustc --print host-tuple)" --profile /weir.profdata

FROM dependencies AS build
COPY --from=profile /src/benches/pgo benches/pgo
COPY --from=profile /weir.profdata /weir.profdata
COPY crates crates
COPY src src
# Newer than the empty files of the layer before, whatever the times in the checkout.
RUN find crates src -name '*.rs' -exec touch {} + \
    && export RUSTC_WRAPPER=/src/benches/pgo/rustc WEIR_RUSTC_FLAG=-Cprofile-use=/weir.profdata \
    # Cargo does not know that these were compiled without the profile.
    && cargo clean --profile dist $(benches/pgo/rustc --crates | sed 's/[^ ]*/--package=&/g') \
    && cargo build --profile dist --features jemalloc --locked --bin weir \
    && install -D target/*-unknown-linux-gnu/dist/weir /image/usr/local/bin/weir \
    && install -D target/*-unknown-linux-gnu/dist/weir /symbols/weir \
    && $(sed 's/-.*//' /target)-linux-gnu-strip /image/usr/local/bin/weir
# Started as /bin/ratelimit, the path of envoyproxy/ratelimit in manifests of meshes, the binary acts as `weir rls`.
RUN mkdir /image/bin && ln -s /usr/local/bin/weir /image/bin/ratelimit

# The program with its symbols, for profilers and debuggers: `--target symbols --output .`.
FROM scratch AS symbols
COPY --from=build /symbols/weir /weir

# What the binary of the image was built from: with its features, and for its platform instead of the builder's.
FROM tools AS bill-of-materials
RUN cargo install --locked --target "$(rustc --print host-tuple)" cargo-cyclonedx@0.5.9
COPY --from=manifest /src ./
COPY src src
RUN cargo cyclonedx --format json --features jemalloc --target "$(cat /target)" --override-filename weir.cdx

FROM scratch AS sbom
COPY --from=bill-of-materials /src/weir.cdx.json /weir.cdx.json

# The C library of the Debian release that Weir was linked against, for the platform of the image.
FROM debian:bookworm-slim AS libraries

FROM scratch
# Version of the crate, commit, and URL of the repository: set them with --build-arg.
ARG VERSION=0.1.0
ARG REVISION=unknown
ARG SOURCE=unknown
LABEL org.opencontainers.image.title="Weir" \
      org.opencontainers.image.description="A rate-limiting reverse proxy that runs beside one service" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="$VERSION" \
      org.opencontainers.image.revision="$REVISION" \
      org.opencontainers.image.source="$SOURCE"
# The dynamic linker has another path on each platform; both get it.
COPY --from=libraries /lib/*-linux-gnu/ld-linux-*.so.* /lib/
COPY --from=libraries /lib/*-linux-gnu/ld-linux-*.so.* /lib64/
COPY --from=libraries /lib/*-linux-gnu/libc.so.6 /lib/*-linux-gnu/libm.so.6 /lib/*-linux-gnu/libgcc_s.so.1 /lib/
# Host names come from /etc/hosts first, then from DNS.
COPY --from=libraries /etc/nsswitch.conf /etc/nsswitch.conf
# System certificate authorities, which verify upstreams with `https://` and without `ca`.
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
COPY --from=build /image /
COPY --from=bill-of-materials /src/weir.cdx.json /usr/share/sbom/weir.cdx.json
COPY config/container.yaml /etc/weir/weir.yaml

# A number, because with runAsNonRoot Kubernetes does not start an image whose user is a name.
USER 65532:65532
EXPOSE 8080 9901 9902
ENTRYPOINT ["/usr/local/bin/weir"]
CMD ["run"]
