package rtree

func available() []kernels { return []kernels{portable} }
