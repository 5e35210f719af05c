package main

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/authority"
	"github.com/rhumbdb/rhumb/authority/ledger"
	"github.com/rhumbdb/rhumb/authority/token"
)

// tokenDoc is a token as `token create` and `token ls` print it.
type tokenDoc struct {
	// ID identifies the token for `token rm`; it is not secret.
	ID string `json:"id"`
	// Node is the name that the certificate will have.
	Node string `json:"node"`
	// Founder is set if the node may create the cluster.
	Founder bool `json:"founder"`
	// Expires is the end of the token by the clock of the authority.
	Expires time.Time `json:"expires"`
	// Token is in the output of `token create` only, unless the token is in File.
	Token string `json:"token,omitempty"`
	File  string `json:"file,omitempty"`
	// State is open, used, expired, removed or void.
	State string `json:"state,omitempty"`
	// Used is when it was used.
	Used time.Time `json:"used,omitzero"`
}

// tokenCommand returns the group of commands for tokens.
func (ac *authorityCommands) tokenCommand() *cobra.Command {
	return commandGroup("token", "Make and list one-time tokens for new nodes", ac.tokenCreateCommand(), ac.tokenListCommand(), ac.tokenRemoveCommand())
}

// tokenFlags are the flags of `token create`.
type tokenFlags struct {
	// nodes are the names for which tokens are made, in the order of the flags.
	nodes []string
	// founder concerns the first node only. force allows it although the cluster may exist already.
	founder bool
	force   bool
	// life is how long each token can be used.
	life time.Duration
	// out is a file for one token, outDir a folder for any number. With neither, tokens are
	// printed.
	out, outDir string
}

// tokenCreateCommand returns the command that creates tokens.
func (ac *authorityCommands) tokenCreateCommand() *cobra.Command {
	var f tokenFlags
	c := &cobra.Command{
		Use: "create --authority DIR --node NAME", Short: "Make a one-time token for a new node",
		Long: `Make a token with which a node gets its first certificate: rhumb start --token FILE. A token names the node and the authority,
works once and for an hour, and needs neither the cluster nor a running authority when it is made.

One node of a new cluster gets a token with --founder: this node creates the cluster. With several --node, it is the first.`,
		Example: `  rhumb token create --authority ./authority --node eu-1 --founder --out eu-1.token
  rhumb token create --authority ./authority --node us-1 > us-1.token
  rhumb token create --authority ./authority --node eu-2 --node eu-3 --out-dir ./tokens
  rhumb token create --authority ./authority --node eu-2 --node eu-3 -o json`,
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error { return ac.createTokens(f) },
	}
	fl := c.Flags()
	fl.StringSliceVar(&f.nodes, "node", nil, "name of the node, such as eu-1; repeat the flag for more tokens")
	fl.BoolVar(&f.founder, "founder", false, "the (first) node creates the cluster")
	fl.BoolVar(&f.force, "force", false, "with --founder: although the cluster may exist already")
	fl.DurationVar(&f.life, "ttl", authority.TokenLifeDefault, fmt.Sprintf("how long the token can be used, at most %d days", authority.TokenLifeMax/(24*time.Hour)))
	fl.StringVar(&f.out, "out", "", "write the token to this file, which only the owner can read")
	fl.StringVar(&f.outDir, "out-dir", "", "write each token to NAME.token in this folder")
	must(c.MarkFlagRequired("node"))
	c.MarkFlagsMutuallyExclusive("out", "out-dir")
	return ac.withAuthority(c)
}

// createTokens creates a token for each node. Tokens that were created before an error stay valid;
// `rhumb token ls` lists them.
//
// Tokens for several nodes are made in one call because the authority may be on a machine that an
// operator has to unlock first.
func (ac *authorityCommands) createTokens(f tokenFlags) error {
	const op rhumb.Op = "rhumb.token"
	if f.out != "" && len(f.nodes) > 1 {
		return rhumb.E(op, rhumb.InvalidArgument, "--out takes one token; use --out-dir for several nodes")
	}
	for i, node := range f.nodes {
		// Both would have the same file, and the token that is lost would stay open.
		if slices.Contains(f.nodes[:i], node) {
			return rhumb.Ef(op, rhumb.InvalidArgument, "--node %s is given twice; one node needs one token", node)
		}
	}
	// The package takes zero for the default; here it is most likely a variable without a value.
	if f.life < time.Second {
		return rhumb.Ef(op, rhumb.InvalidArgument, "--ttl %v; want 1s to %v", f.life, authority.TokenLifeMax)
	}
	a, err := ac.open(slog.LevelWarn)
	if err != nil {
		return err
	}
	defer a.Close()
	if f.outDir != "" {
		if err := os.MkdirAll(f.outDir, 0o700); err != nil {
			return rhumb.WrapKind(op, rhumb.InvalidArgument, err)
		}
	}
	var docs []tokenDoc
	for i, node := range f.nodes {
		t, err := a.CreateToken(authority.TokenRequest{Node: node, Founder: f.founder && i == 0, Force: f.force, Life: f.life})
		if err != nil {
			return err
		}
		// A token that is written to a file is not printed too, so that it does not stay in the
		// scroll-back of a terminal or in a log.
		doc := tokenDoc{ID: t.ID.String(), Node: t.Node, Founder: t.Founder, Expires: t.Expires.UTC()}
		switch {
		case f.out != "":
			doc.File = f.out
		case f.outDir != "":
			doc.File = filepath.Join(f.outDir, node+".token")
		default:
			doc.Token = t.Encode()
		}
		if doc.File != "" {
			if err := ledger.WriteFile(doc.File, []byte(t.Encode()+"\n"), 0o600); err != nil {
				return rhumb.WrapKind(op, rhumb.Unavailable, err)
			}
		}
		docs = append(docs, doc)
	}
	if len(docs) == 1 && docs[0].Token != "" && !ac.ForPrograms() {
		// The token alone, so that the output can be redirected to a file.
		_, err := fmt.Fprintln(ac.Out, docs[0].Token)
		ac.Notef("for node %s, until %s; once; keep it secret (chmod 600)", docs[0].Node, stamp(docs[0].Expires))
		return err
	}
	return ac.Print(docs, func(t table.Writer) {
		t.AppendHeader(table.Row{"ID", "NODE", "FOUNDER", "EXPIRES", "TOKEN"})
		for _, d := range docs {
			// Only one of the two is set.
			t.AppendRow(table.Row{d.ID, d.Node, d.Founder, stamp(d.Expires), d.Token + d.File})
		}
	})
}

// tokenListCommand returns the command that lists tokens. It cannot print a secret, because the
// ledger has only hashes.
func (ac *authorityCommands) tokenListCommand() *cobra.Command {
	var all bool
	c := &cobra.Command{
		Use: "ls --authority DIR", Short: "List tokens and their state, without secrets", Args: cobra.NoArgs,
		Example: "  rhumb token ls --authority ./authority\n  rhumb token ls --authority ./authority --all -o json",
		RunE: func(*cobra.Command, []string) error {
			a, err := ac.open(slog.LevelWarn)
			if err != nil {
				return err
			}
			defer a.Close()
			tokens, now, err := a.Tokens()
			if err != nil {
				return err
			}
			docs := []tokenDoc{}
			for _, t := range tokens {
				// Used tokens are listed because they say which node founded the cluster and who
				// was enrolled.
				if state := t.State(now); all || state == "open" || state == "used" {
					docs = append(docs, tokenDoc{ID: t.ID, Node: t.Node, Founder: t.Founder, Expires: t.Expires, State: state, Used: t.Used})
				}
			}
			return ac.Print(docs, func(t table.Writer) {
				t.AppendHeader(table.Row{"ID", "NODE", "FOUNDER", "STATE", "EXPIRES", "USED"})
				for _, d := range docs {
					used := ""
					if !d.Used.IsZero() {
						used = stamp(d.Used)
					}
					t.AppendRow(table.Row{d.ID, d.Node, d.Founder, d.State, stamp(d.Expires), used})
				}
			})
		},
	}
	c.Flags().BoolVar(&all, "all", false, "also those that are expired, removed or void")
	return ac.withAuthority(c)
}

// tokenRemoveCommand returns the command that removes a token.
func (ac *authorityCommands) tokenRemoveCommand() *cobra.Command {
	c := &cobra.Command{
		Use: "rm ID --authority DIR", Short: "Make a token unusable",
		Long:    `Make a token unusable. Removing a used token does not affect the node's certificate; it allows another --founder.`,
		Example: "  rhumb token rm 9f86d081884c7d65 --authority ./authority",
		Args:    cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			// A misspelt ID is reported before the authority is opened, which may have to be unlocked first.
			id, err := token.ParseID(args[0])
			if err != nil {
				return err
			}
			a, err := ac.open(slog.LevelWarn)
			if err != nil {
				return err
			}
			defer a.Close()
			return a.RemoveToken(id)
		},
	}
	return ac.withAuthority(c)
}
