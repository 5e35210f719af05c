package image

import "testing"

func TestShuffledIsAPermutation(t *testing.T) {
	for _, n := range []uint64{1, 2, 3, 1000, 4096, 65537} {
		var orders [2][]uint64
		for seed := range orders {
			seen := make([]bool, n)
			for i := range n {
				x := shuffledIndex(i, n, uint64(seed))
				if x >= n || seen[x] {
					t.Fatalf("n %d, seed %d: position %d gives %d, which is too large or came before", n, seed, i, x)
				}
				seen[x] = true
				orders[seed] = append(orders[seed], x)
			}
		}
		same := 0
		for i := range orders[0] {
			if orders[0][i] == orders[1][i] {
				same++
			}
		}
		if n >= 1000 && same > int(n/50) {
			t.Errorf("n %d: two seeds agree in %d positions", n, same)
		}
	}
}
