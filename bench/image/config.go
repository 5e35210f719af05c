package image

import (
	"fmt"
	"os"
	"runtime"
	"strings"
	"time"
)

// Config selects what Run measures.
type Config struct {
	// Records is the number of road segments, by default 4,000,000.
	Records int
	// Shards is the number of shards of the image, a power of two. If it is 0, the publisher
	// decides.
	Shards int
	// Rounds is the number of turns of each case, by default 5. Ratios are medians over the rounds.
	Rounds int
	// Ops is the greatest number of operations in one turn, by default 1,000,000. Slower
	// counterparts take smaller turns.
	Ops int
	// Seed determines the roads and the orders of keys.
	Seed uint64
	// Dir is a directory on a file system in memory. If it is empty, Run mounts one with huge pages
	// if it may, and otherwise uses /dev/shm.
	Dir string
	// Worker is the C program, built from c/worker.c.
	Worker string
	// Self is the command that runs Serve; Run appends the arguments.
	Self []string
	// Redis is the Redis server. If it is empty, Run looks for redis-server and continues without
	// Redis if there is none.
	Redis string
	// LMDB is set if Worker was built with LMDB.
	LMDB bool
	// Processes is the greatest number of clients for the scale-up, by default the number of
	// processors.
	Processes int
	// Pairs is how long pairs are read while a writer changes them, by default 5 s.
	Pairs time.Duration
	// Samples is the number of changes that are followed to another process, by default 2000.
	Samples int
	// Only names the sections to run (see Sections). If it is empty, all sections run.
	Only []string
	// Progress receives a line about each section.
	Progress func(text string)
}

// withDefaults returns the configuration with defaults in the zero fields.
func (c Config) withDefaults() Config {
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

// setDefault sets a zero value to d.
func setDefault[T int | time.Duration](v *T, d T) {
	if *v == 0 {
		*v = d
	}
}

// bytesPerRecord is the memory of an image per record at the default append ratio, including the
// index sections and the R-tree, and the additional memory for rolling a shard and for the
// counterparts.
const bytesPerRecord = 210

// checkMemory returns an error if the run does not fit into memory.
func (c *Config) checkMemory() error {
	// The image, and at most as much again for a counterpart.
	need := int64(c.Records)*bytesPerRecord*2 + 512<<20
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
		return fmt.Errorf("%d records need about %.1f GiB of memory, but only %.1f GiB are free; reduce --records (40,000,000 records need 18 GiB)",
			c.Records, float64(need)/(1<<30), float64(free)/(1<<30))
	}
	return nil
}
