package image

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// redisMax bounds the records in Redis: fewer records are faster there, so the bound favours Redis.
const redisMax = 1_000_000

// redis is a server on a Unix socket without persistence, with a connection to it.
type redis struct {
	cmd    *exec.Cmd
	socket string
	conn   net.Conn
	in     *bufio.Reader
	out    *bufio.Writer
	// value is the buffer for answers.
	value []byte
}

// startRedis starts a server and waits until it accepts connections.
func startRedis(ctx context.Context, binary, dir string) (*redis, error) {
	s := &redis{socket: filepath.Join(dir, "redis.sock")}
	// Without persistence and with a Unix socket Redis is at its fastest.
	cmd := exec.CommandContext(ctx, binary, "--port", "0", "--unixsocket", s.socket, "--save", "", "--appendonly", "no",
		"--dir", dir, "--daemonize", "no", "--logfile", "/dev/null")
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		c, err := s.dial()
		if err == nil {
			c.cmd = cmd
			return c, nil
		}
		if time.Now().After(deadline) {
			s.cmd = cmd
			s.stop()
			return nil, err
		}
	}
}

// stop kills the server and removes nothing: the server persists nothing.
func (s *redis) stop() {
	if s.conn != nil {
		_ = s.conn.Close()
	}
	// The server keeps no data.
	_ = s.cmd.Process.Kill()
	_ = s.cmd.Wait()
}

// serverCPU returns the processor time of the server in ns. It reads schedstat, which counts in ns,
// where stat counts in ticks of 10 ms.
func (s *redis) serverCPU() (sum int64) {
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", s.cmd.Process.Pid))
	if err != nil {
		return 0
	}
	for _, f := range files {
		var n int64
		if b, err := os.ReadFile(f); err == nil {
			if _, err := fmt.Sscan(string(b), &n); err == nil {
				sum += n
			}
		}
	}
	return sum
}

// runPipelined sends n commands, depth at a time, and reads the answer to each.
func (s *redis) runPipelined(n, depth int, send func(i int), receive func() error) error {
	for i := 0; i < n; i += depth {
		last := min(i+depth, n)
		for j := i; j < last; j++ {
			send(j)
		}
		// One write carries the whole batch, which is what pipelining saves.
		if err := s.out.Flush(); err != nil {
			return err
		}
		for range last - i {
			if err := receive(); err != nil {
				return err
			}
		}
	}
	return nil
}

// writeCommand writes a command into the buffer of the connection.
func (s *redis) writeCommand(parts ...[]byte) {
	fmt.Fprintf(s.out, "*%d\r\n", len(parts))
	for _, p := range parts {
		fmt.Fprintf(s.out, "$%d\r\n", len(p))
		// Flush returns the error.
		_, _ = s.out.Write(p)
		_, _ = s.out.WriteString("\r\n")
	}
}

// readAnswer reads a bulk string or a status.
func (s *redis) readAnswer() error {
	line, err := s.in.ReadSlice('\n')
	if err != nil {
		return err
	}
	line = bytes.TrimSpace(line)
	switch line[0] {
	case '+':
		return nil
	case '$':
		n, err := strconv.Atoi(string(line[1:]))
		// A nil answer, a missing key, has length -1: every key must exist.
		if err != nil || n < 0 || n+2 > len(s.value) {
			return fmt.Errorf("redis: answer %q", line)
		}
		_, err = io.ReadFull(s.in, s.value[:n+2])
		return err
	}
	return fmt.Errorf("redis: answer %q", line)
}

// redisKey encodes a key in buf.
func redisKey(buf []byte, key uint64) []byte {
	for i := range 8 {
		buf[i] = byte(key >> (8 * i))
	}
	return buf[:8]
}

// fillRecords stores n records.
func (s *redis) fillRecords(n int) error {
	value := make([]byte, 100)
	var key [8]byte
	set := []byte("SET")
	return s.runPipelined(n, 256, func(i int) { s.writeCommand(set, redisKey(key[:], mixKey(uint64(i))), value) }, s.readAnswer)
}

// getRecords reads n records in shuffled order.
func (s *redis) getRecords(n, depth int, from, records uint64) error {
	var key [8]byte
	get := []byte("GET")
	return s.runPipelined(n, depth, func(i int) { s.writeCommand(get, redisKey(key[:], mixKey(shuffledIndex(from+uint64(i), records, 7)))) }, s.readAnswer)
}

// measureRedis compares reads by the processor time of the Redis server. The time of its clients is
// left out, which favours Redis.
func (r *run) measureRedis(ctx context.Context) error {
	binary := r.cfg.Redis
	if binary == "" {
		var err error
		if binary, err = exec.LookPath("redis-server"); err != nil {
			r.addNote("Redis was not compared: redis-server is not installed (Debian package redis-server)")
			return nil
		}
	}
	dir, err := os.MkdirTemp("", "rhumb-redis-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	s, err := startRedis(ctx, binary, dir)
	if err != nil {
		return err
	}
	defer s.stop()
	records := min(r.cfg.Records, redisMax)
	if err := s.fillRecords(records); err != nil {
		return err
	}
	n := r.turnSize(1)
	for range r.cfg.Rounds {
		for _, depth := range []int{1, 16, 128} {
			// A read takes Redis microseconds, so fewer of them fill a turn.
			gets := min(n, 100_000)
			if depth == 1 {
				// Without pipelining every read is a round trip between processes.
				gets /= 10
			}
			cpu, begin := s.serverCPU(), time.Now()
			if err := s.getRecords(gets, depth, r.next, uint64(records)); err != nil {
				return err
			}
			r.s.add(fmt.Sprintf("redis: get, %d pipelined, processor of the server", depth), "ns", float64(s.serverCPU()-cpu)/float64(gets))
			r.s.add(fmt.Sprintf("redis: get, %d pipelined, elapsed", depth), "ns", float64(time.Since(begin))/float64(gets))
		}
		if err := r.redisTurn(n); err != nil {
			return err
		}
	}
	r.addNote("Redis held %d records", records)
	return errors.Join(r.scaleRedis(s, redisSingle, 1, records), r.scaleRedis(s, redisPipelined, 16, records))
}

// The names of the Redis cases in the scale-up.
const (
	redisSingle    = "Redis, one by one"
	redisPipelined = "Redis, 16 pipelined"
)

// scaleRedis lets 1, 2, … clients query the one server at once.
func (r *run) scaleRedis(s *redis, name string, depth, records int) error {
	const gets = 20_000
	for clients := 1; clients <= r.cfg.Processes; clients++ {
		done := make(chan error, clients)
		begin := time.Now()
		for i := range clients {
			go func() {
				c, err := s.dial()
				if err == nil {
					err = errors.Join(c.getRecords(gets, depth, uint64(i*gets), uint64(records)), c.conn.Close())
				}
				done <- err
			}()
		}
		var err error
		for range clients {
			err = errors.Join(err, <-done)
		}
		if err != nil {
			return err
		}
		t := float64(time.Since(begin))
		r.report.Scale = append(r.report.Scale, Scale{Case: name, Processes: clients, Ops: float64(clients*gets) / t * 1e9, Latency: t / gets / 1e3})
	}
	return nil
}

// dial opens another connection to the server.
func (s *redis) dial() (*redis, error) {
	conn, err := net.Dial("unix", s.socket)
	if err != nil {
		return nil, err
	}
	return &redis{
		socket: s.socket, conn: conn, in: bufio.NewReaderSize(conn, 1<<16), out: bufio.NewWriterSize(conn, 1<<16), value: make([]byte, 256),
	}, nil
}

// redisTurn takes the turn of Rhumb in a round.
func (r *run) redisTurn(n int) error {
	if err := r.freshKeys([]turn{{worker: r.c, ops: n}}); err != nil {
		return err
	}
	for name, what := range map[string]string{"redis: C get": "get", "redis: C multiget ×32": "mget"} {
		got, err := r.c.do(what, n, 32)
		if err != nil {
			return err
		}
		if got.Found != got.Ops {
			return errors.New(strings.TrimPrefix(name, "redis: ") + ": a key is missing")
		}
		r.s.add(name, "ns", got.perOp())
	}
	return nil
}
