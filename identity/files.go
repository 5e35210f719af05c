package identity

import (
	"crypto"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"syscall"

	"github.com/rhumbdb/rhumb"
)

// fileSizeMax bounds the size of a certificate, key or CA file in bytes. The bound keeps a mistyped
// path, such as that of a disk image, from being read into memory.
const fileSizeMax = 1 << 20

// authoritiesMax bounds the certificates in a CA file. Two are normal and three occur during a
// rotation; each one costs memory and time in every handshake, so a bundle of all public
// authorities is refused as the mistake that it is.
const authoritiesMax = 64

// Files holds the paths of an identity. Cert and Key are both set or both empty; without them, the
// bearer is anonymous and only checks the other side. CA may hold several certificates, so that two
// authorities are trusted during a rotation.
type Files struct{ Cert, Key, CA string }

// IsZero reports whether no file is named.
func (f Files) IsZero() bool { return f == Files{} }

// PEM holds the contents of Files, for programs that keep them elsewhere.
type PEM struct{ Cert, Key, CA []byte }

// IsZero reports whether nothing is set.
func (p PEM) IsZero() bool { return len(p.Cert) == 0 && len(p.Key) == 0 && len(p.CA) == 0 }

// ReadSecret reads a file that nobody but its owner may read, such as a key, a token or a password.
// A file that others may read is refused with the command that corrects it.
//
// The group may read a file of root, because Kubernetes and systemd hand secrets to services that
// way.
func ReadSecret(path string) ([]byte, error) {
	return readFile(path, func(info fs.FileInfo) error {
		mode := info.Mode().Perm()
		// Reading is what harms a secret, but a file that others may write or execute was not made
		// for a secret either, so all bits count.
		group := fs.FileMode(0o070)
		if st, ok := info.Sys().(*syscall.Stat_t); ok && st.Uid == 0 && os.Geteuid() != 0 {
			// A file of root that the process reads as another user: the group is how the process
			// is meant to get at the file. Writing stays forbidden to the group.
			group = 0o030
		}
		if mode&(group|0o007) != 0 {
			return rhumb.Ef("identity.ReadSecret", rhumb.PermissionDenied, "%s is a secret, and others may use it (mode %04o); run: chmod 600 %s", path, mode, path)
		}
		return nil
	})
}

// readPublic reads a file that others may read. Whoever can write it decides who is trusted, so a
// file that everybody can write is refused.
func readPublic(path string) ([]byte, error) {
	return readFile(path, func(info fs.FileInfo) error {
		if mode := info.Mode().Perm(); mode&0o002 != 0 {
			return rhumb.Ef("identity.readPublic", rhumb.PermissionDenied, "everybody may write %s (mode %04o), which decides who is trusted; run: chmod o-w %s", path, mode, path)
		}
		return nil
	})
}

// readFile reads a file after a check of its mode. The mode is that of the opened file, so that the
// file cannot be replaced between the check and the read.
func readFile(path string, check func(fs.FileInfo) error) ([]byte, error) {
	const op rhumb.Op = "identity.readFile"
	// Not blocking: to open a pipe waits for its writer, before anything could check its type.
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		kind := rhumb.InvalidArgument
		if errors.Is(err, fs.ErrNotExist) {
			kind = rhumb.NotFound
		}
		return nil, rhumb.WrapKind(op, kind, err)
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	// A pipe or a device would block the reader, or deliver other bytes to the next reload.
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s is not a regular file", path)
	}
	if err != nil {
		return nil, rhumb.WrapKind(op, rhumb.InvalidArgument, err)
	}
	if err := check(info); err != nil {
		return nil, err
	}
	// One byte more than allowed, so that a file of exactly the maximum is distinguished from a longer
	// one without a second read.
	b, err := io.ReadAll(io.LimitReader(f, fileSizeMax+1))
	if err == nil && len(b) > fileSizeMax {
		err = fmt.Errorf("%s has more than %d bytes", path, fileSizeMax)
	}
	return b, rhumb.WrapKind(op, rhumb.InvalidArgument, err)
}

// ParseCertificates parses all certificates of a PEM text. Blocks of other kinds are an error: a
// key in a CA file is a mistake that hands the key to everybody who gets the file.
func ParseCertificates(text []byte) (certs []*x509.Certificate, err error) {
	const op rhumb.Op = "identity.ParseCertificates"
	for {
		block, rest := pem.Decode(text)
		if block == nil {
			break
		}
		text = rest
		if block.Type != "CERTIFICATE" {
			return nil, rhumb.Ef(op, rhumb.InvalidArgument, "there is a block %q among the certificates; remove it", block.Type)
		}
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, rhumb.Ef(op, rhumb.InvalidArgument, "certificate %d: %v", len(certs)+1, err)
		}
		if certs = append(certs, cert); len(certs) > authoritiesMax {
			return nil, rhumb.Ef(op, rhumb.TooLarge, "there are more than %d certificates", authoritiesMax)
		}
	}
	if len(certs) == 0 {
		return nil, rhumb.E(op, rhumb.InvalidArgument, "there is no certificate in PEM form")
	}
	return certs, nil
}

// EncodeCertificates returns the PEM text of certificates.
func EncodeCertificates(certs ...*x509.Certificate) (text []byte) {
	for _, c := range certs {
		text = append(text, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Raw})...)
	}
	return text
}

// EncodeKey returns the PEM text of a private key, in PKCS #8.
func EncodeKey(key crypto.Signer) ([]byte, error) {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, rhumb.WrapKind("identity.EncodeKey", rhumb.InvalidArgument, err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), nil
}

// ParseKey parses the format of EncodeKey. It accepts keys of all kinds that can sign, although
// Rhumb itself creates ECDSA keys only: an operator may have brought another one.
func ParseKey(text []byte) (crypto.Signer, error) {
	block, _ := pem.Decode(text)
	if block == nil {
		return nil, errors.New("there is no key in PEM form")
	}
	key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, err
	}
	signer, ok := key.(crypto.Signer)
	if !ok {
		return nil, errors.New("the key cannot sign")
	}
	return signer, nil
}

// loaded is one consistent reading of Files: the key belongs to the certificate.
//
// Handshakes use one reading as a whole. If certificate and key were loaded apart, a handshake
// during a renewal could present a certificate whose key it does not have.
type loaded struct {
	pair        *tls.Certificate // nil for an anonymous bearer
	name        Name
	authorities []*x509.Certificate
}

// read reads the files.
func (f Files) read() (p PEM, err error) {
	if p.CA, err = readPublic(f.CA); err != nil {
		return p, err
	}
	if f.Cert == "" && f.Key == "" {
		return p, nil
	}
	if p.Cert, err = readPublic(f.Cert); err != nil {
		return p, err
	}
	p.Key, err = ReadSecret(f.Key)
	return p, err
}

// validate checks that the files make an identity.
func (f Files) validate() error {
	const op rhumb.Op = "identity.Files"
	switch {
	case f.CA == "":
		return rhumb.E(op, rhumb.InvalidArgument, "no CA file; the other side cannot be verified without one: give --ca")
	case (f.Cert == "") != (f.Key == ""):
		return rhumb.E(op, rhumb.InvalidArgument, "a certificate and its key belong together; give both --cert and --key, or neither")
	}
	return nil
}

// parse checks the texts and pairs the certificate with its key. what names the texts in errors.
func (p PEM) parse(what Files) (*loaded, error) {
	const op rhumb.Op = "identity.load"
	l := &loaded{}
	var err error
	if l.authorities, err = ParseCertificates(p.CA); err != nil {
		return nil, rhumb.Ef(op, rhumb.InvalidArgument, "CA file %s: %v", what.CA, err)
	}
	for _, c := range l.authorities {
		// The standard verification accepts any certificate in the pool of roots as an anchor. A
		// node's own certificate in the CA file would then be trusted, and its key could sign
		// others.
		if !c.IsCA {
			return nil, rhumb.Ef(op, rhumb.InvalidArgument, "CA file %s: the certificate of %q is not that of an authority; put only authorities there", what.CA, c.Subject)
		}
	}
	if len(p.Cert) == 0 && len(p.Key) == 0 {
		return l, nil
	}
	pair, err := tls.X509KeyPair(p.Cert, p.Key)
	if err != nil {
		return nil, rhumb.Ef(op, rhumb.InvalidArgument, "certificate %s and key %s: %v", what.Cert, what.Key, err)
	}
	if l.name, err = FromCertificate(pair.Leaf); err != nil {
		return nil, rhumb.Ef(op, rhumb.InvalidArgument, "certificate %s: %v", what.Cert, err)
	}
	l.pair = &pair
	return l, nil
}

// Name checks that the parts belong together and returns the name in the certificate. ok is false
// without a certificate. It verifies no signature.
func (p PEM) Name() (name Name, ok bool, err error) {
	l, err := p.parse(Files{Cert: "(PEM)", Key: "(PEM)", CA: "(PEM)"})
	if err != nil {
		return Name{}, false, err
	}
	return l.name, l.pair != nil, nil
}

// chain returns the certificates of the pair.
func (l *loaded) chain() (certs []*x509.Certificate, err error) {
	for i, der := range l.pair.Certificate {
		// The first one was parsed already.
		if i == 0 {
			certs = append(certs, l.pair.Leaf)
			continue
		}
		c, err := x509.ParseCertificate(der)
		if err != nil {
			return nil, rhumb.WrapKind("identity.load", rhumb.InvalidArgument, err)
		}
		certs = append(certs, c)
	}
	return certs, nil
}
