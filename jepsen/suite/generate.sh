#!/bin/sh
# Generates the Java of the API into target/proto. The plugin for gRPC comes from Maven.
set -eu
cd "$(dirname "$0")"
command -v protoc >/dev/null || { echo "protoc is missing; install the Debian package protobuf-compiler" >&2; exit 1; }
command -v mvn >/dev/null || { echo "mvn is missing; install the Debian package maven" >&2; exit 1; }
mkdir -p target/proto
mvn -q -B dependency:copy -Dartifact=io.grpc:protoc-gen-grpc-java:1.68.1:exe:linux-x86_64 -DoutputDirectory=target
plugin=target/protoc-gen-grpc-java-1.68.1-linux-x86_64.exe
chmod +x "$plugin"
protoc -I ../.. --java_out=target/proto --plugin=protoc-gen-grpc-java="$plugin" --grpc-java_out=target/proto ../../api/*.proto
