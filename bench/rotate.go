package bench

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/client"
)

// RotateConfig configures RunRotate.
type RotateConfig struct {
	// Cluster must be secure.
	Cluster *Cluster
	// Binary is the program that administers the authority.
	Binary string
	// Rounds is how often everything is rotated. The default is 2.
	Rounds int
	// Writers is the number of callers that write. The default is 64.
	Writers int
	// Pause is the time between two writes of a caller. The default is 5 ms.
	Pause time.Duration
	// Progress receives a line about each step. It may be nil.
	Progress func(text string)
}

// RotateReport is the result of RunRotate.
type RotateReport struct {
	Nodes  int           `json:"nodes"`
	Rounds []RotateRound `json:"rounds"`
	// Writes counts acknowledged writes, Failed the others, whatever their outcome, and Lost the
	// acknowledged writes that were missing at the end.
	Writes int64 `json:"writes"`
	Failed int64 `json:"failed"`
	Lost   int   `json:"lost"`
	// Gap is the longest time that a caller was without a successful write.
	Gap time.Duration `json:"gap_ns"`
	// NewLives counts the lives that nodes began. A rotation must not cause any.
	NewLives int `json:"new_lives"`
}

// RotateRound is one rotation of everything. The times are those of the steps.
type RotateRound struct {
	// Renewals counts the certificates that were replaced.
	Renewals int `json:"renewals"`
	// Renewed is the time until all nodes had a certificate of the new key, Retired until no node
	// trusted the old one, and Gossip until all nodes had the new key of gossip.
	Renewed time.Duration `json:"renewed_ns"`
	Retired time.Duration `json:"retired_ns"`
	Gossip  time.Duration `json:"gossip_ns"`
}

// rotateMax bounds one step of a rotation.
const rotateMax = time.Minute

// RunRotate replaces, under a load of writes, the key of the authority, the certificates of all
// nodes and the key of gossip, without a restart. The callers log in with passwords.
func RunRotate(ctx context.Context, cfg RotateConfig) (*RotateReport, error) {
	if cfg.Rounds == 0 {
		cfg.Rounds = 2
	}
	if cfg.Writers == 0 {
		cfg.Writers = 64
	}
	if cfg.Pause == 0 {
		cfg.Pause = 5 * time.Millisecond
	}
	if cfg.Progress == nil {
		cfg.Progress = func(string) {}
	}
	if cfg.Cluster.Identity == nil {
		return nil, fmt.Errorf("the cluster has no certificates; start it with --secure")
	}
	operator, err := client.Open(ctx, cfg.Cluster.OperatorConfig(rotateMax))
	if err != nil {
		return nil, err
	}
	defer operator.Close()
	c, err := client.Open(ctx, cfg.Cluster.ClientConfig(30*time.Second))
	if err != nil {
		return nil, err
	}
	defer c.Close()
	t, err := c.CreateTable(ctx, "rotate", client.TableOptions{})
	if err != nil {
		return nil, err
	}
	r := &rotation{hold: &hold{c: c, t: t}, cfg: cfg, operator: operator, report: &RotateReport{Nodes: len(cfg.Cluster.Nodes)}}
	if err := r.awaitSettled(ctx); err != nil {
		return nil, err
	}
	lives := r.sumLives()
	r.startWriters(ctx, cfg.Writers, cfg.Pause)
	for range cfg.Rounds {
		if err = r.rotateAll(ctx); err != nil {
			break
		}
	}
	// A broken round leaves the writers running, so they are stopped before the error is reported.
	r.report.Gap = slices.Max(r.takeGaps())
	r.stopWriters()
	if err != nil {
		return nil, err
	}
	r.report.Writes, r.report.Failed = r.countWrites()
	r.report.NewLives = r.sumLives() - lives
	r.report.Lost, err = r.countLost(ctx)
	return r.report, err
}

// rotation is a run of RunRotate.
//
// Two clients: the one of the load logs in with a password, as most programs do, and must notice
// nothing; the operator's works with a certificate of the authority under change, which is the
// harder case.
type rotation struct {
	*hold
	cfg      RotateConfig
	operator *client.Client
	report   *RotateReport
}

// sumLives returns the sum of the lives of all nodes.
func (r *rotation) sumLives() (sum int) {
	for _, n := range r.c.Nodes() {
		sum += int(n.Boot)
	}
	return sum
}

// authority runs a command on the authority of the cluster.
func (r *rotation) authority(ctx context.Context, args ...string) ([]byte, error) {
	args = append([]string{"authority"}, append(args, "--authority", filepath.Join(r.cfg.Cluster.Dir, "authority"))...)
	out, err := exec.CommandContext(ctx, r.cfg.Binary, args...).Output()
	if exit, ok := err.(*exec.ExitError); ok {
		return nil, fmt.Errorf("%v: %s", args, exit.Stderr)
	}
	return out, err
}

// rotateAll replaces the key of the authority, the certificates and the key of gossip once.
func (r *rotation) rotateAll(ctx context.Context) error {
	var before struct {
		Keys []string `json:"keys"`
	}
	out, err := r.authority(ctx, "ls", "-o", "json")
	if err == nil {
		err = json.Unmarshal(out, &before)
	}
	if err != nil {
		return err
	}
	if len(before.Keys) == 0 {
		return fmt.Errorf("the authority lists no key: %s", out)
	}
	old := before.Keys[0]
	start, round := time.Now(), RotateRound{}
	if _, err := r.authority(ctx, "rotate"); err != nil {
		return err
	}
	// Nodes ask their authority every few minutes; the signal makes them ask now.
	if err := r.hangUp(); err != nil {
		return err
	}
	err = r.awaitNodes(ctx, "a certificate of the new key", func(certs client.Certificates) bool {
		round.Renewals = 0
		for _, c := range certs.Certificates {
			if c.Role == "node" && c.Authority != old {
				round.Renewals++
			}
		}
		return round.Renewals == r.report.Nodes
	})
	if err != nil {
		return err
	}
	round.Renewed = time.Since(start)
	r.cfg.Progress(fmt.Sprintf("%d nodes have certificates of the new key after %v", round.Renewals, round.Renewed.Round(time.Millisecond)))
	if err := r.retire(ctx, old, &round); err != nil {
		return err
	}
	start = time.Now()
	if _, err := r.operator.RotateGossipKeys(ctx); err != nil {
		return err
	}
	round.Gossip = time.Since(start)
	r.cfg.Progress(fmt.Sprintf("the key of gossip was replaced in %v", round.Gossip.Round(time.Millisecond)))
	r.report.Rounds = append(r.report.Rounds, round)
	return nil
}

// retire ends the trust in the old key of the authority.
func (r *rotation) retire(ctx context.Context, old string, round *RotateRound) error {
	start := time.Now()
	// The certificate of the operator is still of the old key, and unlike those of nodes nobody renews
	// it. Its files are replaced while clients use them. --force below retires the key although the
	// former certificate of the operator is valid.
	dir := filepath.Dir(r.cfg.Cluster.Identity.Cert)
	fresh := filepath.Join(dir, "fresh")
	if _, err := r.authority(ctx, "operator", "demo", "--out", fresh); err != nil {
		return err
	}
	files, err := os.ReadDir(fresh)
	if err != nil {
		return err
	}
	for _, f := range files {
		if err := os.Rename(filepath.Join(fresh, f.Name()), filepath.Join(dir, f.Name())); err != nil {
			return err
		}
	}
	if _, err := r.authority(ctx, "rotate", "--retire", old, "--force"); err != nil {
		return err
	}
	if err := r.hangUp(); err != nil {
		return err
	}
	err = r.awaitNodes(ctx, "only the new key", func(certs client.Certificates) bool {
		return !slices.ContainsFunc(certs.Authorities, func(a client.Authority) bool { return a.Fingerprint == old && !a.Distrusted })
	})
	round.Retired = time.Since(start)
	if err == nil {
		r.cfg.Progress(fmt.Sprintf("the old key is retired after %v", round.Retired.Round(time.Millisecond)))
	}
	return err
}

// hangUp sends SIGHUP to all nodes.
func (r *rotation) hangUp() error {
	for _, n := range r.cfg.Cluster.Nodes {
		pid, err := pidOf(n.Addr)
		if err != nil {
			return err
		}
		if err := syscall.Kill(pid, syscall.SIGHUP); err != nil {
			return fmt.Errorf("SIGHUP to %d: %w", pid, err)
		}
	}
	return nil
}

// awaitNodes waits until done accepts what all nodes report about their certificates.
func (r *rotation) awaitNodes(ctx context.Context, what string, done func(client.Certificates) bool) error {
	ctx, cancel := context.WithTimeout(ctx, rotateMax)
	defer cancel()
	for {
		certs, err := r.operator.Certificates(ctx)
		if err == nil && !slices.ContainsFunc(certs.Nodes, func(n client.NodeIdentity) bool { return n.Err != "" }) && done(certs) {
			return nil
		}
		if pauseFor(ctx, 50*time.Millisecond) != nil {
			return rhumb.Ef("bench.RunRotate", rhumb.DeadlineExceeded, "not all nodes have %s after %v; the last answer: %v", what, rotateMax, err)
		}
	}
}
