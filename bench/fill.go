package bench

import (
	"context"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/client"
)

// Constants of filling tables.
const (
	// fillBatch is the number of records in a call, and fillBytes bounds the bytes of their values.
	fillBatch = 256
	fillBytes = 8 << 20
	// fillCallers bounds the callers: more only wait in line with their large calls. fillBackoff is how long one waits after a
	// call that failed.
	fillCallers = 8
	fillBackoff = 200 * time.Millisecond
)

// ValueBytesMax bounds the values of benchmarks.
const ValueBytesMax = 1 << 20

// writeBatch writes n records of random bytes, which do not compress, with as few calls as fillBytes allows.
func writeBatch(ctx context.Context, c *client.Client, t *client.Table, rng *rand.ChaCha8, n int64, valueBytes int, nameOf func(i int64) []byte) error {
	most := max(fillBytes/valueBytes, 1)
	for done := int64(0); done < n; {
		mutations := make([]rhumb.Mutation, min(n-done, int64(most)))
		for i := range mutations {
			value := make([]byte, valueBytes)
			_, _ = rng.Read(value) // never fails
			mutations[i] = rhumb.Mutation{Kind: rhumb.Put, Table: t.Info().ID, Name: nameOf(done + int64(i)), Value: rhumb.EncodeOpaque(nil, value)}
		}
		if err := writeCall(ctx, c, mutations); err != nil {
			return err
		}
		done += int64(len(mutations))
	}
	return nil
}

// writeCall writes records with one call. A filling is not measured, so a call for which the nodes have no room or no time is repeated as
// a whole.
func writeCall(ctx context.Context, c *client.Client, mutations []rhumb.Mutation) error {
	for deadline := time.Now().Add(settleMax); ; {
		_, err := c.WriteMany(ctx, mutations, client.BatchOptions{})
		switch rhumb.KindOf(err) {
		case rhumb.Overloaded, rhumb.Unavailable, rhumb.NotPrimary, rhumb.Unknown, rhumb.DeadlineExceeded:
			// A put that was applied already is the same when it is repeated.
		default:
			return err
		}
		if time.Now().After(deadline) || pauseFor(ctx, fillBackoff) != nil {
			return err
		}
	}
}

// fillTable writes records until a table has about a number of bytes.
func fillTable(ctx context.Context, c *client.Client, t *client.Table, bytes int64, valueBytes int) error {
	calls := bytes / int64(valueBytes) / fillBatch
	errs := make([]error, fillCallers)
	var work sync.WaitGroup
	for i := range errs {
		work.Go(func() {
			rng := rand.NewChaCha8([32]byte{byte(i)})
			// Each filler takes every eighth call.
			for call := int64(i); call <= calls && errs[i] == nil; call += fillCallers {
				errs[i] = writeBatch(ctx, c, t, rng, fillBatch, valueBytes, func(n int64) []byte { return fmt.Appendf(nil, "f%012d", call*fillBatch+n) })
			}
		})
	}
	work.Wait()
	for _, err := range errs {
		if err != nil {
			return fmt.Errorf("fill the table: %w", err)
		}
	}
	return nil
}

// hasRoom refuses a run that would fill the disk: nodes would refuse writes, and other programs suffer too.
func hasRoom(dir string, needed int64) error {
	var s syscall.Statfs_t
	if err := syscall.Statfs(dir, &s); err != nil {
		return fmt.Errorf("free space of %s: %w", dir, err)
	}
	if free := int64(s.Bavail) * int64(s.Bsize); free < needed {
		return rhumb.Ef("bench.hasRoom", rhumb.InvalidArgument, "%s has %d MiB free, and the run may need %d MiB", dir, free>>20, needed>>20)
	}
	return nil
}

// diskBytes returns the space that the files below a directory take. Files that vanish meanwhile do not count.
func diskBytes(dir string) (sum int64, err error) {
	err = filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return nil //nolint:nilerr // compaction removes files all the time
		}
		info, err := d.Info()
		if err != nil {
			return nil //nolint:nilerr // as above
		}
		// Blocks, not the length: logs are preallocated or sparse.
		if st, ok := info.Sys().(*syscall.Stat_t); ok {
			sum += st.Blocks * 512
		}
		return nil
	})
	return sum, err
}
