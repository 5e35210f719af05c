package main

import (
	"crypto/x509"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/rhumbdb/rhumb/cli/output"
	"github.com/rhumbdb/rhumb/identity"
)

// The certificates of operators and users are made by hand and nobody renews them. A command could ask
// the server of the authority, as nodes do. But then a stolen key of an operator would renew itself
// without end, and the server would need the right to make operators. So the command says in time what
// to run where the authority is.

// lastWeek is the time before its end within which a certificate is mentioned to programs too.
const lastWeek = 7 * 24 * time.Hour

// renewalHint returns what to say about a certificate that a command uses: nothing for two thirds of
// its life, then the command that makes another one. Programs hear of it in the last week only.
func renewalHint(file string, leaf *x509.Certificate, now time.Time, terminal bool) string {
	left := leaf.NotAfter.Sub(now)
	issued := identity.IssuedAt(leaf)
	name, err := identity.FromCertificate(leaf)
	switch {
	// Expired ones are an error elsewhere, and nodes renew without help.
	case err != nil || left <= 0 || name.Role != identity.RoleOperator && name.Role != identity.RoleUser:
		return ""
	case now.Before(issued.Add(leaf.NotAfter.Sub(issued)*2/3)) || !terminal && left > lastWeek:
		return ""
	}
	command := "cert create user"
	if name.Role == identity.RoleOperator {
		command = "authority operator"
	}
	days := fmt.Sprintf("%d days", left/(24*time.Hour))
	if left < 48*time.Hour {
		days = left.Round(time.Minute).String()
	}
	return fmt.Sprintf("the certificate of %s (%s) expires in %s; where the authority is, run `rhumb %s %s --authority DIR --out %s`, and put the new files in place of these",
		name.Short(), file, days, command, name.Name, filepath.Base(filepath.Dir(file))+".new")
}

// noteExpiry mentions the certificate of the caller if it ends soon.
func (s *session) noteExpiry() {
	if s.conn.Cert == "" {
		return
	}
	text, err := os.ReadFile(s.conn.Cert)
	if err != nil {
		return // the connection reports it
	}
	certs, err := identity.ParseCertificates(text)
	if err != nil || len(certs) == 0 {
		return
	}
	if hint := renewalHint(s.conn.Cert, certs[0], time.Now(), output.IsTerminal(s.Err)); hint != "" {
		s.Notef("%s", hint)
	}
}
