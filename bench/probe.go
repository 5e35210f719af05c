package bench

import (
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"time"
)

// probeBytes is how much a probe writes or sends, in blocks of probeBlock.
const (
	probeBytes = 256 << 20
	probeBlock = 1 << 20
)

// probeDisk returns how many bytes a second a file in a directory takes, with a sync at the end.
func probeDisk(dir string) (float64, error) {
	f, err := os.Create(filepath.Join(dir, "disk-probe"))
	if err != nil {
		return 0, err
	}
	defer func() {
		_ = f.Close()
		_ = os.Remove(f.Name())
	}()
	block := make([]byte, probeBlock)
	for i := range block {
		block[i] = byte(i * 7) // some file systems store zeros as holes
	}
	begin := time.Now()
	for range probeBytes / probeBlock {
		if _, err := f.Write(block); err != nil {
			return 0, fmt.Errorf("measure the disk: %w", err)
		}
	}
	if err := f.Sync(); err != nil {
		return 0, fmt.Errorf("measure the disk: %w", err)
	}
	return probeBytes / time.Since(begin).Seconds(), nil
}

// probeLink returns how many bytes a second one TCP connection of this machine to itself carries. The nodes under measurement use such
// connections.
func probeLink() (float64, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer func() { _ = l.Close() }()
	go func() {
		conn, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			_ = l.Close() // ends Accept
			return
		}
		defer func() { _ = conn.Close() }()
		block := make([]byte, probeBlock)
		for range probeBytes / probeBlock {
			if _, err := conn.Write(block); err != nil {
				return // the reader sees too few bytes
			}
		}
	}()
	conn, err := l.Accept()
	if err != nil {
		return 0, fmt.Errorf("measure the link: %w", err)
	}
	defer func() { _ = conn.Close() }()
	begin := time.Now()
	n, err := io.Copy(io.Discard, conn)
	if err != nil || n != probeBytes {
		return 0, fmt.Errorf("measure the link: %d bytes arrived: %w", n, err)
	}
	return float64(n) / time.Since(begin).Seconds(), nil
}
