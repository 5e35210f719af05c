//go:build !amd64 && !arm64

package rtree

func available() []kernels { return []kernels{portable} }
