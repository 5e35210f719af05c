package client

import (
	"sync"
	"time"
)

// retryFloor is how many retries a second the budget allows even if nothing succeeds, so that a
// lone caller outlasts a long outage.
const retryFloor = 10

// budget is the retry budget of a client: a bucket of tokens (Config.RetryBurst).
type budget struct {
	capacity, ratio float64

	mu     sync.Mutex // guards the two below
	tokens float64
	filled time.Time // when the tokens of retryFloor were last added
}

func newBudget(capacity int, ratio float64) *budget {
	return &budget{capacity: float64(capacity), ratio: ratio, tokens: float64(capacity), filled: time.Now()}
}

// takeToken reports whether a retry may be made, and takes its token.
func (b *budget) takeToken() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	// The floor is added here rather than by a timer: only a retry needs it.
	now := time.Now()
	b.tokens = min(b.capacity, b.tokens+retryFloor*now.Sub(b.filled).Seconds())
	b.filled = now
	if b.tokens < 1 {
		return false
	}
	b.tokens--
	return true
}

// payIn adds the share of a call that succeeded.
func (b *budget) payIn() {
	b.mu.Lock()
	b.tokens = min(b.capacity, b.tokens+b.ratio)
	b.mu.Unlock()
}
