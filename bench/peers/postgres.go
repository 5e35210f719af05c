package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/jackc/pgx/v5"
	"github.com/rhumbdb/rhumb/bench/load"
	"github.com/rhumbdb/rhumb/freeport"
)

// postgres is a server with one connection for each caller.
type postgres struct {
	server *server
	// config has the address and the user.
	config  *pgx.ConnConfig
	version string // from the server
	conns   []*pgx.Conn
	// idle holds the connections that no call uses: there are as many as callers.
	idle chan *pgx.Conn
}

// postgresConns bounds the connections, and with them the callers of a case.
const postgresConns = 600

const installPostgres = "install it with apt-get install postgresql"

// startPostgres makes a data directory and starts a server with its defaults, which sync every commit.
func startPostgres(ctx context.Context, _ []string, dir string) (database, error) {
	bin, err := postgresBin()
	if err != nil {
		return nil, err
	}
	identity, err := postgresUser()
	if err != nil {
		return nil, err
	}
	data := filepath.Join(dir, "data")
	if err := os.Mkdir(data, 0o700); err != nil {
		return nil, err
	}
	if identity != nil {
		if err := os.Chown(data, int(identity.Uid), int(identity.Gid)); err != nil {
			return nil, err
		}
	}
	// Without a password: the server listens on loopback for as long as the measurement takes.
	init := exec.Command(filepath.Join(bin, "initdb"), "-D", data, "-U", "bench", "-A", "trust", "-E", "UTF8", "--locale=C")
	init.Dir, init.SysProcAttr = data, &syscall.SysProcAttr{Credential: identity}
	if text, err := init.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("initdb: %w: %s", err, text)
	}
	addrs, err := freeport.Take(1)
	if err != nil {
		return nil, err
	}
	// fsync and synchronous_commit are on by default. The other settings allow
	// the memory that the other databases have, and keep checkpoints out of short measurements.
	cmd := exec.Command(filepath.Join(bin, "postgres"), "-D", data, "-h", "127.0.0.1", "-p", fmt.Sprint(portOf(addrs[0])), "-k", "",
		"-c", fmt.Sprintf("max_connections=%d", postgresConns+10), "-c", "shared_buffers=512MB", "-c", "max_wal_size=4GB")
	cmd.Dir, cmd.SysProcAttr = data, &syscall.SysProcAttr{Credential: identity}
	p := &postgres{}
	if p.config, err = pgx.ParseConfig("postgres://bench@" + addrs[0] + "/postgres?sslmode=disable"); err != nil {
		return nil, err
	}
	if p.server, err = startServer(cmd, dir, "postgres"); err != nil {
		return nil, err
	}
	if err := p.server.await(ctx, p.createTable); err != nil {
		return nil, err
	}
	return p, nil
}

// postgresBin returns the directory with the programs of the server. Debian keeps it out of the path.
func postgresBin() (string, error) {
	dirs, _ := filepath.Glob("/usr/lib/postgresql/*/bin")
	if path, err := exec.LookPath("postgres"); err == nil {
		if path, err = filepath.EvalSymlinks(path); err == nil {
			dirs = append(dirs, filepath.Dir(path))
		}
	}
	// The newest version is the last.
	for _, dir := range slices.Backward(dirs) {
		if _, err := os.Stat(filepath.Join(dir, "initdb")); err == nil {
			return dir, nil
		}
	}
	return "", &missing{"there is no PostgreSQL server", installPostgres}
}

// postgresUser returns the user that runs the server if this process is root, which the server
// refuses; otherwise nil.
func postgresUser() (*syscall.Credential, error) {
	if os.Geteuid() != 0 {
		return nil, nil
	}
	u, err := user.Lookup("postgres")
	if err != nil {
		return nil, &missing{"root may not run PostgreSQL, and there is no user postgres", installPostgres}
	}
	uid, err := strconv.ParseUint(u.Uid, 10, 32)
	if err != nil {
		return nil, err
	}
	gid, err := strconv.ParseUint(u.Gid, 10, 32)
	return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, err
}

// createTable opens the first connection and creates the table.
func (p *postgres) createTable(ctx context.Context) error {
	c, err := p.dial(ctx)
	if err != nil {
		return err
	}
	p.conns = append(p.conns, c)
	if err := c.QueryRow(ctx, "SHOW server_version").Scan(&p.version); err != nil {
		return err
	}
	// Distributions add their own version after a space.
	p.version, _, _ = strings.Cut(p.version, " ")
	return nil
}

// dial opens a connection and prepares its statements.
func (p *postgres) dial(ctx context.Context) (*pgx.Conn, error) {
	// A connection and not a pool: each caller has one, and no lock lies between.
	c, err := pgx.ConnectConfig(ctx, p.config)
	if err != nil {
		return nil, err
	}
	if _, err := c.Exec(ctx, "CREATE TABLE IF NOT EXISTS bench (k text PRIMARY KEY, v bytea)"); err != nil {
		return nil, errors.Join(err, c.Close(ctx))
	}
	for name, text := range map[string]string{
		"put":  "INSERT INTO bench VALUES ($1, $2) ON CONFLICT (k) DO UPDATE SET v = excluded.v",
		"get":  "SELECT v FROM bench WHERE k = $1",
		"scan": "SELECT k, v FROM bench WHERE k >= $1 ORDER BY k LIMIT $2",
	} {
		if _, err := c.Prepare(ctx, name, text); err != nil {
			return nil, errors.Join(err, c.Close(ctx))
		}
	}
	return c, nil
}

func (p *postgres) describe() load.Ready {
	return load.Ready{Version: p.version, Ops: []load.Op{load.Put, load.Get, load.Scan}}
}

func (p *postgres) processes() []int { return []int{p.server.pid()} }

// prepare opens a connection for each caller.
func (p *postgres) prepare(ctx context.Context, c load.Case) error {
	// The server counts connections when it starts, so their number is fixed.
	if c.Callers > postgresConns {
		return fmt.Errorf("%d callers; there are at most %d connections", c.Callers, postgresConns)
	}
	// Connections stay open until the end: opening one takes longer than a case.
	for len(p.conns) < max(c.Callers, fillersMax) {
		conn, err := p.dial(ctx)
		if err != nil {
			return err
		}
		p.conns = append(p.conns, conn)
	}
	p.idle = make(chan *pgx.Conn, len(p.conns))
	for _, c := range p.conns {
		p.idle <- c
	}
	return nil
}

func (p *postgres) call(ctx context.Context, s load.Step) error {
	c := <-p.idle
	defer func() { p.idle <- c }()
	name := keyOf(s.Caller, s.Key)
	switch s.Op {
	case load.Put:
		_, err := c.Exec(ctx, "put", name, s.Value)
		return err
	case load.Scan:
		_, err := drain(c.Query(ctx, "scan", name, s.Keys))
		return err
	}
	n, err := drain(c.Query(ctx, "get", name))
	if err == nil && s.Written && n == 0 {
		err = load.ErrAbsent
	}
	return err
}

// drain reads all rows of a query, and counts them.
func drain(rows pgx.Rows, err error) (n int, _ error) {
	if err != nil {
		return 0, err
	}
	for ; rows.Next(); n++ {
		// The bytes have arrived, and nothing more is measured. RawValues copies nothing.
		rows.RawValues()
	}
	rows.Close()
	return n, rows.Err()
}

// stop ends the server as a crash would: nothing needs its data.
func (p *postgres) stop() {
	for _, c := range p.conns {
		_ = c.PgConn().Conn().Close()
	}
	p.server.stop(syscall.SIGQUIT)
}
