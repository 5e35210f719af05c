package main

import (
	"context"
	"crypto/rand"
	"crypto/x509"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/authority"
	"github.com/rhumbdb/rhumb/identity"
)

// authorityCommands are `rhumb authority`, `rhumb token`, `rhumb cert create` and the offline part
// of `rhumb init`. They work on the directory of an authority.
type authorityCommands struct {
	*session
	// dir is the directory, from the flag --authority of the command that runs. Only one command
	// runs in a process, so all of them share the field.
	dir string
}

// withAuthority adds the flag that names the directory.
func (ac *authorityCommands) withAuthority(c *cobra.Command) *cobra.Command {
	c.Flags().StringVar(&ac.dir, "authority", "", "directory of the authority")
	must(c.MarkFlagRequired("authority"))
	return c
}

// open opens the authority. Its warnings go to standard error.
func (ac *authorityCommands) open(level slog.Level) (*authority.Authority, error) {
	return authority.Open(ac.dir, authority.Config{Logger: newLogger(ac.Err, level), Wall: wallClock})
}

// authorityCommand returns the group of commands for the directory of an authority. None of them
// contacts the cluster.
func (ac *authorityCommands) authorityCommand() *cobra.Command {
	return commandGroup("authority", "Run and administer the authority of a secure cluster",
		ac.serveCommand(), ac.listCommand(), ac.rotateCommand(), ac.operatorCommand(), ac.revokeCommand(), ac.advertiseCommand(), ac.repairCommand())
}

// makeAuthority runs `rhumb init --authority`.
//
// It needs no network, so an authority can be made on a machine that never has one, and its
// certificates carried to the nodes as files.
func (ac *authorityCommands) makeAuthority(cluster string, advertise []string, trust string) error {
	// An ID that is given belongs to a cluster that exists, so it is parsed rather than drawn.
	var id rhumb.ClusterID
	var err error
	// The authority chooses the ID of the cluster, because certificates contain it before the
	// cluster exists.
	if cluster == "" {
		_, _ = rand.Read(id[:]) // never fails
	} else if id, err = rhumb.ParseUUID(cluster); err != nil {
		return err
	}
	addresses, err := authorityAddresses(advertise)
	if err != nil {
		return err
	}
	// Tokens contain the addresses, so the authority must have at least one.
	if len(addresses) == 0 {
		host, err := os.Hostname()
		if err != nil || host == "" {
			return rhumb.E("rhumb.init", rhumb.InvalidArgument, "this machine has no host name; give --advertise HOST, under which nodes reach the authority")
		}
		if addresses, err = authorityAddresses([]string{host}); err != nil {
			return err
		}
		ac.Notef("nodes will look for the authority at %s; --advertise sets another address", addresses[0])
	}
	var others []*x509.Certificate
	// Certificates of the old authority remain valid until nodes have certificates of the new one.
	if trust != "" {
		if cluster == "" {
			return rhumb.E("rhumb.init", rhumb.InvalidArgument, "--trust goes with the --cluster whose authority is lost; a new cluster has no other authority")
		}
		var err error
		if others, err = ac.readCertificates(trust); err != nil {
			return err
		}
	}
	if err := authority.Create(ac.dir, id, addresses, authority.Config{Wall: wallClock, Adopt: cluster != "", Trust: others}); err != nil {
		return err
	}
	// Opened only to print its key and addresses.
	a, err := ac.open(slog.LevelWarn)
	if err != nil {
		return err
	}
	defer a.Close()
	sum, err := a.Summarize()
	if err != nil {
		return err
	}
	// The key in the directory signs certificates of nodes, so it deserves more care than a node's own.
	ac.Notef("keep %s on a machine that runs no node, and keep a copy: whoever has it can speak for every node", ac.dir)
	doc := map[string]any{"cluster_id": sum.Cluster, "authority": ac.dir, "key": sum.Keys[0], "addresses": sum.Addresses}
	return ac.Print(doc, func(t table.Writer) {
		t.AppendRow(table.Row{"cluster", sum.Cluster})
		t.AppendRow(table.Row{"authority", ac.dir})
		t.AppendRow(table.Row{"key", sum.Keys[0]})
		t.AppendRow(table.Row{"addresses", strings.Join(sum.Addresses, ", ")})
	})
}

// authorityAddresses adds the default port to addresses without one.
func authorityAddresses(hosts []string) (out []string, err error) {
	// SplitHostPort fails for an address without a port, which is the common case. Brackets around an IPv6 address are
	// removed, because JoinHostPort adds them.
	for _, h := range hosts {
		if _, _, err := net.SplitHostPort(h); err != nil {
			h = net.JoinHostPort(strings.Trim(h, "[]"), strconv.Itoa(authority.PortDefault))
		}
		out = append(out, h)
	}
	return out, nil
}

// serveCommand returns the command that runs the server. It is the only one of the group that has
// to keep running.
func (ac *authorityCommands) serveCommand() *cobra.Command {
	var listen, logLevel string
	c := &cobra.Command{
		Use: "serve --authority DIR", Short: "Give certificates to nodes over HTTPS until SIGTERM",
		Long: `Give certificates to nodes: to new ones for a token, to others when two thirds of the life of their certificate are over.
The cluster runs without this server until certificates expire, so it may be away for days.`,
		Example: "  rhumb authority serve --authority /var/lib/rhumb-authority\n  rhumb authority serve --authority ./authority --listen 127.0.0.1:7605",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var level slog.Level
			if err := level.UnmarshalText([]byte(logLevel)); err != nil {
				return rhumb.Ef("rhumb.authority", rhumb.InvalidArgument, "--log-level %q is none of debug, info, warn, error", logLevel)
			}
			return ac.serve(cmd.Context(), listen, level)
		},
	}
	c.Flags().StringVar(&listen, "listen", "0.0.0.0:"+strconv.Itoa(authority.PortDefault), "host:port to listen on")
	c.Flags().StringVar(&logLevel, "log-level", "info", "debug, info, warn or error")
	return ac.withAuthority(c)
}

// serve runs the server of the authority until ctx ends. The directory is opened before the port,
// so that a damaged authority never appears to be alive.
func (ac *authorityCommands) serve(ctx context.Context, listen string, level slog.Level) error {
	a, err := ac.open(level)
	if err != nil {
		return err
	}
	defer a.Close()
	server, err := authority.NewServer(a)
	if err != nil {
		return err
	}
	l, err := net.Listen("tcp", listen)
	if err != nil {
		return rhumb.Ef("rhumb.authority", rhumb.Unavailable, "cannot listen on %s: %v; check whether another process uses the address", listen, err)
	}
	ac.Notef("rhumb: authority of cluster %s listens on %s", a.Cluster(), l.Addr())
	// SIGHUP makes the server read the keys again.
	defer onHangup(server.Reload)()
	return server.Serve(ctx, l)
}

// listCommand returns the command that prints the ledger of certificates.
func (ac *authorityCommands) listCommand() *cobra.Command {
	var all bool
	c := &cobra.Command{
		Use: "ls --authority DIR", Short: "List the certificates that the authority issued", Args: cobra.NoArgs,
		Long: `List the certificates that the authority issued, with their occasion and the reason of a revocation. A command that failed, because
of a full disk for example, may have left a certificate that nobody has: its reason says so, unless the ledger itself could not be
written. Revoke it by its serial (rhumb authority revoke), and run the command again.`,
		Example: "  rhumb authority ls --authority ./authority\n  rhumb authority ls --authority ./authority --all -o json",
		RunE: func(*cobra.Command, []string) error {
			a, err := ac.open(slog.LevelWarn)
			if err != nil {
				return err
			}
			defer a.Close()
			sum, err := a.Summarize()
			if err != nil {
				return err
			}
			return ac.printSummary(sum, all)
		},
	}
	c.Flags().BoolVar(&all, "all", false, "also those that have expired")
	return ac.withAuthority(c)
}

// issuedDoc is a certificate as `authority ls` prints it.
type issuedDoc struct {
	// Serial identifies the certificate, in hexadecimal digits.
	Serial string `json:"serial"`
	// Role and Name are those in the URI of the certificate.
	Role string `json:"role"`
	Name string `json:"name"`
	// Issued is the time of the record; the validity begins earlier.
	Issued  time.Time `json:"issued"`
	Expires time.Time `json:"expires"`
	// Authority is the hash of the key that signed the certificate.
	Authority string `json:"authority"`
	// Why is the occasion: a token, a renewal, or a command.
	Why string `json:"why"`
	// Revoked is set if the authority does not renew the certificate.
	Revoked bool `json:"revoked,omitempty"`
	// RevokedWhy is the reason that was given.
	RevokedWhy string `json:"revoked_why,omitempty"`
}

// printSummary prints the certificates. Without all, it omits expired ones: the server alone adds
// one a week.
func (ac *authorityCommands) printSummary(sum *authority.Summary, all bool) error {
	docs := []issuedDoc{}
	// Summaries hold every certificate of the ledger; most have expired after a year.
	for _, c := range sum.Certificates {
		if all || c.Expires.After(sum.Now) {
			docs = append(docs, issuedDoc{c.Serial, c.Role, c.Name, c.Issued, c.Expires, c.Authority, c.Why, c.Revoked, c.RevokedWhy})
		}
	}
	doc := map[string]any{
		"cluster_id": sum.Cluster, "addresses": sum.Addresses, "keys": sum.Keys, "key_expires": sum.KeyExpires, "records": sum.Records, "gaps": sum.Gaps,
		"certificates": docs,
	}
	// The first 16 digits of a hash distinguish keys, and --retire accepts a beginning.
	title := "cluster " + sum.Cluster + ", key " + sum.Keys[0][:16]
	for _, old := range sum.Keys[1:] {
		title += ", old key " + old[:16]
	}
	// Gaps are worth the title: the ledger may lack certificates that are in use.
	if sum.Gaps > 0 {
		title += "; the ledger has lost records " + strconv.Itoa(sum.Gaps) + " times"
	}
	return ac.PrintTitled(doc, title, func(t table.Writer) {
		t.AppendHeader(table.Row{"SERIAL", "ROLE", "NAME", "ISSUED", "EXPIRES", "KEY", "WHY"})
		for _, d := range docs {
			why := d.Why
			if d.Revoked {
				why += ", revoked"
			}
			if d.RevokedWhy != "" {
				why += ": " + d.RevokedWhy
			}
			// Eight digits of the hash of the authority keep the row narrow.
			t.AppendRow(table.Row{d.Serial, d.Role, d.Name, stamp(d.Issued), stamp(d.Expires), d.Authority[:min(8, len(d.Authority))], why})
		}
	})
}

// stamp formats a time for a table. All times are in UTC, because the machines of a cluster are in
// several time zones.
func stamp(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05Z") }

// rotateCommand returns the command for both steps of a rotation. They are one command, because the
// second step needs the hash that the first one prints.
func (ac *authorityCommands) rotateCommand() *cobra.Command {
	var retire string
	var force bool
	c := &cobra.Command{
		Use: "rotate --authority DIR", Short: "Replace the key of the authority, or retire an old one",
		Long: `Make a new key, with which certificates are signed from now on. Both keys are trusted until the old one is retired. While the
authority serves, nodes get the new authorities and a certificate of the new key within minutes; "rhumb authority ls" shows
who still has one of the old key. Then retire the old key with --retire.`,
		Example: "  rhumb authority rotate --authority ./authority\n  rhumb authority rotate --authority ./authority --retire 5f2a90c1",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			a, err := ac.open(slog.LevelWarn)
			if err != nil {
				return err
			}
			defer a.Close()
			// An empty --retire must not rotate the key: a script whose variable is empty would do
			// so unintentionally.
			doc := map[string]string{}
			if cmd.Flags().Changed("retire") {
				doc["retired"], err = a.Retire(retire, force)
			} else {
				doc["key"], err = a.Rotate()
			}
			if err != nil {
				return err
			}
			return ac.Print(doc, func(t table.Writer) {
				// The document has exactly one entry: "retired" or "key".
				for name, value := range doc {
					t.AppendRow(table.Row{name, value})
				}
			})
		},
	}
	c.Flags().StringVar(&retire, "retire", "", "first digits of the hash of an old key that is not to be trusted any more")
	c.Flags().BoolVar(&force, "force", false, "with --retire: even if valid certificates of that key are left")
	return ac.withAuthority(c)
}

// operatorCommand returns the command that creates the certificate of an operator.
func (ac *authorityCommands) operatorCommand() *cobra.Command {
	var out string
	var life time.Duration
	c := &cobra.Command{
		Use: "operator NAME --authority DIR --out DIR", Short: "Make the certificate of an operator",
		Long: `Make a certificate with all rights in the cluster, for its first administration and for emergencies. It works without users in
the metadata. Everyday administration is for users: rhumb user create.`,
		Example: "  rhumb authority operator alice --authority ./authority --out ./alice",
		Args:    cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			return ac.issue(authority.Order{Role: identity.RoleOperator, Name: args[0], Life: life}, out)
		},
	}
	ac.issueFlags(c, &out, &life)
	return ac.withAuthority(c)
}

// issueFlags adds the flags of commands that make a certificate.
func (ac *authorityCommands) issueFlags(c *cobra.Command, out *string, life *time.Duration) {
	c.Flags().StringVar(out, "out", "", "folder for certificate, key and ca.crt")
	c.Flags().DurationVar(life, "ttl", authority.HandLifeDefault, fmt.Sprintf("lifetime of the certificate, at most %d days", authority.HandLifeMax/(24*time.Hour)))
	must(c.MarkFlagRequired("out"))
}

// issue makes a certificate and writes its files.
func (ac *authorityCommands) issue(o authority.Order, out string) error {
	const op rhumb.Op = "rhumb.cert"
	// The files are named after the role, so that a folder can hold an operator's and a node's.
	base := filepath.Join(out, o.Role.String())
	// The package takes zero for the default, which is not what somebody wants who writes it.
	if o.Life < time.Minute {
		return rhumb.Ef(op, rhumb.InvalidArgument, "--ttl %v; want 1m to %v", o.Life, authority.HandLifeMax)
	}
	// Before the certificate is signed: an existing key would be overwritten, and somebody may be
	// using it.
	for _, p := range []string{base + ".crt", base + ".key"} {
		if _, err := os.Lstat(p); err == nil {
			return rhumb.Ef(op, rhumb.AlreadyExists, "%s exists; choose another --out, or remove it", p)
		}
	}
	a, err := ac.open(slog.LevelWarn)
	if err != nil {
		return err
	}
	defer a.Close()
	made, err := a.Issue(o)
	if err != nil {
		return err
	}
	doc := describeCertificate(made.Leaf)
	// The certificate is issued by now. If a file cannot be written, the certificate is in the
	// ledger and nobody has its key.
	if doc.Files, err = made.Save(out); err != nil {
		return lostCertificate(a, doc.Serial, err)
	}
	return ac.printCertificate(doc)
}

// whyLost is the reason in the ledger for a certificate whose files could not be written.
const whyLost = "its files could not be written"

// lostCertificate revokes a certificate whose files could not be written, so that `rhumb authority ls` says so, and returns the error of
// the command.
func lostCertificate(a *authority.Authority, serial string, err error) error {
	// Its files may be complete but for one, and are left: a certificate without its key, or the reverse, is of no use to a thief.
	next := "make room and run the command again"
	// The ledger may be on the same full disk.
	if a.Revoke(serial, "", whyLost) != nil {
		next += ", then `rhumb authority revoke " + serial + "`"
	}
	return rhumb.Ef("rhumb.cert", rhumb.KindOf(err), "the certificate %s is in the ledger, and %s: %s; %s", serial, whyLost, rhumb.Message(err), next)
}

// revokeCommand returns the command that ends renewals. The cluster itself refuses a certificate by
// the list in its metadata, which this command cannot reach.
func (ac *authorityCommands) revokeCommand() *cobra.Command {
	var node, why string
	c := &cobra.Command{
		Use: "revoke [SERIAL] --authority DIR [--node NAME]", Short: "Renew a certificate no more",
		Long: `Make the authority refuse to renew a certificate, or all certificates that a node has now. The certificate stays valid until it
expires: rhumb cert revoke makes the cluster refuse it at once. Run both if a key was stolen.`,
		Example: "  rhumb authority revoke --node eu-1 --authority ./authority\n  rhumb authority revoke 5f2a90c1d7 --authority ./authority --why 'laptop lost'",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			// Neither of them would revoke nothing, and with both it would be open which one counts.
			if (len(args) == 1) == (node != "") {
				return rhumb.E("rhumb.authority", rhumb.InvalidArgument, "name a serial number or --node, not both")
			}
			a, err := ac.open(slog.LevelWarn)
			if err != nil {
				return err
			}
			defer a.Close()
			serial := ""
			if len(args) == 1 {
				if serial, err = identity.ParseSerial(args[0]); err != nil {
					return err
				}
			}
			if err := a.Revoke(serial, node, why); err != nil {
				return err
			}
			ac.Notef("the authority renews it no more; run `rhumb cert revoke` too, so that the cluster refuses it")
			return nil
		},
	}
	c.Flags().StringVar(&node, "node", "", "name of a node, instead of a serial number")
	c.Flags().StringVar(&why, "why", "", "reason, for the ledger")
	return ac.withAuthority(c)
}

// advertiseCommand returns the command that replaces the addresses of the authority.
func (ac *authorityCommands) advertiseCommand() *cobra.Command {
	c := &cobra.Command{
		Use: "advertise HOST[:PORT]... --authority DIR", Short: "Set where nodes reach the authority",
		Long:    `Set the addresses that tokens contain from now on. Nodes that run learn them within minutes while the authority serves.`,
		Example: "  rhumb authority advertise ca.example.com 192.0.2.7:7605 --authority ./authority",
		Args:    cobra.MinimumNArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			// Nothing is sent from here: a running server hands the addresses out.
			a, err := ac.open(slog.LevelWarn)
			if err != nil {
				return err
			}
			defer a.Close()
			addresses, err := authorityAddresses(args)
			if err != nil {
				return err
			}
			return a.SetAddresses(addresses)
		},
	}
	return ac.withAuthority(c)
}

// repairCommand returns the command that sets a damaged ledger aside. It is never run implicitly,
// because it voids tokens that somebody may be waiting to use.
func (ac *authorityCommands) repairCommand() *cobra.Command {
	c := &cobra.Command{
		Use: "repair --authority DIR", Short: "Make an authority usable whose ledger is damaged",
		Long: `Keep the records of the ledger before the damage, set the damaged file aside, and void all tokens. Certificates stay valid. New
tokens work at once.`,
		Example: "  rhumb authority repair --authority ./authority",
		Args:    cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			// Repair opens the directory itself, because it works without the key, which Open needs.
			aside, err := authority.Repair(ac.dir, authority.Config{Logger: newLogger(ac.Err, slog.LevelWarn), Wall: wallClock})
			if err != nil {
				return err
			}
			// Running the command on a sound ledger must not void any token.
			if aside == "" {
				ac.Notef("the ledger is not damaged")
				return nil
			}
			ac.Notef("the damaged ledger is now %s; all tokens are void", aside)
			return nil
		},
	}
	return ac.withAuthority(c)
}
