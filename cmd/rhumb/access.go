package main

import (
	"context"
	"strings"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/access"
	"github.com/rhumbdb/rhumb/cli/output"
	"github.com/rhumbdb/rhumb/cli/secret"
	"github.com/rhumbdb/rhumb/client"
	"github.com/rhumbdb/rhumb/client/login"
)

// opAccess is the operation of errors that the commands about users, roles and grants find themselves.
const opAccess rhumb.Op = "rhumb.access"

// accessCommands are the commands about users, roles and grants.
//
// They work through any node, which forwards a change to the leader of the metadata. When a command
// returns, the change is durable; each node enforces it as soon as its copy of the metadata has it,
// usually within milliseconds.
type accessCommands struct{ *session }

// accessDone is the document of a change.
type accessDone struct {
	// User and Role name the user or role that was changed. A grant concerns a role, so User is empty then.
	User string `json:"user,omitempty"`
	Role string `json:"role,omitempty"`
	// On is the grant that was changed, and nil for all other changes.
	On *grantDoc `json:"grant,omitempty"`
	// Remains has the rights of a revocation that the role keeps, by grants in wider or narrower scopes.
	Remains []grantDoc `json:"remains,omitempty"`
	// Done is a participle such as "created" or "removed", which completes a sentence about the user or role.
	Done string `json:"done"`
}

// grantDoc is a grant as commands print it.
type grantDoc struct {
	// Role is empty where the document that contains the grant names the role.
	Role string `json:"role,omitempty"`
	// Cluster excludes Table and Prefix: a grant concerns either the cluster as a whole or records.
	Cluster bool   `json:"cluster"`
	Table   string `json:"table,omitempty"`
	// Prefix is printed as names are: as text, or as 0x and hexadecimal digits if it is not printable.
	Prefix string   `json:"prefix,omitempty"`
	Rights []string `json:"rights"`
}

// describeGrant returns the document of a grant.
func describeGrant(role string, g access.Grant) grantDoc {
	d := grantDoc{Role: role, Cluster: g.Scope.Cluster, Table: g.Scope.Table, Rights: g.Rights.Names()}
	// An empty prefix stays out of the document, which means that all names of the table are covered.
	if g.Scope.Prefix != "" {
		d.Prefix = rhumb.NameString([]byte(g.Scope.Prefix))
	}
	return d
}

// scope returns the scope of a grant in the words of a table.
func (d *grantDoc) scope() string {
	switch {
	case d.Cluster:
		return "cluster"
	// The star under which the catalog keeps this scope reads badly in a sentence.
	case d.Table == access.AllTables:
		return "all tables"
	}
	return "table " + d.Table
}

// sentence returns scope and rights for people.
func (d *grantDoc) sentence() string {
	text := d.scope()
	if d.Prefix != "" {
		text += ", names that begin with " + d.Prefix
	}
	return text + ": " + strings.Join(d.Rights, ",")
}

// change runs a change and prints its document.
func (ac *accessCommands) change(ctx context.Context, doc accessDone, fn func(ctx context.Context, c *client.Client) error) error {
	// Nothing is printed before the cluster has made the change.
	return ac.conn.With(ctx, func(ctx context.Context, c *client.Client) error {
		if err := fn(ctx, c); err != nil {
			return err
		}
		return ac.printDone(doc)
	})
}

// printDone prints the change that a command has made, as a sentence or a document.
func (ac *accessCommands) printDone(doc accessDone) error {
	if ac.ForPrograms() {
		return ac.PrintDocument(doc)
	}
	// People get a sentence on standard error, since a change has no data.
	subject := "user " + doc.User
	if doc.User == "" {
		subject = "role " + doc.Role
	} else if doc.Role != "" {
		subject += ", role " + doc.Role
	}
	if doc.On != nil {
		subject += ", " + doc.On.sentence()
	}
	ac.Notef("%s %s", subject, doc.Done)
	return nil
}

// newPassword says where the new password of a user is from. The flags of the connection name the
// password with which the command itself logs in, so this one has a name of its own.
//
// A password in a flag would be in the history of the shell and in the list of processes.
type newPassword struct {
	// file is the name of the file that holds the password. If it is empty, the terminal is asked.
	file string
	// none is set for a user that logs in by certificate only.
	none bool
}

// verifier reads the new password and returns its verifier. The password itself goes nowhere.
func (p *newPassword) verifier(user string) (access.Verifier, error) {
	// The zero verifier means that the user has no password.
	if p.none {
		return access.Verifier{}, nil
	}
	// Asked twice: the terminal does not show the password.
	text, err := "", error(nil)
	if p.file != "" {
		text, err = secret.FromFile(p.file)
	} else {
		text, err = secret.AskTwice(user)
	}
	if err != nil {
		return access.Verifier{}, err
	}
	return login.NewVerifier(user, text)
}

// userCommand is `rhumb user`.
func (ac *accessCommands) userCommand() *cobra.Command {
	// Each command has its own flags, although two share names.
	var made, changed newPassword
	var roles []string
	create := &cobra.Command{
		Use: "create NAME", Short: "Create a user",
		Long: `Create a user. The new password is asked for on the terminal or read from a file, never taken from a flag or the
environment, and leaves this program only as a verifier from which it cannot be computed. A user without a password logs in with a
certificate of its name. A new user has no rights but those of its roles.`,
		Example: `  rhumb user create ann --role reader
  rhumb user create app --new-password-file app.password --role flights-writer
  rhumb user create sensor-7 --no-password --role sensors   # logs in by certificate`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return ac.createUser(cmd.Context(), args[0], &made, roles)
		},
	}
	create.Flags().StringVar(&made.file, "new-password-file", "", "file that holds the password of the new user")
	create.Flags().BoolVar(&made.none, "no-password", false, "create a user that logs in by certificate only")
	create.Flags().StringSliceVar(&roles, "role", nil, "role of the user; repeat the flag for more")
	create.MarkFlagsMutuallyExclusive("new-password-file", "no-password")
	passwd := &cobra.Command{
		Use: "passwd [NAME]", Short: "Change a password, by default your own",
		Long: `Change the password of a user. Everybody may replace the own password; the passwords of others take the right to administer the
cluster. Sessions that began with the old password end.`,
		Example: `  rhumb user passwd
  rhumb user passwd app --new-password-file app.password
  rhumb user passwd app --no-password   # from now on by certificate only`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error { return ac.changePassword(cmd.Context(), args, &changed) },
	}
	passwd.Flags().StringVar(&changed.file, "new-password-file", "", "file that holds the new password")
	passwd.Flags().BoolVar(&changed.none, "no-password", false, "remove the password")
	passwd.MarkFlagsMutuallyExclusive("new-password-file", "no-password")
	ls := &cobra.Command{
		Use: "ls", Short: "List the users; without the right to administer the cluster, yourself", Args: cobra.NoArgs,
		Example: "  rhumb user ls\n  rhumb user ls -o json",
		RunE:    func(cmd *cobra.Command, _ []string) error { return ac.listUsers(cmd.Context()) },
	}
	// disable and enable differ in one word only.
	enable := func(use, short string, on bool) *cobra.Command {
		return &cobra.Command{
			Use: use + " NAME", Short: short, Args: cobra.ExactArgs(1), Example: "  rhumb user " + use + " ann",
			RunE: func(cmd *cobra.Command, args []string) error {
				return ac.change(cmd.Context(), accessDone{User: args[0], Done: use + "d"}, func(ctx context.Context, c *client.Client) error {
					return c.EnableUser(ctx, args[0], on)
				})
			},
		}
	}
	rm := &cobra.Command{
		Use: "rm NAME", Short: "Remove a user", Args: cobra.ExactArgs(1), Example: "  rhumb user rm ann",
		Long: `Remove a user and end its sessions. Certificates of the user have no rights from then on, but would have those of a new user of the
same name: revoke them too (rhumb cert revoke).`,
		RunE: func(cmd *cobra.Command, args []string) error {
			return ac.change(cmd.Context(), accessDone{User: args[0], Done: "removed"}, func(ctx context.Context, c *client.Client) error {
				return c.DropUser(ctx, args[0])
			})
		},
	}
	return commandGroup("user", "Create, change and list users", ac.connected(create), ac.connected(passwd), ac.connected(ls),
		ac.connected(enable("disable", "Take all rights from a user and end its sessions", false)),
		ac.connected(enable("enable", "Undo disable", true)), ac.connected(rm))
}

// createUser creates a user with its password and its first roles.
func (ac *accessCommands) createUser(ctx context.Context, name string, p *newPassword, roles []string) error {
	// A wrong name fails before a password is typed.
	if err := access.ValidateName("user", name); err != nil {
		return err
	}
	v, err := p.verifier(name)
	if err != nil {
		return err
	}
	return ac.change(ctx, accessDone{User: name, Role: strings.Join(roles, ","), Done: "created"}, func(ctx context.Context, c *client.Client) error {
		return c.CreateUser(ctx, name, v, roles...)
	})
}

// changePassword changes the password of the caller, or of another user if the caller may.
func (ac *accessCommands) changePassword(ctx context.Context, args []string, p *newPassword) error {
	return ac.conn.With(ctx, func(ctx context.Context, c *client.Client) error {
		name := ""
		if len(args) > 0 {
			name = args[0]
		} else {
			// Asked before the password is typed: a verifier is computed for a name, and nobody
			// should type a password twice to learn that there is nothing to change.
			me, err := c.WhoAmI(ctx)
			if err != nil {
				return err
			}
			// Operators, and everybody on an insecure cluster, have no password.
			if me.User == nil {
				return rhumb.Ef(opAccess, rhumb.InvalidArgument, "you are %s and have no password; name the user whose password to change", me.Principal)
			}
			name = me.Name
		}
		v, err := p.verifier(name)
		if err != nil {
			return err
		}
		// The node gets the verifier only, and never the password.
		if err := c.SetPassword(ctx, name, v); err != nil {
			return err
		}
		done := "has a new password"
		if p.none {
			done = "has no password any more"
		}
		return ac.printDone(accessDone{User: name, Done: done})
	})
}

// listUsers prints the users that the caller may see.
func (ac *accessCommands) listUsers(ctx context.Context) error {
	return ac.conn.With(ctx, func(ctx context.Context, c *client.Client) error {
		users, err := c.Users(ctx)
		if err != nil {
			return err
		}
		for i := range users {
			// null would be another thing to handle for programs.
			if users[i].Roles == nil {
				users[i].Roles = []string{}
			}
		}
		// JSON and YAML print users as the client returns them; the table shortens them.
		return ac.Print(users, func(t table.Writer) {
			t.AppendHeader(table.Row{"USER", "ROLES", "LOGIN", "STATE"})
			// LOGIN and STATE are derived, so that the table has words where the document has true and false.
			for _, u := range users {
				t.AppendRow(table.Row{u.Name, strings.Join(u.Roles, ", "), describeLogin(u), describeState(u)})
			}
		})
	})
}

// describeLogin says how the user proves who it is.
func describeLogin(u client.UserInfo) string {
	if u.HasPassword {
		return "password, certificate"
	}
	return "certificate"
}

// describeState says whether the user may log in.
func describeState(u client.UserInfo) string {
	if u.Disabled {
		return "disabled"
	}
	return "enabled"
}

// roleDoc is a role as commands print it.
type roleDoc struct {
	// Name is the name by which users get the role and by which grants refer to it.
	Name string `json:"name"`
	// Grants are the rights of the role, in the order in which the node lists them. The list is never nil.
	Grants []grantDoc `json:"grants"`
	// Users are the names of those who have the role. The list is never nil, but empty if UsersHidden is set.
	Users []string `json:"users"`
	// UsersHidden is set if the caller may not see who has the role.
	UsersHidden bool `json:"users_hidden,omitempty"`
}

// roleCommand is `rhumb role`.
func (ac *accessCommands) roleCommand() *cobra.Command {
	create := &cobra.Command{
		Use: "create NAME", Short: "Create a role without rights", Args: cobra.ExactArgs(1), Example: "  rhumb role create flights-writer",
		RunE: func(cmd *cobra.Command, args []string) error {
			return ac.change(cmd.Context(), accessDone{Role: args[0], Done: "created"}, func(ctx context.Context, c *client.Client) error {
				return c.CreateRole(ctx, args[0])
			})
		},
	}
	ls := &cobra.Command{
		Use: "ls", Short: "List the roles; without the right to administer the cluster, your own, and not who has them", Args: cobra.NoArgs,
		Example: "  rhumb role ls\n  rhumb role ls -o json",
		RunE:    func(cmd *cobra.Command, _ []string) error { return ac.listRoles(cmd.Context()) },
	}
	// force is set by --force. The node refuses to remove a role in use without it.
	var force bool
	rm := &cobra.Command{
		Use: "rm NAME", Short: "Remove a role with its grants", Args: cobra.ExactArgs(1),
		Long:    "Remove a role with its grants. A role that users have is kept, unless --force takes it from them.",
		Example: "  rhumb role rm flights-writer\n  rhumb role rm flights-writer --force",
		RunE: func(cmd *cobra.Command, args []string) error {
			return ac.change(cmd.Context(), accessDone{Role: args[0], Done: "removed"}, func(ctx context.Context, c *client.Client) error {
				return c.DropRole(ctx, args[0], force)
			})
		},
	}
	rm.Flags().BoolVar(&force, "force", false, "take the role from all users that have it")
	// assign and unassign differ in the request only.
	assign := func(use, short string, do func(*client.Client) func(context.Context, string, string) error) *cobra.Command {
		return &cobra.Command{
			Use: use + " USER ROLE", Short: short, Args: cobra.ExactArgs(2), Example: "  rhumb role " + use + " ann flights-writer",
			RunE: func(cmd *cobra.Command, args []string) error {
				doc := accessDone{User: args[0], Role: args[1], Done: use + "ed"}
				return ac.change(cmd.Context(), doc, func(ctx context.Context, c *client.Client) error { return do(c)(ctx, args[0], args[1]) })
			},
		}
	}
	return commandGroup("role", "Create, assign and list roles", ac.connected(create), ac.connected(ls), ac.connected(rm),
		ac.connected(assign("assign", "Assign a role to a user", func(c *client.Client) func(context.Context, string, string) error { return c.AssignRole })),
		ac.connected(assign("unassign", "Take a role from a user", func(c *client.Client) func(context.Context, string, string) error { return c.UnassignRole })))
}

// listRoles prints the roles, and their users to those who may see them.
func (ac *accessCommands) listRoles(ctx context.Context) error {
	return ac.conn.With(ctx, func(ctx context.Context, c *client.Client) error {
		roles, err := c.Roles(ctx)
		if err != nil {
			return err
		}
		// Empty lists rather than null, which programs would have to handle.
		docs := make([]roleDoc, 0, len(roles))
		for _, r := range roles {
			doc := roleDoc{Name: r.Name, Grants: []grantDoc{}, Users: append([]string{}, r.Users...), UsersHidden: r.UsersHidden}
			for _, g := range r.Grants {
				doc.Grants = append(doc.Grants, describeGrant("", g))
			}
			docs = append(docs, doc)
		}
		// The table shows only the number of grants; `rhumb grant ls` lists them one by one.
		return ac.Print(docs, func(t table.Writer) {
			t.AppendHeader(table.Row{"ROLE", "GRANTS", "USERS"})
			for _, d := range docs {
				// A role may have thousands of users; rhumb role ls -o json lists them.
				users := output.Shorten(strings.Join(d.Users, ", "))
				if d.UsersHidden {
					users = "(not shown)"
				}
				t.AppendRow(table.Row{d.Name, len(d.Grants), users})
			}
		})
	})
}

// grantFlags select the scope and the rights of a grant.
//
// The flag of the cluster is --cluster-wide and not --cluster, which names the cluster to connect
// to in every command.
type grantFlags struct {
	// table, prefix and rights are the texts of the flags of the same names, before they are parsed.
	table, prefix, rights string
	// cluster is set by --cluster-wide, which excludes a table and a prefix.
	cluster bool
	// hasPrefix reports whether --prefix was given, perhaps with an empty text.
	hasPrefix func() bool
}

// register adds the flags to a command.
func (f *grantFlags) register(c *cobra.Command) *cobra.Command {
	c.Flags().StringVar(&f.table, "table", "", `table, or "*" for all tables; it need not exist yet`)
	c.Flags().StringVar(&f.prefix, "prefix", "", "only names that begin with this text, or with bytes written as 0x…")
	c.Flags().BoolVar(&f.cluster, "cluster-wide", false, "the cluster as a whole, with the rights read and admin")
	c.Flags().StringVar(&f.rights, "rights", "", "rights, separated by commas: "+access.TableRights.String())
	// Without --rights there would be no safe default: none does nothing, and all is too much.
	must(c.MarkFlagRequired("rights"))
	c.MarkFlagsMutuallyExclusive("table", "cluster-wide")
	c.MarkFlagsMutuallyExclusive("prefix", "cluster-wide")
	// An empty text is an error if the flag was given, so the value alone does not suffice.
	f.hasPrefix = func() bool { return c.Flags().Changed("prefix") }
	return c
}

// grant returns the grant that the flags describe.
func (f *grantFlags) grant() (access.Grant, error) {
	// Wrong flags fail before the command waits for a cluster.
	rights, err := access.ParseRights(f.rights)
	if err != nil {
		return access.Grant{}, err
	}
	g := access.Grant{Scope: access.Scope{Cluster: f.cluster, Table: f.table}, Rights: rights}
	if f.hasPrefix() {
		prefix, err := rhumb.ParseName(f.prefix)
		if err != nil {
			return g, err
		}
		// Every name begins with the empty text. In a script this is a variable without a value, whose role would get the whole
		// table.
		if len(prefix) == 0 {
			return g, rhumb.E(opAccess, rhumb.InvalidArgument, "--prefix is empty, which is the whole table; leave the flag out if that is meant")
		}
		g.Scope.Prefix = string(prefix)
	}
	// The absence of a scope must not mean the widest one.
	if f.table == "" && !f.cluster {
		return g, rhumb.E(opAccess, rhumb.InvalidArgument, `say what the rights are for: --table NAME, --table "*" for all tables, or --cluster-wide`)
	}
	return g, g.Validate()
}

// grantCommand is `rhumb grant`.
func (ac *accessCommands) grantCommand() *cobra.Command {
	var f grantFlags
	grant := &cobra.Command{
		// The command itself grants, and `grant ls` below it lists. So a role with the name ls gets no rights by this
		// command.
		Use: "grant ROLE", Short: "Grant rights to a role, or list grants",
		Long: `Grant rights to a role, in addition to those that it has. Everything that is not granted is denied.

Rights of a table concern the records whose names begin with the prefix: read, write (put, patch, insert), delete and watch. An
insert needs write on the whole table, because the server chooses the name. admin allows to create the table and to change its options,
not to read it. With --cluster-wide, read shows the state of the cluster and the names of all tables, and admin changes the
cluster, its tables, users, roles and grants. Neither shows a record.`,
		Example: `  rhumb grant flights-writer --table flights --rights read,write
  rhumb grant sensors --table readings --prefix sensor-7/ --rights write
  rhumb grant analysts --table "*" --rights read
  rhumb grant monitoring --cluster-wide --rights read
  rhumb grant ls`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return ac.addGrant(cmd.Context(), args[0], &f)
		},
	}
	ls := &cobra.Command{
		Use: "ls [ROLE]", Short: "List grants; without the right to administer the cluster, your own", Args: cobra.MaximumNArgs(1),
		Example: "  rhumb grant ls\n  rhumb grant ls flights-writer -o json",
		RunE:    func(cmd *cobra.Command, args []string) error { return ac.listGrants(cmd.Context(), args) },
	}
	grant.AddCommand(ac.connected(ls))
	return ac.connected(f.register(grant))
}

// revokeCommand is `rhumb revoke`.
func (ac *accessCommands) revokeCommand() *cobra.Command {
	// The flags are those of grant, so that a grant is taken back by the words that made it.
	var f grantFlags
	var gone bool
	revoke := &cobra.Command{
		Use: "revoke ROLE", Short: "Take rights from a role",
		Long: `Take rights from the grant of a role in exactly one scope. The command fails if the role has none of them there. Rights that the
role has by a shorter or longer prefix, or for all tables, remain, and the command lists them. Rights that a user has by another role
remain too. A request that is being served may still succeed; each node denies the next one as soon as it has the change.`,
		Example: `  rhumb revoke flights-writer --table flights --rights write
  rhumb revoke monitoring --cluster-wide --rights read`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return ac.revokeGrant(cmd.Context(), args[0], &f, gone)
		},
	}
	f.register(revoke)
	revoke.Flags().BoolVar(&gone, "if-exists", false, "succeed if there is no such role, or if it has none of the rights")
	return ac.connected(revoke)
}

// addGrant grants rights to a role.
func (ac *accessCommands) addGrant(ctx context.Context, role string, f *grantFlags) error {
	g, err := f.grant()
	if err != nil {
		return err
	}
	// The role is in accessDone already, so the document of the grant does not repeat it.
	doc := describeGrant("", g)
	return ac.change(ctx, accessDone{Role: role, On: &doc, Done: "granted"}, func(ctx context.Context, c *client.Client) error {
		return c.Grant(ctx, role, g.Scope, g.Rights)
	})
}

// revokeGrant takes rights from a role and lists those that remain. With gone it succeeds if the role has none of the rights.
func (ac *accessCommands) revokeGrant(ctx context.Context, role string, f *grantFlags, gone bool) error {
	g, err := f.grant()
	if err != nil {
		return err
	}
	// The document names the rights that were asked for, and the role may have had only some of them.
	doc := describeGrant("", g)
	done := accessDone{Role: role, On: &doc, Done: "revoked"}
	return ac.conn.With(ctx, func(ctx context.Context, c *client.Client) error {
		err := c.Revoke(ctx, role, g.Scope, g.Rights)
		switch {
		case gone && rhumb.KindOf(err) == rhumb.NotFound:
			done.Done = "not revoked: nothing is granted there"
		case err != nil:
			return err
		}
		// The revocation is done by now. It must not look like a failure if the roles cannot be read.
		roles, err := c.Roles(ctx)
		if err != nil {
			ac.Notef("what else the role may do is not known: %s", rhumb.Message(err))
		}
		for _, r := range roles {
			if r.Name != role {
				continue
			}
			for _, left := range access.Related(r.Grants, g) {
				done.Remains = append(done.Remains, describeGrant("", left))
			}
		}
		if err := ac.printDone(done); err != nil || ac.ForPrograms() {
			return err
		}
		// Rights that a user has by another role are not looked for: a command about a role cannot know whom its caller has in
		// mind.
		for _, left := range done.Remains {
			ac.Notef("role %s still has %s", role, left.sentence())
		}
		return nil
	})
}

// listGrants prints the grants of the named roles, or of all.
func (ac *accessCommands) listGrants(ctx context.Context, only []string) error {
	return ac.conn.With(ctx, func(ctx context.Context, c *client.Client) error {
		roles, err := c.Roles(ctx)
		if err != nil {
			return err
		}
		// A role without grants exists all the same.
		docs, found := []grantDoc{}, false
		for _, r := range roles {
			// Selected here and not by the node: all roles of a cluster fit into one answer.
			if len(only) > 0 && r.Name != only[0] {
				continue
			}
			found = true
			for _, g := range r.Grants {
				docs = append(docs, describeGrant(r.Name, g))
			}
		}
		if len(only) > 0 && !found {
			return rhumb.Ef(opAccess, rhumb.NotFound, "there is no role %s that you may see; `rhumb role ls` lists them", only[0])
		}
		return ac.printGrants(docs)
	})
}

// printGrants prints a table of grants.
func (ac *accessCommands) printGrants(docs []grantDoc) error {
	return ac.Print(docs, func(t table.Writer) {
		t.AppendHeader(table.Row{"ROLE", "SCOPE", "PREFIX", "RIGHTS"})
		for _, d := range docs {
			t.AppendRow(table.Row{d.Role, d.scope(), d.Prefix, strings.Join(d.Rights, ",")})
		}
	})
}

// callerDoc is the answer of `rhumb whoami`.
type callerDoc struct {
	// Kind is the kind of principal, such as a user, an operator or nobody on an insecure cluster.
	Kind string `json:"kind"`
	// Name is empty for callers without a name.
	Name string `json:"name,omitempty"`
	// Cluster is the ID of the cluster, omitted if it is not known.
	Cluster string   `json:"cluster,omitempty"`
	Roles   []string `json:"roles"`
	// Unlimited is set if no grant limits the caller, as for operators. Grants is empty then.
	Unlimited bool       `json:"unlimited"`
	Grants    []grantDoc `json:"grants"`
	// Revision is the revision of the metadata that last changed a user, role or grant.
	Revision uint64 `json:"policy_revision"`
}

// whoAmICommand is `rhumb whoami`.
func (ac *accessCommands) whoAmICommand() *cobra.Command {
	return ac.connected(&cobra.Command{
		Use: "whoami", Short: "Show who you are to the cluster, and your rights", Args: cobra.NoArgs,
		Example: "  rhumb whoami\n  rhumb whoami --context prod -o json",
		RunE: func(cmd *cobra.Command, _ []string) error {
			return ac.conn.With(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				me, err := c.WhoAmI(ctx)
				if err != nil {
					return err
				}
				return ac.printCaller(&me)
			})
		},
	})
}

// printCaller prints the identity and the rights of the caller.
func (ac *accessCommands) printCaller(me *client.Caller) error {
	// The form for programs has every field for every kind of caller.
	doc := callerDoc{Kind: me.Kind.String(), Name: me.Name, Roles: []string{}, Unlimited: me.Unlimited, Grants: []grantDoc{}, Revision: me.PolicyRevision}
	if !me.Cluster.IsZero() {
		doc.Cluster = me.Cluster.String()
	}
	// Only callers that the metadata knows as users have roles.
	if me.User != nil {
		doc.Roles = append(doc.Roles, me.User.Roles...)
	}
	for _, g := range me.Grants {
		doc.Grants = append(doc.Grants, describeGrant("", g))
	}
	return ac.Print(doc, func(t table.Writer) {
		// Principal.String names the kind, so that a user is not taken for an operator.
		t.AppendRow(table.Row{"you are", me.Principal.String()})
		t.AppendRow(table.Row{"cluster", doc.Cluster})
		if doc.Unlimited {
			t.AppendRow(table.Row{"rights", "all"})
			return
		}
		t.AppendRow(table.Row{"roles", strings.Join(doc.Roles, ", ")})
		for _, g := range doc.Grants {
			t.AppendRow(table.Row{g.scope(), strings.TrimSpace(g.Prefix + " " + strings.Join(g.Rights, ","))})
		}
	})
}
