# The service as an image: one static program, the certificates with which it
# checks a database's, and no shell. `docker compose up` builds it.

FROM golang:1.26 AS build
WORKDIR /src
# The modules are downloaded again when go.mod or go.sum change, and not when a
# source file does. Where BuildKit keeps its cache, only what is new is.
COPY go.mod go.sum ./
RUN --mount=type=cache,target=/go/pkg/mod go mod download
COPY . .
ARG VERSION=dev
RUN --mount=type=cache,target=/go/pkg/mod \
    --mount=type=cache,target=/root/.cache/go-build \
    CGO_ENABLED=0 go build -trimpath -buildvcs=false -ldflags "-s -w -X main.version=$VERSION" -o /out/api ./cmd/api

FROM scratch
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
COPY --from=build /out/api /api
# A number, so that an engine told to start nothing as root can tell; nonroot in
# distroless images.
USER 65532:65532
# Inside a container the loopback address is reached by nobody else.
ENV API_ADDR=0.0.0.0:8080
EXPOSE 8080
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=5s --timeout=3s --start-period=10s --retries=3 CMD ["/api", "healthcheck"]
ENTRYPOINT ["/api"]
