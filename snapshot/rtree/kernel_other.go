//go:build !amd64 && !arm64

package rtree

func availableKernels() []kernels { return []kernels{portable} }
