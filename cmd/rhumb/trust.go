package main

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/client"
	"github.com/rhumbdb/rhumb/identity"
)

// trustCommands are the commands of `rhumb cert` and `rhumb gossip` that ask a cluster. Those that
// work on files are in cert.go.
type trustCommands struct{ *session }

// certCommands returns the commands that `rhumb cert` has besides those for files.
func (tc *trustCommands) certCommands() []*cobra.Command {
	return []*cobra.Command{tc.listCommand(), tc.revokeCommand(), tc.trustCommand(), tc.distrustCommand()}
}

// listCommand returns the command that shows which certificates expire when. It asks the nodes
// rather than the authority: an authority knows all that it issued, and only the nodes know those in
// use. Authorities that are not Rhumb's have no list that Rhumb could read.
func (tc *trustCommands) listCommand() *cobra.Command {
	return tc.connected(&cobra.Command{
		Use: "ls", Short: "List the certificates in use and when they expire", Args: cobra.NoArgs,
		Long: `List the certificates that the nodes use, those of users and operators who are connected, the authorities that nodes trust or
reject, and the revoked certificates.`,
		Example: "  rhumb cert ls\n  rhumb cert ls -o json",
		RunE: func(cmd *cobra.Command, _ []string) error {
			return tc.conn.With(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				all, err := c.Certificates(ctx)
				if err != nil {
					return err
				}
				return tc.printCertificates(all)
			})
		},
	})
}

// clock returns the time by which commands judge certificates.
func clock() time.Time {
	if wallClock != nil {
		return wallClock()
	}
	return time.Now()
}

// timeLeft describes the time until a certificate expires. Certificates of nodes usually last seven
// days, so the last two days are shown to the minute: renewal at two thirds of the lifetime has
// failed by then.
func timeLeft(notAfter time.Time) string {
	switch left := notAfter.Sub(clock()); {
	case notAfter.IsZero():
		return "unknown"
	case left <= 0:
		return "expired"
	case left < 48*time.Hour:
		return left.Round(time.Minute).String()
	default:
		return fmt.Sprintf("%d days", left/(24*time.Hour))
	}
}

// describeNodeIDs joins node numbers.
func describeNodeIDs(ids []rhumb.NodeID) string {
	var words []string
	for _, id := range ids {
		words = append(words, id.String())
	}
	return strings.Join(words, " ")
}

// printCertificates prints three tables: certificates, authorities and revoked certificates.
// Programs get them as one document. Nodes that did not answer are lines of the first table,
// because their certificates are missing there and may be those that expire next.
func (tc *trustCommands) printCertificates(all client.Certificates) error {
	// The document for programs is the answer of the client, with all fields.
	if tc.ForPrograms() {
		return tc.Print(all, nil)
	}
	sections := []func(table.Writer){func(t table.Writer) {
		t.AppendHeader(table.Row{"ROLE", "NAME", "SERIAL", "EXPIRES", "LEFT", "AUTHORITY", "NODES", "STATE"})
		for _, c := range all.Certificates {
			state := "valid"
			switch {
			case c.Revoked:
				state = "revoked"
			case c.Distrusted:
				state = "distrusted"
			}
			// Sixteen digits of the authority identify it among those of one cluster.
			t.AppendRow(table.Row{c.Role, c.Name, c.Serial, c.NotAfter.Format(time.RFC3339), timeLeft(c.NotAfter), fmt.Sprintf("%.16s", c.Authority), describeNodeIDs(c.Nodes), state})
		}
		for _, n := range all.Nodes {
			if n.Err != "" {
				t.AppendRow(table.Row{"node", n.Name, "", "", "", "", n.Node, n.Err})
			}
		}
	}, authoritySection(all.Authorities)}
	// The third table is left out without revocations.
	if len(all.Revoked) > 0 {
		sections = append(sections, revokedSection(all.Revoked))
	}
	return tc.PrintSections(sections...)
}

// authoritySection returns the table of authorities. Sixteen digits identify an authority among
// those of one cluster, and `rhumb cert distrust` accepts them.
func authoritySection(as []client.Authority) func(table.Writer) {
	return func(t table.Writer) {
		t.AppendHeader(table.Row{"AUTHORITY", "SUBJECT", "LEFT", "FROM", "STATE"})
		for _, a := range as {
			// An authority is in the files of nodes unless the metadata lists it.
			from, state := "files", "trusted"
			if a.InMetadata {
				from = "metadata"
			}
			switch {
			case a.Distrusted:
				state = "distrusted"
			case len(a.IgnoredBy) > 0:
				state = "not accepted by " + describeNodeIDs(a.IgnoredBy)
			}
			t.AppendRow(table.Row{fmt.Sprintf("%.16s", a.Fingerprint), a.Subject, timeLeft(a.NotAfter), from, state})
		}
	}
}

// revokedSection returns the table of revoked certificates. The time left is that of the
// certificate: a week after it expired, the metadata may forget the entry.
func revokedSection(rs []rhumb.Revocation) func(table.Writer) {
	return func(t table.Writer) {
		t.AppendHeader(table.Row{"REVOKED", "NAME", "LEFT", "AT", "WHY"})
		for _, r := range rs {
			if r.Serial == "" {
				t.AppendRow(table.Row{"all issued before AT", r.Name, "", r.At.Format(time.RFC3339), r.Why})
				continue
			}
			t.AppendRow(table.Row{r.Serial, r.Name, timeLeft(r.NotAfter), r.At.Format(time.RFC3339), r.Why})
		}
	}
}

// revokeCommand returns the command that revokes certificates. It takes a serial number or a name,
// because an operator who has lost a machine knows its name, and one who has found a strange line
// in `rhumb cert ls` has the number.
func (tc *trustCommands) revokeCommand() *cobra.Command {
	var r client.Revoke
	// The commands for files know how to open an authority.
	ac := &authorityCommands{session: tc.session}
	c := &cobra.Command{
		Use: "revoke [SERIAL] [--node NAME | --user-name NAME | --operator NAME]", Short: "Make all nodes reject a certificate",
		Long: `Make all nodes reject a certificate at once and end the connections that rely on it. A node that is cut off or down rejects it
when it is back. The name of a user or operator stands for every certificate that was issued to it before now, in use or not; the name
of a node for those that nodes use at the moment. The bearer may get another certificate from the authority; to keep a user out, use
rhumb user disable. Your own certificate is refused: another operator has to revoke it.

The authority does not read the metadata and would renew the certificate of a node. Where its directory is at hand, --authority DIR
makes it refuse first, and then revokes every valid certificate of the node that it has issued, in use or not.`,
		Example: `  rhumb cert revoke 4d2a9c --why stolen
  rhumb cert revoke --node eu-1 --why sold --authority ./authority
  rhumb cert revoke --user-name tower`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				r.Serial = args[0]
			}
			// The authority comes first; refuseRenewal says why.
			more, refused, err := ac.refuseRenewal(r)
			if err != nil {
				return err
			}
			return tc.conn.With(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				revoked, err := revokeAll(ctx, c, r, more)
				if err != nil {
					return err
				}
				if !refused {
					tc.noteRenewal(r, revoked)
				}
				// It comes last, because the revocation matters more than the check of the name.
				tc.noteUnseen(ctx, c, r)
				return tc.Print(revoked, revokedSection(revoked))
			})
		},
	}
	c.Flags().StringVar(&ac.dir, "authority", "", "directory of the authority, which then stops renewing the certificates")
	c.Flags().StringVar(&r.Node, "node", "", "name of a node")
	// --user already names the user who connects.
	c.Flags().StringVar(&r.User, "user-name", "", "name of a user")
	c.Flags().StringVar(&r.Operator, "operator", "", "name of an operator")
	c.Flags().StringVar(&r.Issuer, "issuer", "", "fingerprint of the authority that issued SERIAL, or its first digits, if several certificates have the number")
	c.Flags().StringVar(&r.Why, "why", "", "reason, for rhumb cert ls")
	return tc.connected(c)
}

// refuseRenewal makes the authority in the directory of --authority stop renewing the certificates that r names. Without the flag it
// does nothing. more holds a revocation for each valid certificate that the authority has issued to the node, and refused reports
// whether the authority knows the certificate.
//
// The authority comes before the cluster: in the other order it could issue one more certificate between the two steps.
func (ac *authorityCommands) refuseRenewal(r client.Revoke) (more []client.Revoke, refused bool, err error) {
	if ac.dir == "" {
		return nil, false, nil
	}
	// The cluster would refuse such a request, after the authority has obeyed.
	if given := slices.DeleteFunc([]string{r.Serial, r.Node, r.User, r.Operator}, func(s string) bool { return s == "" }); len(given) != 1 {
		return nil, false, rhumb.E("rhumb.cert", rhumb.InvalidArgument, "name one serial number, node, user or operator")
	}
	a, err := ac.open(slog.LevelWarn)
	if err != nil {
		return nil, false, err
	}
	defer a.Close()
	if r.Serial != "" {
		serial, err := identity.ParseSerial(r.Serial)
		if err != nil {
			return nil, false, err
		}
		err = a.Revoke(serial, "", r.Why)
		if rhumb.KindOf(err) == rhumb.NotFound {
			ac.Notef("the authority in %s issued no certificate with the serial number %s", ac.dir, serial)
			return nil, false, nil
		}
		return nil, err == nil, err
	}
	// The ledger may have lost the record of the node's certificate, so the name is refused even without one.
	if r.Node != "" {
		if err := a.Revoke("", r.Node, r.Why); err != nil {
			return nil, false, err
		}
	}
	issued, err := a.Summarize()
	if err != nil {
		return nil, false, err
	}
	// The name counts only for its own role: a user and a node may have the same one.
	names := map[string]string{identity.RoleNode.String(): r.Node, identity.RoleUser.String(): r.User, identity.RoleOperator.String(): r.Operator}
	for _, c := range issued.Certificates {
		if c.Name == "" || names[c.Role] != c.Name || !c.Expires.After(issued.Now) {
			continue
		}
		if err := a.Revoke(c.Serial, "", r.Why); err != nil {
			return nil, false, err
		}
		// The cluster refuses users and operators by name.
		if r.Node != "" {
			more = append(more, client.Revoke{Serial: c.Serial, Issuer: c.Authority, Why: r.Why})
		}
	}
	return more, true, nil
}

// revokeAll carries out r and then more in the cluster. A name that no node reports is not an error if the authority knows
// its certificates.
func revokeAll(ctx context.Context, c *client.Client, r client.Revoke, more []client.Revoke) ([]rhumb.Revocation, error) {
	revoked, err := c.RevokeCertificate(ctx, r)
	if err != nil && (len(more) == 0 || rhumb.KindOf(err) != rhumb.NotFound) {
		return nil, err
	}
	for _, m := range more {
		// The first request may have revoked this certificate already.
		if slices.ContainsFunc(revoked, func(x rhumb.Revocation) bool { return x.Serial == m.Serial && x.Authority == m.Issuer }) {
			continue
		}
		also, err := c.RevokeCertificate(ctx, m)
		if err != nil {
			return nil, err
		}
		revoked = append(revoked, also...)
	}
	return revoked, nil
}

// noteRenewal prints the step that remains at the authority. Only certificates of nodes are renewed, so it prints nothing for users and
// operators. A serial number that no node reported could be that of a node.
func (tc *trustCommands) noteRenewal(r client.Revoke, revoked []rhumb.Revocation) {
	what := ""
	switch {
	case r.Node != "":
		what = "--node " + r.Node
	case r.Serial != "" && len(revoked) > 0 && (revoked[0].Name == "" || strings.HasPrefix(revoked[0].Name, identity.RoleNode.String()+" ")):
		what = revoked[0].Serial
	default:
		return
	}
	tc.Notef("the authority still renews it: run `rhumb authority revoke %s --authority DIR` where the authority is, and then this command once more, "+
		"because a certificate that was issued in between is valid; an external authority has its own way", what)
}

// noteUnseen says that no node has seen a certificate of the user or operator: certificates are revoked by name whether they were seen
// or not, so a misspelled name would look like success.
func (tc *trustCommands) noteUnseen(ctx context.Context, c *client.Client, r client.Revoke) {
	name, role := r.User, identity.RoleUser
	if r.Operator != "" {
		name, role = r.Operator, identity.RoleOperator
	}
	if name == "" {
		return
	}
	all, err := c.Certificates(ctx)
	if err != nil {
		return // the revocation stands; the note is a courtesy
	}
	if slices.ContainsFunc(all.Certificates, func(x client.Certificate) bool { return x.Name == name && x.Role == role.String() }) {
		return
	}
	tc.Notef("no %s named %s is connected at the moment; if you expected one, check the name with `rhumb cert ls`", role, name)
}

// trustCommand returns the command that adds an authority. The file holds certificates, as ca.crt
// of a node does. A file with a key in it is refused: it should not be on this machine.
func (tc *trustCommands) trustCommand() *cobra.Command {
	return tc.connected(&cobra.Command{
		Use: "trust FILE", Short: "Make all nodes accept another authority",
		Long: `Make all nodes accept the authorities in a file, besides those in their own files. This is the first step of a change of the
authority; rhumb cert ls shows when no node needs the old one any more.

It takes the certificate of an operator (rhumb authority operator), with which the command signs for the authorities. Each node
verifies the signature, by the authorities in its own files. rhumb cert ls shows which nodes do not accept an authority.`,
		Example: "  rhumb cert trust new-ca.crt",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			certs, err := tc.readCertificates(args[0])
			if err != nil {
				return err
			}
			// The request carries certificates as DER.
			var ders [][]byte
			for _, c := range certs {
				ders = append(ders, c.Raw)
			}
			return tc.setTrust(cmd.Context(), ders, nil, false)
		},
	})
}

// distrustCommand returns the command that rejects an authority. It takes the file of the authority
// or its fingerprint. A name that consists of hexadecimal digits only is a fingerprint, so a file
// of such a name needs a path: ./abcdef12.
func (tc *trustCommands) distrustCommand() *cobra.Command {
	var force bool
	c := &cobra.Command{
		Use: "distrust FILE|FINGERPRINT", Short: "Make all nodes reject an authority",
		Long: `Make all nodes reject an authority and every certificate from it, even if the authority is in their files. This is the last step
of a change of the authority, and the answer to a stolen key. It is final: an authority with the same key is never trusted again.

While a node uses a certificate from the authority, or does not answer, the command refuses. --force overrides that and cuts the
node off.`,
		Example: "  rhumb cert distrust old-ca.crt\n  rhumb cert distrust 3f9a0c2be1774d10",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			names := []string{args[0]}
			// A fingerprint has no other characters.
			if strings.Trim(args[0], "0123456789abcdefABCDEF") != "" {
				certs, err := tc.readCertificates(args[0])
				if err != nil {
					return err
				}
				// A file may hold several authorities, and all of them are meant.
				names = nil
				for _, c := range certs {
					names = append(names, identity.AuthorityOf(c))
				}
			}
			return tc.setTrust(cmd.Context(), nil, names, force)
		},
	}
	c.Flags().BoolVar(&force, "force", false, "even if nodes use certificates from the authority, or do not answer")
	return tc.connected(c)
}

// setTrust changes the trusted authorities and prints all of them, so that the operator sees what
// is left.
func (tc *trustCommands) setTrust(ctx context.Context, trust [][]byte, distrust []string, force bool) error {
	return tc.conn.With(ctx, func(ctx context.Context, c *client.Client) error {
		all, err := c.SetTrust(ctx, trust, distrust, force)
		if err != nil {
			return err
		}
		return tc.Print(all, authoritySection(all))
	})
}

// gossipCommand returns the group of commands for the keys of gossip. No command sets a key: nodes
// draw keys at random, and nobody ever has to know one.
func (tc *trustCommands) gossipCommand() *cobra.Command {
	ls := &cobra.Command{
		Use: "ls", Short: "List the versions of the keys of gossip", Args: cobra.NoArgs,
		Long:    `List the version and the numbers of the keys of gossip in the metadata and at each node. The keys themselves are never shown.`,
		Example: "  rhumb gossip ls",
		RunE: func(cmd *cobra.Command, _ []string) error {
			return tc.conn.With(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				version, keys, nodes, err := c.GossipKeys(ctx)
				if err != nil {
					return err
				}
				doc := map[string]any{"version": version, "keys": keys, "nodes": nodes}
				return tc.Print(doc, func(t table.Writer) {
					t.AppendHeader(table.Row{"NODE", "NAME", "VERSION", "KEYS", "STATE"})
					// The first row is the target for all others.
					t.AppendRow(table.Row{"metadata", "", version, fmt.Sprint(keys), ""})
					for _, n := range nodes {
						t.AppendRow(table.Row{n.Node, n.Name, n.GossipVersion, fmt.Sprint(n.GossipKeys), gossipState(n, version)})
					}
				})
			})
		},
	}
	rotate := &cobra.Command{
		Use: "rotate", Short: "Replace the key of gossip", Args: cobra.NoArgs,
		Long: `Replace the key that encrypts gossip, without an interruption: the new key is added everywhere, then encrypts, and then the old
one is dropped. Each step waits until all nodes that are not fenced have it. A node that is down learns the key when it returns.
After an error, run the command again: it continues.`,
		Example: "  rhumb gossip rotate\n  rhumb gossip rotate --timeout 2m",
		RunE: func(cmd *cobra.Command, _ []string) error {
			return tc.conn.With(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				r, err := c.RotateGossipKeys(ctx)
				if err != nil {
					return err
				}
				return tc.Print(r, func(t table.Writer) {
					// AWAY lists the nodes that learn the key when they return.
					t.AppendHeader(table.Row{"VERSION", "KEY", "AWAY"})
					t.AppendRow(table.Row{r.Version, r.Key, describeNodeIDs(r.Away)})
				})
			})
		},
	}
	return commandGroup("gossip", "List and replace the keys of gossip", tc.connected(ls), tc.connected(rotate))
}

// gossipState describes how far a node is.
func gossipState(n client.NodeIdentity, version uint64) string {
	switch {
	// A node that does not answer may have installed the keys.
	case n.Err != "":
		return n.Err
	// A rotation is refused in such a cluster.
	case !n.Secure:
		return "insecure"
	// The node installs the keys with the next change of the metadata that reaches it.
	case n.GossipVersion < version:
		return "behind"
	}
	return "installed"
}
