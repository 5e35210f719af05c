// Package login logs a client in on each of its connections, by SCRAM-SHA-256 with channel binding, and makes the verifiers of
// passwords that the cluster stores.
//
// An Account holds the user and the password of a client. Options returns the options of one gRPC connection that is
// logged in before its first call, and again when the connection was replaced, the session ended or is about to expire. All calls
// of a connection share one login. The keys derived from the password are computed once and serve all connections.
package login

import (
	"crypto/rand"
	"regexp"
	"strconv"
	"sync"
	"time"

	"github.com/xdg-go/scram"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/access"
)

const (
	// Iterations is the number of iterations of new verifiers. Each login computes them once per
	// process, in about 20 ms; whoever steals a verifier computes them for each guess. RFC 7677 asks for
	// 4,096 at least.
	Iterations = 100_000
	// PasswordSizeMin and PasswordSizeMax bound passwords, in bytes. A verifier costs its thief Iterations
	// hashes per guess, which does not help a short password.
	PasswordSizeMin = 8
	PasswordSizeMax = 1_024 // SCRAM hashes longer ones too, but nobody types them
	// saltSize is the size of new salts in bytes.
	saltSize = 16
	// triedAgainAfter is how long a password that was rejected is not tried again. The user may have
	// been created or enabled since.
	triedAgainAfter = 30 * time.Second
)

// NewVerifier returns the verifier of a password. It takes tens of milliseconds.
func NewVerifier(user, password string) (access.Verifier, error) {
	const op rhumb.Op = "login.NewVerifier"
	if len(password) < PasswordSizeMin || len(password) > PasswordSizeMax {
		return access.Verifier{}, rhumb.Ef(op, rhumb.InvalidArgument, "the password has %d bytes; passwords have %d to %d", len(password), PasswordSizeMin, PasswordSizeMax)
	}
	salt := make([]byte, saltSize)
	_, _ = rand.Read(salt) // never fails
	v := access.Verifier{Iterations: Iterations, Salt: salt}
	// The keys depend on the salt, so two users with one password have different verifiers.
	keys, err := Keys(user, password, v)
	if err != nil {
		return access.Verifier{}, err
	}
	v.StoredKey, v.ServerKey = keys.StoredKey, keys.ServerKey
	return v, nil
}

// Keys returns the verifier of a password with the salt and the iterations of another one.
func Keys(user, password string, like access.Verifier) (access.Verifier, error) {
	const op rhumb.Op = "login.Keys"
	c, err := newScram(user, password)
	if err != nil {
		return access.Verifier{}, err
	}
	s, err := c.GetStoredCredentialsWithError(scram.KeyFactors{Salt: string(like.Salt), Iters: like.Iterations})
	if err != nil {
		return access.Verifier{}, rhumb.WrapKind(op, rhumb.InvalidArgument, err)
	}
	return access.Verifier{Iterations: like.Iterations, Salt: like.Salt, StoredKey: s.StoredKey, ServerKey: s.ServerKey}, nil
}

// newScram prepares a name and a password as RFC 4013 wants it.
//
// SASLprep makes two ways to type one character equal. Verifiers are made with it, so logins must
// use it too, or people with accents in their password could not log in from every keyboard.
func newScram(user, password string) (*scram.Client, error) {
	c, err := scram.SHA256.NewClient(user, password, "")
	if err != nil {
		// The error of the library may quote the password.
		return nil, rhumb.E("login.newScram", rhumb.InvalidArgument, "the user name or the password contains characters that are not allowed, such as control characters")
	}
	return c, nil
}

// Account is a user with its password. Its methods may be called concurrently.
//
// One Account serves all connections of a client. The expensive part of a login, the derivation of
// the keys, depends on password and salt only, and the SCRAM client remembers it.
type Account struct {
	user     string
	password func() (string, error)

	mu     sync.Mutex // guards the fields below
	text   string     // the password that client was made of
	client *scram.Client
	// rejected is the error of the last login if the node rejected text, at the time rejectedAt.
	rejected   error
	rejectedAt time.Time
}

// NewAccount returns an account. password is called before each login, so that a changed file is used;
// it must not block for long.
func NewAccount(user string, password func() (string, error)) *Account {
	return &Account{user: user, password: password}
}

// scram returns the client of the current password, or the error of an earlier login with the same
// password.
func (a *Account) scram(now time.Time) (*scram.Client, error) {
	const op rhumb.Op = "login.Account"
	// Without the lock: the function belongs to the program that uses the client.
	text, err := a.password()
	if err != nil {
		return nil, rhumb.Ef(op, rhumb.InvalidArgument, "cannot read the password of user %s: %v", a.user, err)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	// A password that was rejected is not sent again and again: that would delay the user everywhere by
	// back-off, and callers should see the reason at once.
	if a.client != nil && text == a.text {
		if a.rejected != nil && now.Sub(a.rejectedAt) < triedAgainAfter {
			return nil, a.rejected
		}
		return a.client, nil
	}
	c, err := newScram(a.user, text)
	if err != nil {
		return nil, err
	}
	// Another password starts without failures, and its keys are computed at the next login.
	a.text, a.client, a.rejected = text, c, nil
	return c, nil
}

// ended records the result of a login.
func (a *Account) ended(c *scram.Client, err error, now time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.client != c {
		return // the password has changed meanwhile
	}
	a.rejected = nil
	if rhumb.KindOf(err) == rhumb.Unauthenticated {
		a.rejected, a.rejectedAt = err, now
	}
}

var iterationsRE = regexp.MustCompile(`(?:^|,)i=([0-9]{1,9})(?:,|$)`)

// checkChallenge rejects a challenge that would keep this process busy for long.
func checkChallenge(challenge string) error {
	m := iterationsRE.FindStringSubmatch(challenge)
	if m == nil {
		return rhumb.E("login.checkChallenge", rhumb.Corrupt, "the challenge of the node has no number of iterations")
	}
	// The node is authenticated by its certificate, but may be broken into.
	if n, _ := strconv.Atoi(m[1]); n > access.IterationsMax {
		return rhumb.Ef("login.checkChallenge", rhumb.Incompatible, "the node asks for %d iterations, and this client computes at most %d", n, access.IterationsMax)
	}
	return nil
}
