package identity_test

import (
	"bytes"
	"crypto/x509"
	"encoding/asn1"
	"encoding/binary"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/identity"
	"github.com/rhumbdb/rhumb/identity/identitytest"
)

// signTrust returns the proof of an operator for an authority.
func signTrust(t testing.TB, operator *identitytest.Issued, authority *x509.Certificate) []byte {
	t.Helper()
	return signTrustAt(t, operator, authority, time.Now())
}

// signTrustAt is signTrust at a time.
func signTrustAt(t testing.TB, operator *identitytest.Issued, authority *x509.Certificate, at time.Time) []byte {
	t.Helper()
	// A source opens with a valid certificate only, whatever it signs later.
	var clock atomic.Int64
	clock.Store(operator.Cert.NotBefore.Add(time.Second).UnixNano())
	src := identitytest.Open(t, identity.SourceConfig{PEM: operator.PEM(t), Wall: func() time.Time { return time.Unix(0, clock.Load()) }})
	clock.Store(at.UnixNano())
	proof, err := src.SignTrust(authority)
	if err != nil {
		t.Fatal(err)
	}
	return proof
}

// signAs returns a proof that somebody signed who is no operator.
func signAs(t *testing.T, who *identitytest.Issued, cluster rhumb.ClusterID, authority *x509.Certificate) []byte {
	t.Helper()
	at := time.Now().UnixNano()
	text := append([]byte("rhumb trust 1\x00"), cluster[:]...)
	text = binary.BigEndian.AppendUint64(text, uint64(at))
	for _, s := range []string{identity.AuthorityOf(authority), string(authority.Raw)} {
		text = append(binary.BigEndian.AppendUint32(text, uint32(len(s))), s...)
	}
	sig, err := who.Source(t).Sign(text)
	if err != nil {
		t.Fatal(err)
	}
	proof, err := asn1.Marshal(struct {
		At        int64
		Chain     [][]byte
		Signature []byte
	}{at, sig.Chain, sig.Bytes})
	if err != nil {
		t.Fatal(err)
	}
	return proof
}

// forge returns a proof in the form of SignTrust with the certificate of somebody else in place of the operator's.
func forge(t *testing.T, proof []byte, chain ...[]byte) []byte {
	t.Helper()
	var p struct {
		At        int64
		Chain     [][]byte
		Signature []byte
	}
	if _, err := asn1.Unmarshal(proof, &p); err != nil {
		t.Fatal(err)
	}
	p.Chain = chain
	out, err := asn1.Marshal(p)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// TestTrustNeedsOperator guards that a node trusts an authority in the metadata only if an operator has signed for it,
// and only if the operator's certificate comes from an authority that the node trusts already.
func TestTrustNeedsOperator(t *testing.T) {
	a := identitytest.New(t)
	next, later, rogue := identitytest.NewFor(t, a.Cluster), identitytest.NewFor(t, a.Cluster), identitytest.NewFor(t, a.Cluster)
	other := identitytest.New(t)
	ann, now := a.Operator(t, "ann"), time.Now()
	node := a.Node(t, "eu-1")
	good := signTrust(t, ann, next.Cert)
	serial := identity.Revoked{Authority: identity.AuthorityOf(a.Cert), Serial: identity.SerialOf(ann.Cert)}
	brief := a.Operator(t, "brief", identitytest.Valid(now.Add(-20*time.Hour), now.Add(-10*time.Hour)))
	expired := signTrustAt(t, brief, next.Cert, now.Add(-15*time.Hour))
	distrusts := map[string]bool{identity.AuthorityOf(a.Cert): true}
	viaNext := identity.Vouched{Cert: later.Cert, Proof: signTrust(t, next.Operator(t, "bob"), later.Cert)}
	for _, tc := range []struct {
		what   string
		in     []identity.Vouched
		accept []*x509.Certificate
		reason string
	}{
		{"an operator's signature", []identity.Vouched{{Cert: next.Cert, Proof: good}}, []*x509.Certificate{next.Cert}, ""},
		{"no proof", []identity.Vouched{{Cert: rogue.Cert}}, nil, "no operator has signed it"},
		{"garbage", []identity.Vouched{{Cert: rogue.Cert, Proof: []byte{1, 2, 3}}}, nil, "cannot be parsed"},
		{"something after the proof", []identity.Vouched{{Cert: next.Cert, Proof: append(bytes.Clone(good), 0)}}, nil, "cannot be parsed"},
		{"too large", []identity.Vouched{{Cert: next.Cert, Proof: make([]byte, rhumb.TrustProofSizeMax+1)}}, nil, "the limit is"},
		{"a proof for another authority", []identity.Vouched{{Cert: rogue.Cert, Proof: good}}, nil, "does not belong to the message"},
		{"its own operator", []identity.Vouched{{Cert: rogue.Cert, Proof: signTrust(t, rogue.Operator(t, "eve"), rogue.Cert)}}, nil, "not trusted here"},
		{"an operator of another cluster", []identity.Vouched{{Cert: next.Cert, Proof: signTrust(t, other.Operator(t, "eve"), next.Cert)}}, nil, "belongs to cluster"},
		{"an operator's signature, made by hand", []identity.Vouched{{Cert: next.Cert, Proof: signAs(t, ann, a.Cluster, next.Cert)}}, []*x509.Certificate{next.Cert}, ""},
		{"an operator's signature for another cluster", []identity.Vouched{{Cert: next.Cert, Proof: signAs(t, ann, other.Cluster, next.Cert)}}, nil, "does not belong to the message"},
		{"a node", []identity.Vouched{{Cert: next.Cert, Proof: signAs(t, node, a.Cluster, next.Cert)}}, nil, "wanted a certificate of a operator"},
		{"a user", []identity.Vouched{{Cert: next.Cert, Proof: signAs(t, a.User(t, "ann"), a.Cluster, next.Cert)}}, nil, "wanted a certificate of a operator"},
		{"another operator than the signer", []identity.Vouched{{Cert: next.Cert, Proof: forge(t, good, a.Operator(t, "ann").Cert.Raw)}}, nil, "does not belong to the message"},
		{"a chain that is too long", []identity.Vouched{{Cert: next.Cert, Proof: forge(t, good, slices.Repeat([][]byte{ann.Cert.Raw}, 9)...)}}, nil, "at most 8"},
		{"expired after it signed", []identity.Vouched{{Cert: next.Cert, Proof: expired}}, []*x509.Certificate{next.Cert}, ""},
		{"expired before it signed", []identity.Vouched{{Cert: next.Cert, Proof: signTrustAt(t, brief, next.Cert, now.Add(-5*time.Hour))}}, nil, "expired at"},
		{"revoked before", []identity.Vouched{{Cert: next.Cert, Proof: good, Revoked: map[identity.Revoked]bool{serial: true}}}, nil, "is revoked"},
		{"its authority distrusted before", []identity.Vouched{{Cert: next.Cert, Proof: good, Distrusted: distrusts}}, nil, "no longer trusts"},
		{"by an accepted one, in any order", []identity.Vouched{viaNext, {Cert: next.Cert, Proof: good}}, []*x509.Certificate{later.Cert, next.Cert}, ""},
		{"by one that is not accepted", []identity.Vouched{viaNext, {Cert: next.Cert}}, nil, "not trusted here"},
		{"by one that was accepted and is distrusted now", []identity.Vouched{viaNext, {Cert: next.Cert, Proof: good, Retired: true}}, []*x509.Certificate{later.Cert}, ""},
		{"by one that was distrusted before", []identity.Vouched{
			{Cert: later.Cert, Proof: viaNext.Proof, Distrusted: map[string]bool{identity.AuthorityOf(next.Cert): true}}, {Cert: next.Cert, Proof: good, Retired: true},
		}, nil, "no longer trusts"},
		{"two that vouch for each other", []identity.Vouched{
			{Cert: rogue.Cert, Proof: signTrust(t, later.Operator(t, "eve"), rogue.Cert)}, {Cert: later.Cert, Proof: signTrust(t, rogue.Operator(t, "eve"), later.Cert)},
		}, nil, "not trusted here"},
	} {
		t.Run(tc.what, func(t *testing.T) {
			var log bytes.Buffer
			src := identitytest.Open(t, identity.SourceConfig{PEM: node.PEM(t), Logger: slog.New(slog.NewTextHandler(&log, nil))})
			src.SetTrust(identity.Trust{Authorities: tc.in, Revoked: []identity.Revoked{{Serial: "abcdef"}}})
			src.SetTrust(identity.Trust{Authorities: tc.in})
			if err := src.Reload(); err != nil {
				t.Fatal(err)
			}
			got := src.Verifier().Authorities[1:]
			if !slices.EqualFunc(got, tc.accept, (*x509.Certificate).Equal) {
				t.Errorf("%d authorities are accepted, want %d; ignored: %v", len(got), len(tc.accept), src.Ignored())
			}
			ignored := src.Ignored()
			if (len(ignored) > 0) != (tc.reason != "") || len(ignored) > 0 && !strings.Contains(rhumb.Message(ignored[0].Err), tc.reason) {
				t.Errorf("ignored: %v, want %q", ignored, tc.reason)
			}
			if n := strings.Count(log.String(), "no operator whom this node trusts"); n != len(ignored) {
				t.Errorf("logged %d times:\n%s", n, log.String())
			}
			if n := metric(t, src, "rhumb_identity_unproven_authorities_total"); int(n) != len(ignored) {
				t.Errorf("counted %v, want %d", n, len(ignored))
			}
		})
	}
}

// TestCheckTrust guards that a proof is refused early which is old, and that only operators sign.
func TestCheckTrust(t *testing.T) {
	a, next := identitytest.New(t), identitytest.New(t)
	node, ann := a.Node(t, "eu-1").Source(t), a.Operator(t, "ann")
	for _, tc := range []struct {
		what  string
		proof []byte
		text  string
	}{
		{"new", signTrust(t, ann, next.Cert), ""},
		{"missing", nil, "only an operator can"},
		{"old", signTrustAt(t, ann, next.Cert, time.Now().Add(-30*time.Minute)), "set the clocks"},
		{"of tomorrow", signTrustAt(t, ann, next.Cert, time.Now().Add(12*time.Hour)), "set the clocks"},
	} {
		err := node.CheckTrust(next.Cert, tc.proof)
		if tc.text == "" && err != nil || tc.text != "" && (rhumb.KindOf(err) != rhumb.PermissionDenied || !strings.Contains(err.Error(), tc.text)) {
			t.Errorf("%s: %v", tc.what, err)
		}
	}
	for _, who := range []*identity.Source{node, a.User(t, "ann").Source(t), a.Anonymous(t)} {
		if _, err := who.SignTrust(next.Cert); rhumb.KindOf(err) != rhumb.PermissionDenied {
			t.Errorf("somebody who is no operator signs: %v", err)
		}
	}
}

// FuzzTrustProof guards that no proof but the operator's is accepted, and that none ends the process.
func FuzzTrustProof(f *testing.F) {
	a, next := identitytest.New(f), identitytest.New(f)
	good := signTrust(f, a.Operator(f, "ann"), next.Cert)
	node := a.Node(f, "eu-1").Source(f)
	f.Add(good)
	f.Add([]byte{})
	f.Add(good[:len(good)-1])
	f.Fuzz(func(t *testing.T, proof []byte) {
		if err := node.CheckTrust(next.Cert, proof); err == nil && !bytes.Equal(proof, good) {
			// ECDSA signatures have two forms, so a proof that differs in its last bytes may be good.
			if len(proof) < len(good)-2 {
				t.Errorf("accepted %x", proof)
			}
		}
	})
}
