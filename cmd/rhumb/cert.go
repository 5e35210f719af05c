package main

import (
	"crypto/x509"
	"net"
	"strings"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/authority"
	"github.com/rhumbdb/rhumb/identity"
)

// certSizeMax bounds the files with certificates that commands read.
const certSizeMax = 1 << 20

// readCertificates reads the certificates in a file. A file may hold several, such as ca.crt with those of all authorities.
func (i inputs) readCertificates(name string) ([]*x509.Certificate, error) {
	text, err := i.readFile(name, certSizeMax)
	if err != nil {
		return nil, err
	}
	certs, err := identity.ParseCertificates(text)
	if err != nil {
		return nil, rhumb.Ef("rhumb.cert", rhumb.InvalidArgument, "%s: %s", name, rhumb.Message(err))
	}
	return certs, nil
}

// certCommand returns the group of commands for certificates: those for files, and those that ask a
// cluster.
func (ac *authorityCommands) certCommand(online ...*cobra.Command) *cobra.Command {
	// trustCommands adds the commands online, which need a connection and no directory.
	return commandGroup("cert", "Make, show, list and revoke certificates", append([]*cobra.Command{ac.certCreateCommand(), ac.certShowCommand()}, online...)...)
}

// certCreateCommand returns the command that creates a certificate as files.
func (ac *authorityCommands) certCreateCommand() *cobra.Command {
	var out, csr string
	var life time.Duration
	var hosts []string
	c := &cobra.Command{
		Use: "create node|user|operator NAME --authority DIR --out DIR", Short: "Make a certificate by hand",
		Long: `Make a certificate, its key and ca.crt as files. A node takes them by --cert, --key and --ca; they are not renewed by themselves.
With --csr, the key stays where the certificate request was made.`,
		Example: `  rhumb cert create user tower --authority ./authority --out ./tower
  rhumb cert create node eu-1 --authority ./authority --out ./eu-1 --address eu-1.example.com --ttl 720h
  rhumb cert create user tower --authority ./authority --out ./tower --csr tower.csr`,
		Args: cobra.ExactArgs(2),
		RunE: func(_ *cobra.Command, args []string) error {
			role, err := identity.ParseRole(args[0])
			if err != nil {
				return err
			}
			o := authority.Order{Role: role, Name: args[1], Life: life, Hosts: hosts}
			// Without --csr, Issue creates the key, and issue writes it to a file.
			if csr != "" {
				text, err := ac.readFile(csr, certSizeMax)
				if err != nil {
					return err
				}
				o.CSR = string(text)
			}
			return ac.issue(o, out)
		},
	}
	ac.issueFlags(c, &out, &life)
	c.Flags().StringSliceVar(&hosts, "address", nil, "host name or address to put into the certificate, for other software; Rhumb does not look at it")
	c.Flags().StringVar(&csr, "csr", "", "certificate request in PEM; no key is made then")
	return ac.withAuthority(c)
}

// certificateDoc is a certificate as `cert show` and `cert create` print it.
//
// It says everything that Rhumb looks at, in the words that Rhumb uses. For the other fields of a
// certificate there are other tools, such as openssl.
type certificateDoc struct {
	// URI is the name as the certificate contains it. URI and Cluster are empty for authorities,
	// whose Role is "ca".
	URI     string `json:"uri,omitempty"`
	Cluster string `json:"cluster_id,omitempty"`
	// Role and Name are parts of URI, so that programs need not parse it.
	Role string `json:"role"`
	Name string `json:"name"`
	// Serial identifies the certificate in the list of revoked ones.
	Serial string `json:"serial"`
	// NotBefore is earlier than the time of issue, because clocks of nodes differ.
	NotBefore time.Time `json:"not_before"`
	NotAfter  time.Time `json:"not_after"`
	// Key is the kind of the public key.
	Key string `json:"key"`
	// Authority is the hash of the key of an authority, by which commands name it.
	Authority string `json:"authority,omitempty"`
	// Issuer is the distinguished name of the authority that signed the certificate.
	Issuer string `json:"issuer"`
	// Hosts are names and addresses for other software.
	Hosts []string `json:"hosts,omitempty"`
	// Files are the files that the command wrote.
	Files []string `json:"files,omitempty"`
	// Problem says why Rhumb would refuse the certificate.
	Problem string `json:"problem,omitempty"`
}

// certShowCommand returns the command that prints the certificates in a file. It needs no authority
// and no cluster.
func (ac *authorityCommands) certShowCommand() *cobra.Command {
	return &cobra.Command{
		Use: "show FILE", Short: "Show the certificates in a file", Args: cobra.ExactArgs(1),
		Example: "  rhumb cert show /var/lib/rhumb/identity/node.crt\n  rhumb cert show ca.crt -o json",
		RunE: func(_ *cobra.Command, args []string) error {
			certs, err := ac.readCertificates(args[0])
			if err != nil {
				return err
			}
			var docs []certificateDoc
			var sections []func(table.Writer)
			// A file such as ca.crt has several; each gets a table of its own.
			for _, c := range certs {
				doc := describeCertificate(c)
				docs = append(docs, doc)
				sections = append(sections, doc.fill)
			}
			if ac.ForPrograms() {
				return ac.Print(docs, nil)
			}
			return ac.PrintSections(sections...)
		},
	}
}

// describeCertificate describes a certificate, and what Rhumb would reject about it.
func describeCertificate(c *x509.Certificate) certificateDoc {
	doc := certificateDoc{
		Serial: identity.SerialOf(c), NotBefore: c.NotBefore.UTC(), NotAfter: c.NotAfter.UTC(), Key: c.PublicKeyAlgorithm.String(), Issuer: c.Issuer.String(),
	}
	if c.IsCA {
		// Authorities have no URI: they speak for the cluster and not for one member.
		doc.Role, doc.Name, doc.Authority = "ca", c.Subject.String(), identity.AuthorityOf(c)
	} else if name, err := identity.FromCertificate(c); err != nil {
		doc.Problem = rhumb.Message(err)
	} else {
		doc.URI, doc.Cluster, doc.Role, doc.Name = name.String(), name.Cluster.String(), name.Role.String(), name.Name
	}
	doc.Hosts = append(doc.Hosts, c.DNSNames...)
	for _, ip := range c.IPAddresses {
		doc.Hosts = append(doc.Hosts, net.IP(ip).String())
	}
	// Tests replace the clock.
	now := time.Now()
	if wallClock != nil {
		now = wallClock()
	}
	// The last problem wins: a certificate outside its lifetime cannot be used for anything.
	switch {
	case now.After(c.NotAfter):
		doc.Problem = "it has expired"
	case now.Before(c.NotBefore):
		doc.Problem = "it is not valid yet"
	}
	return doc
}

// fill fills the table of one certificate.
func (d certificateDoc) fill(t table.Writer) {
	// Empty fields are left out of the table. The document for programs omits them by their tags.
	row := func(name string, value any) {
		if value != "" {
			t.AppendRow(table.Row{name, value})
		}
	}
	row("role", d.Role)
	row("name", d.Name)
	row("cluster", d.Cluster)
	row("serial", d.Serial)
	row("valid from", stamp(d.NotBefore))
	row("valid until", stamp(d.NotAfter))
	row("key", d.Key)
	row("hash of the key", d.Authority)
	row("issuer", d.Issuer)
	row("hosts", strings.Join(d.Hosts, ", "))
	row("files", strings.Join(d.Files, ", "))
	row("problem", d.Problem)
}

// printCertificate prints one certificate, after it was created.
func (ac *authorityCommands) printCertificate(doc certificateDoc) error {
	return ac.Print(doc, doc.fill)
}
