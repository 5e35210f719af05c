package client

import (
	"sync"
	"time"
)

// retryFloor is how many retries a second the budget allows however little succeeds, so that a lone caller outlasts a
// long outage.
const retryFloor = 10

// budget is the retry budget of a client: a bucket of tokens (Config.RetryBurst).
type budget struct {
	most, ratio float64

	mu     sync.Mutex // guards the two below
	tokens float64
	filled time.Time // when the floor was last paid in
}

func newBudget(most int, ratio float64) *budget {
	return &budget{most: float64(most), ratio: ratio, tokens: float64(most), filled: time.Now()}
}

// take reports whether a retry may be made, and takes its token.
func (b *budget) take() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := time.Now()
	b.tokens = min(b.most, b.tokens+retryFloor*now.Sub(b.filled).Seconds())
	b.filled = now
	if b.tokens < 1 {
		return false
	}
	b.tokens--
	return true
}

// refund pays in for a call that succeeded. It costs nothing while the bucket is full, as it is in good times.
func (b *budget) refund() {
	b.mu.Lock()
	b.tokens = min(b.most, b.tokens+b.ratio)
	b.mu.Unlock()
}
