package image

import (
	"fmt"
	"os"
	"runtime"
	"strings"
	"time"
)

// Config says what to measure.
type Config struct {
	// Records is the number of road segments; 4,000,000 when 0.
	Records int
	// Shards is how many shards the image has, a power of two; 0 leaves it to the publisher.
	Shards int
	// Rounds is how often each turn is taken, 5 when 0. Ratios are medians over them.
	Rounds int
	// Ops is the operations of one turn, at most; 1,000,000 when 0. Slower counterparts take smaller turns.
	Ops int
	// Seed makes the roads and the orders of keys.
	Seed uint64
	// Dir is a folder on a memory file system. Empty mounts one with huge pages where that is allowed, and uses /dev/shm
	// elsewhere.
	Dir string
	// Worker is the C program, built of c/worker.c.
	Worker string
	// Self is the command that runs Serve; arguments are added.
	Self []string
	// Redis is the Redis server; empty looks for redis-server and does without when there is none.
	Redis string
	// LMDB says that Worker was built with LMDB.
	LMDB bool
	// Processes is the greatest number of clients for the scale-up; 0 takes the processors.
	Processes int
	// Pairs is how long pairs are read while a writer changes them, 5 s when 0.
	Pairs time.Duration
	// Samples is how many changes are followed to another process, 2000 when 0.
	Samples int
	// Only names the sections to run, all when empty: see Sections.
	Only []string
	// Progress hears of every section.
	Progress func(text string)
}

func (c Config) filled() Config {
	setDefault(&c.Records, 4_000_000)
	setDefault(&c.Rounds, 5)
	setDefault(&c.Ops, 1_000_000)
	setDefault(&c.Processes, runtime.NumCPU())
	setDefault(&c.Pairs, 5*time.Second)
	setDefault(&c.Samples, 2000)
	if c.Progress == nil {
		c.Progress = func(string) {}
	}
	return c
}

func setDefault[T int | time.Duration](v *T, d T) {
	if *v == 0 {
		*v = d
	}
}

// bytesPerRecord is the memory that an image needs for each record at the default append ratio, sections of the index and
// the R-tree included, and what the roll of a shard and the counterparts need on top.
const bytesPerRecord = 210

// checkMemory refuses a run that does not fit.
func (c *Config) checkMemory() error {
	need := int64(c.Records)*bytesPerRecord*2 + 512<<20 // the image, and at most as much again for a counterpart
	var free int64
	b, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(b)) {
		if _, err := fmt.Sscanf(line, "MemAvailable: %d kB", &free); err == nil {
			break
		}
	}
	if free <<= 10; free < need {
		return fmt.Errorf("%d records need about %.1f GiB of memory and %.1f are free; take fewer with --records, or the full 40,000,000 on a machine with 18",
			c.Records, float64(need)/(1<<30), float64(free)/(1<<30))
	}
	return nil
}
