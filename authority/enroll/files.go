package enroll

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/authority"
	"github.com/rhumbdb/rhumb/authority/ledger"
	"github.com/rhumbdb/rhumb/identity"
)

// The files of an identity.
const (
	certFile    = "node.crt"
	keyFile     = "node.key"
	caFile      = "ca.crt"
	stateFile   = "authority.json"
	pendingFile = "pending.key"
	nextDir     = "next"
	partDir     = "next.part"
	lockFile    = "lock"
	foundedFile = "founded"
)

// Files returns the paths of the identity in a folder.
func Files(dir string) identity.Files {
	return identity.Files{Cert: filepath.Join(dir, certFile), Key: filepath.Join(dir, keyFile), CA: filepath.Join(dir, caFile)}
}

// DirIn returns the folder of the identity of a node, by its first data directory.
func DirIn(dataDir string) string { return filepath.Join(dataDir, "identity") }

// State is a node's memory of its authority.
type State struct {
	Cluster string `json:"cluster"`
	Node    string `json:"node"`
	// Founder is set if the token allowed the node to create the cluster.
	Founder bool `json:"founder,omitempty"`
	// Addresses are those of the authority.
	Addresses []string              `json:"addresses"`
	Head      *authority.SignedHead `json:"head,omitempty"`
}

// ReadState reads the memory of a node about its authority. The error is fs.ErrNotExist if the
// identity came from elsewhere.
func ReadState(dir string) (*State, error) {
	path := filepath.Join(dir, stateFile)
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	s := &State{}
	if err := json.Unmarshal(text, s); err != nil || len(s.Addresses) == 0 {
		return nil, rhumb.Ef("enroll.ReadState", rhumb.Corrupt, "%s is damaged; enrol the node again with a new token: remove %s and start with --token", path, dir)
	}
	return s, nil
}

// HasFounded reports whether MarkFounded was called for the identity in a folder.
func HasFounded(dir string) bool {
	_, err := os.Stat(filepath.Join(dir, foundedFile))
	return err == nil
}

// MarkFounded records that the node of an identity has created its cluster, as its token allowed. The token allowed it once. A file of
// its own, because the keeper rewrites the state file at any time.
func MarkFounded(dir string) error {
	if HasFounded(dir) {
		return nil
	}
	return rhumb.WrapKind("enroll.MarkFounded", rhumb.Unavailable, ledger.WriteFile(filepath.Join(dir, foundedFile), nil, 0o600))
}

// encode returns the text of the state file, indented for people who look into the folder of a
// node.
func (s *State) encode() []byte {
	text, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		panic("enroll: " + err.Error()) // a State has nothing that JSON cannot express
	}
	return append(text, '\n')
}

// stepHook is called between the steps of an enrolment. Tests kill the process there.
var stepHook = func(string) {}

// pendingKey returns the key of an enrolment, and makes it if there is none. It is on disk when
// pendingKey returns.
//
// If the key were only in memory, a node that died after its request had used the token would come
// back with another key and be refused for good.
func pendingKey(dir string) (crypto.Signer, error) {
	const op rhumb.Op = "enroll.pendingKey"
	path := filepath.Join(dir, pendingFile)
	text, err := identity.ReadSecret(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			return nil, rhumb.Wrap(op, err)
		}
		if text, err = identity.EncodeKey(key); err != nil {
			return nil, err
		}
		if err := ledger.WriteFile(path, text, 0o600); err != nil {
			return nil, rhumb.WrapKind(op, rhumb.Unavailable, err)
		}
		stepHook("key made")
		return key, nil
	case err != nil:
		return nil, err
	}
	key, err := identity.ParseKey(text)
	if err != nil {
		return nil, rhumb.Ef(op, rhumb.Corrupt, "%s: %v; remove the file and use a new token", path, err)
	}
	return key, nil
}

// encodeCSR returns a certificate request for a key. It holds nothing but the key: the authority
// decides on the name.
func encodeCSR(key crypto.Signer) (string, error) {
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	if err != nil {
		return "", rhumb.Wrap("enroll.encodeCSR", err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der})), nil
}

// order is the order in which new files are moved into place. The certificate follows its key, so
// that a reader that sees the new certificate finds the new key.
var order = []string{caFile, stateFile, keyFile, certFile}

// install replaces the files of an identity.
//
// A rename replaces one file, and an identity has four. The folder "next" is the commit: before its
// rename the old set counts and after it the new one, and finishInstall only carries out the
// decision.
func install(dir string, files map[string][]byte) error {
	const op rhumb.Op = "enroll.install"
	// A set that an earlier attempt left counts already, and a folder cannot be renamed over it.
	if err := finishInstall(dir); err != nil {
		return err
	}
	part := filepath.Join(dir, partDir)
	err := os.RemoveAll(part)
	if err == nil {
		err = os.Mkdir(part, 0o700)
	}
	for _, name := range order {
		if err == nil {
			err = ledger.WriteFile(filepath.Join(part, name), files[name], 0o600)
		}
	}
	stepHook("files written")
	// From the rename on, the new set counts.
	if err == nil {
		err = os.Rename(part, filepath.Join(dir, nextDir))
	}
	if err == nil {
		err = ledger.SyncDir(dir)
	}
	if err != nil {
		return rhumb.WrapKind(op, rhumb.Unavailable, err)
	}
	stepHook("files complete")
	return finishInstall(dir)
}

// finishInstall moves a complete set of files into place. It continues where a process that died
// stopped.
func finishInstall(dir string) error {
	const op rhumb.Op = "enroll.finishInstall"
	next := filepath.Join(dir, nextDir)
	if _, err := os.Stat(next); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	for _, name := range order {
		// A file that does not exist was moved before the process died.
		err := os.Rename(filepath.Join(next, name), filepath.Join(dir, name))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return rhumb.WrapKind(op, rhumb.Unavailable, err)
		}
		stepHook("moved " + name)
	}
	err := ledger.SyncDir(dir)
	if err == nil {
		// The folder goes before the pending key. If it remained, the next start would move files
		// again; if the key remained alone, nothing would use it.
		err = os.Remove(next)
	}
	if err == nil {
		err = os.Remove(filepath.Join(dir, pendingFile))
		if errors.Is(err, fs.ErrNotExist) {
			err = nil
		}
	}
	return rhumb.WrapKind(op, rhumb.Unavailable, err)
}

// lockDir creates the folder of an identity and keeps other processes from enrolling in it.
func lockDir(dir string) (unlock func(), err error) {
	const op rhumb.Op = "enroll.lockDir"
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, rhumb.WrapKind(op, rhumb.InvalidArgument, err)
	}
	f, err := os.OpenFile(filepath.Join(dir, lockFile), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, rhumb.WrapKind(op, rhumb.InvalidArgument, err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		_ = f.Close()
		return nil, rhumb.Ef(op, rhumb.Unavailable, "another process enrols the node in %s", dir)
	}
	return func() { _ = f.Close() }, nil
}

// readLeaf returns the certificate of the node, or nil if there is none.
func readLeaf(dir string) (*x509.Certificate, error) {
	path := filepath.Join(dir, certFile)
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, rhumb.WrapKind("enroll.readLeaf", rhumb.InvalidArgument, err)
	}
	certs, err := identity.ParseCertificates(text)
	if err != nil {
		return nil, rhumb.Ef("enroll.readLeaf", rhumb.Corrupt, "%s: %v", path, err)
	}
	return certs[0], nil
}
