package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os/exec"
	"strconv"
	"strings"
	"syscall"

	"github.com/rhumbdb/rhumb/bench/load"
	"github.com/rhumbdb/rhumb/freeport"
)

// redis is a server with one connection for each caller, as redis-benchmark has them.
type redis struct {
	server *server
	addr   string
	// version is that of the program, which needs no connection to report it.
	version string
	conns   []*redisConn
	// idle holds the connections that no call uses: there are as many as callers.
	idle chan *redisConn
}

// redisConn is a connection with its buffers. Redis needs nothing of a client library here.
type redisConn struct {
	conn net.Conn
	in   *bufio.Reader
	out  []byte
}

// startRedis starts a server with an append-only file, which it syncs as the argument says.
func startRedis(ctx context.Context, args []string, dir string) (database, error) {
	if args[0] != "always" && args[0] != "everysec" {
		return nil, errors.New(usage)
	}
	binary, err := exec.LookPath("redis-server")
	if err != nil {
		return nil, &missing{"there is no redis-server", "install it with apt-get install redis-server"}
	}
	addrs, err := freeport.Take(1)
	if err != nil {
		return nil, err
	}
	// No snapshots in addition to the append-only file: they are another way to persist, not a safer one.
	cmd := exec.Command(binary, "--bind", "127.0.0.1", "--port", fmt.Sprint(portOf(addrs[0])), "--save", "", "--appendonly", "yes",
		"--appendfsync", args[0], "--dir", dir, "--daemonize", "no")
	r := &redis{addr: addrs[0]}
	if r.server, err = startServer(cmd, dir, "redis"); err != nil {
		return nil, err
	}
	// The first connection that opens is kept.
	err = r.server.await(ctx, func(context.Context) error {
		c, err := r.dial()
		if err != nil {
			return err
		}
		r.conns = append(r.conns, c)
		return nil
	})
	if err != nil {
		return nil, err
	}
	// A version that is not found stays empty, which the report shows.
	text, _ := exec.Command(binary, "--version").Output()
	for _, word := range strings.Fields(string(text)) {
		if v, ok := strings.CutPrefix(word, "v="); ok {
			r.version = v
		}
	}
	return r, nil
}

// dial opens a connection.
func (r *redis) dial() (*redisConn, error) {
	conn, err := net.Dial("tcp", r.addr)
	if err != nil {
		return nil, err
	}
	return &redisConn{conn: conn, in: bufio.NewReader(conn)}, nil
}

// describe leaves out scans: Redis keeps no order of keys.
func (r *redis) describe() load.Ready {
	ops := []load.Op{load.Put, load.Get}
	return load.Ready{Version: r.version, Ops: ops, Many: ops}
}

func (r *redis) processes() []int { return []int{r.server.pid()} }

// prepare opens a connection for each caller.
func (r *redis) prepare(_ context.Context, c load.Case) error {
	for len(r.conns) < max(c.Callers, fillersMax) {
		conn, err := r.dial()
		if err != nil {
			return err
		}
		r.conns = append(r.conns, conn)
	}
	r.idle = make(chan *redisConn, len(r.conns))
	for _, c := range r.conns {
		r.idle <- c
	}
	return nil
}

// fillersMax is the number of concurrent calls of load.Fill.
const fillersMax = 64

// call sends the commands of all keys in one write, and then reads the answers: a pipeline.
func (r *redis) call(_ context.Context, s load.Step) error {
	// There are as many connections as callers, so this never waits.
	c := <-r.idle
	defer func() { r.idle <- c }()
	c.out = c.out[:0]
	for i := range s.Keys {
		key := keyOf(s.Caller, s.Key+i)
		if s.Op == load.Put {
			c.command("SET", key, s.Value)
		} else {
			c.command("GET", key, nil)
		}
	}
	if _, err := c.conn.Write(c.out); err != nil {
		return err
	}
	absent := false
	for range s.Keys {
		found, err := c.readAnswer()
		if err != nil {
			return err
		}
		absent = absent || !found
	}
	if absent && s.Written {
		return load.ErrAbsent
	}
	return nil
}

// command appends a command to the buffer. A nil value is left out.
func (c *redisConn) command(name, key string, value []byte) {
	// An array of strings, each with its length.
	n := 3
	if value == nil {
		n = 2
	}
	c.out = fmt.Appendf(c.out, "*%d\r\n$%d\r\n%s\r\n$%d\r\n%s\r\n", n, len(name), name, len(key), key)
	if value != nil {
		c.out = strconv.AppendInt(append(c.out, '$'), int64(len(value)), 10)
		c.out = append(append(append(c.out, "\r\n"...), value...), "\r\n"...)
	}
}

// readAnswer reads an answer: a status, an error, or a value. It returns false if there is no value.
func (c *redisConn) readAnswer() (found bool, _ error) {
	line, err := c.in.ReadSlice('\n')
	if err != nil {
		return false, err
	}
	switch line[0] {
	case '+':
		return true, nil
	case '$':
		n, err := strconv.Atoi(string(line[1 : len(line)-2]))
		if err != nil || n < 0 {
			return false, err
		}
		// The value and the end of its line.
		_, err = io.CopyN(io.Discard, c.in, int64(n)+2)
		return true, err
	}
	return false, fmt.Errorf("redis answered %q", line)
}

func (r *redis) stop() {
	for _, c := range r.conns {
		_ = c.conn.Close()
	}
	r.server.stop(syscall.SIGKILL)
}
