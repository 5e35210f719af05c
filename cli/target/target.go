// Package target says which cluster a program uses, and as whom. The command line and other
// programs of operators fill a Target from the same settings, so that all of them take identities
// the same way.
//
// It is apart from package connect, which also finds a demo and imitates distances: the provider
// for Terraform links this package and neither of those.
package target

import (
	"errors"
	"io/fs"
	"net"
	"os"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/cli/flags"
	"github.com/rhumbdb/rhumb/cli/secret"
	"github.com/rhumbdb/rhumb/client"
	"github.com/rhumbdb/rhumb/identity"
)

// TimeoutDefault is how long commands wait for a cluster by default.
const TimeoutDefault = 10 * time.Second

const op rhumb.Op = "rhumb.connect"

// Target is a cluster, the identity with which a program connects to it, and the region from which
// it does.
//
// It is a value without behaviour until Config turns it into a configuration, so that flags,
// contexts, files and the Terraform provider can fill it each in their own way and share every
// rule.
type Target struct {
	Addrs    []string
	From     string
	Timeout  time.Duration
	Insecure bool

	// CA, Cert and Key name files. CA says whom to trust and is needed by everybody who uses TLS;
	// Cert and Key prove who the caller is.
	CA, Cert, Key string
	// User logs in with a password: the one in PasswordFile, or one that is asked for on the
	// terminal.
	User, PasswordFile string
	// Cluster is the only cluster to accept, or "" for any.
	Cluster string
}

// Register adds the flags of the target to a set.
func (t *Target) Register(set *pflag.FlagSet) {
	set.StringSliceVar(&t.Addrs, "addr", nil, "host:port of a node; repeat the flag for more nodes")
	set.StringVar(&t.From, "from", "", "region in which this command runs")
	set.DurationVar(&t.Timeout, "timeout", TimeoutDefault, "how long to wait for the cluster; 0 means the default")
	set.BoolVar(&t.Insecure, "insecure", false, "connect without TLS, to loopback addresses only")
	set.StringVar(&t.CA, "ca", "", "file with the certificates of the cluster's authorities")
	set.StringVar(&t.Cert, "cert", "", "file with the certificate to connect with")
	set.StringVar(&t.Key, "key", "", "file with the key of the certificate")
	set.StringVar(&t.User, "user", "", "user to log in as; the password is asked for")
	set.StringVar(&t.PasswordFile, "password-file", "", "file that holds the password of --user")
	set.StringVar(&t.Cluster, "cluster", "", "ID of the cluster; nodes of another are refused")
	flags.Connection(set, "addr", "from", "insecure", "ca", "cert", "key", "user", "password-file", "cluster")
}

// IsSecure reports whether any setting of a secured connection is given.
func (t *Target) IsSecure() bool {
	return t.CA+t.Cert+t.Key+t.User+t.PasswordFile != ""
}

// Validate rejects settings that contradict each other, and names the missing ones.
func (t *Target) Validate() error {
	fault := func(format string, args ...any) error { return rhumb.Ef(op, rhumb.InvalidArgument, format, args...) }
	if t.Cluster != "" {
		id, err := rhumb.ParseUUID(t.Cluster)
		if err != nil {
			return fault("--cluster: %s", rhumb.Message(err))
		}
		// No cluster has this ID, and the client takes it for none given: it would connect to any cluster.
		if id.IsZero() {
			return fault("--cluster %s is the ID of no cluster; leave the flag out, or take the ID that `rhumb status` prints", t.Cluster)
		}
	}
	switch {
	case t.Timeout < 0:
		return fault("--timeout %v is negative; 0 means the default of %v", t.Timeout, TimeoutDefault)
	case t.Insecure && t.IsSecure():
		return fault("--insecure sends plain text and cannot be combined with --ca, --cert, --key, --user or --password-file; `rhumb config show` says where each is from")
	case (t.Cert == "") != (t.Key == ""):
		return fault("--cert and --key belong together: a certificate is of no use without its key")
	case t.Cert != "" && t.User != "":
		return fault("--cert and --user are two identities; choose one")
	case t.PasswordFile != "" && t.User == "":
		return fault("--password-file needs --user NAME")
	// The CA of the operating system is never used: its hundreds of authorities have no say about
	// who is a node of this cluster.
	case t.IsSecure() && t.CA == "":
		return fault("--ca is missing: the file with the certificates of the cluster's authorities says whom to trust")
	}
	return t.checkAddrs()
}

// checkAddrs rejects addresses without a port and, without TLS, addresses of other machines.
func (t *Target) checkAddrs() error {
	for _, addr := range t.Addrs {
		host, port, err := net.SplitHostPort(addr)
		if err != nil || port == "" {
			return rhumb.Ef(op, rhumb.InvalidArgument, "--addr %q is not host:port", addr)
		}
		if !t.Insecure {
			continue
		}
		// Names other than localhost are rejected without resolving them: the address may change
		// before the connection is made.
		if ip := net.ParseIP(host); host != "localhost" && (ip == nil || !ip.IsLoopback()) {
			return rhumb.Ef(op, rhumb.InvalidArgument, "--addr %q is not a loopback address; without TLS, nothing is sent to other machines", addr)
		}
	}
	return nil
}

// checkExist rejects files that do not exist, by the name of their flag. Nobody
// must take a missing file for a record that does not exist, so this is wrong
// usage.
func (t *Target) checkExist() error {
	for _, f := range []struct{ flag, path string }{{"ca", t.CA}, {"cert", t.Cert}, {"key", t.Key}, {"password-file", t.PasswordFile}} {
		if f.path == "" {
			continue
		}
		if _, err := os.Stat(f.path); errors.Is(err, fs.ErrNotExist) {
			return rhumb.Ef(op, rhumb.InvalidArgument, "--%s: there is no file %s; `rhumb config show` says where the setting is from", f.flag, f.path)
		}
	}
	return nil
}

// CheckFiles rejects files that cannot be used: missing ones, keys and
// passwords that others can read, keys of other certificates, certificates that
// have expired or that the authorities have not issued.
func (t *Target) CheckFiles() error {
	if err := t.checkExist(); err != nil {
		return err
	}
	if t.PasswordFile != "" {
		if _, err := secret.FromFile(t.PasswordFile); err != nil {
			return err
		}
	}
	if t.CA == "" {
		return nil
	}
	src, err := identity.OpenSource(identity.SourceConfig{Files: identity.Files{Cert: t.Cert, Key: t.Key, CA: t.CA}})
	if err != nil {
		return err
	}
	src.Close()
	return nil
}

// Config returns the configuration of a client. Nothing is sent in plain text
// unless the user asks for it. The password is read or asked for now, so that
// one that is missing is not reported as a node that does not answer. Files
// are read again by the client when they change.
func (t *Target) Config() (client.Config, error) {
	cfg := client.Config{Addrs: t.Addrs, From: t.From, Insecure: t.Insecure, Timeout: t.Timeout, ConnectTimeout: t.Timeout}
	if err := t.Validate(); err != nil {
		return cfg, err
	}
	if t.Insecure {
		return cfg, nil
	}
	if t.CA == "" {
		return cfg, rhumb.Ef(op, rhumb.InvalidArgument, "nothing says whom to trust at %s: name the cluster's authority with --ca FILE and yourself with --cert and --key or with --user (`rhumb context add` keeps them), or add --insecure for nodes of this machine that run without TLS",
			strings.Join(t.Addrs, ", "))
	}
	if err := t.checkExist(); err != nil {
		return cfg, err
	}
	// Validate has parsed it. Zero is the cluster of the certificate or,
	// without one, of the first node that answers.
	cluster, _ := rhumb.ParseUUID(t.Cluster)
	cfg.TLS = &client.TLS{CA: t.CA, Cert: t.Cert, Key: t.Key, Cluster: cluster}
	if t.User != "" {
		cfg.User, cfg.Password = t.User, secret.Password(t.PasswordFile, t.User)
		if _, err := cfg.Password(); err != nil {
			return cfg, err
		}
	}
	return cfg, nil
}
