#!/bin/sh
# Generates api/rhumbpb from api/*.proto. Links of clients (package api/link) encode the messages of requests and answers with code
# of vtprotobuf, which uses no reflection; only these messages have it. The plugins are those of tools.mod; protoc only parses, and its version is cut
# from the output, so that any recent protoc gives the same files.
set -eu
cd "$(dirname "$0")/.."
command -v protoc >/dev/null || { echo "protoc is missing; install the Debian package protobuf-compiler" >&2; exit 1; }
bin=$(mktemp -d)
trap 'rm -rf "$bin"' EXIT
go build -modfile=tools.mod -o "$bin/" \
	google.golang.org/protobuf/cmd/protoc-gen-go google.golang.org/grpc/cmd/protoc-gen-go-grpc \
	github.com/planetscale/vtprotobuf/cmd/protoc-gen-go-vtproto
rm -f api/rhumbpb/*.pb.go
protoc -I . \
	--plugin=protoc-gen-go="$bin/protoc-gen-go" --go_out=. --go_opt=module=github.com/rhumbdb/rhumb \
	--plugin=protoc-gen-go-grpc="$bin/protoc-gen-go-grpc" --go-grpc_out=. --go-grpc_opt=module=github.com/rhumbdb/rhumb \
	api/*.proto
protoc -I . \
	--plugin=protoc-gen-go-vtproto="$bin/protoc-gen-go-vtproto" --go-vtproto_out=. \
	--go-vtproto_opt=module=github.com/rhumbdb/rhumb,features=marshal+unmarshal+unmarshal_unsafe+size \
	api/kv.proto api/errors.proto api/meta.proto
sed -i -E '/^\/\/[[:space:]-]+protoc +v[0-9.]+$/d' api/rhumbpb/*.pb.go
