package catalog

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/binary"
	"io"
	"os"
	"slices"
	"testing"

	"github.com/rhumbdb/rhumb"
)

// TestBaseReplay guards that this build and the builds of rhumb.VersionBase may apply the same log side by
// side. testdata/base.gz holds random commands, each with a hash of the state and the result that release
// 0.13 computed; this build must compute the same. A difference that is wanted belongs behind
// State.Has, and the file stays as it is until VersionBase is supported no more.
func TestBaseReplay(t *testing.T) {
	f, err := os.Open("testdata/base.gz")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(z)
	if err != nil {
		t.Fatal(err)
	}
	take := func(b *[]byte) []byte {
		n, size := binary.Uvarint(*b)
		out := (*b)[size : size+int(n)]
		*b = (*b)[size+int(n):]
		return out
	}
	steps, changed := 0, 0
	for run := 0; len(b) > 0; run++ {
		s := New()
		for commands := take(&b); len(commands) > 0; steps++ {
			cmd, err := DecodeCommand(take(&commands))
			if err != nil {
				t.Fatalf("run %d: %v", run, err)
			}
			next, res, _ := s.Apply(cmd)
			if next != s {
				changed++
			}
			s = next
			want := commands[:baseHashSize]
			commands = commands[baseHashSize:]
			if got := baseHash(s, res); !bytes.Equal(got, want) {
				t.Fatalf("run %d: after %#v the state or the result (%+v) differs from that of release 0.13; see State.Has", run, cmd, res)
			}
			if s.Version() != rhumb.VersionBase {
				t.Fatalf("the commands of release 0.13 raised the version to %d", s.Version())
			}
		}
	}
	if steps < 3000 || changed < 1000 {
		t.Errorf("%d steps, of which %d changed something; the file is too short to show anything", steps, changed)
	}
}

// baseHashSize is the length of a hash in testdata/base.gz.
const baseHashSize = 8

// baseHash returns the hash of a state and a result. The words of refusals may differ between builds.
func baseHash(s *State, res Result) []byte {
	h := sha256.New()
	h.Write(s.Encode())
	h.Write(EncodeResult(withoutWords(res)))
	return h.Sum(nil)[:baseHashSize]
}

func withoutWords(r Result) Result {
	if r.Failure != nil {
		r.Failure = &rhumb.Error{Kind: r.Failure.Kind}
	}
	r.Items = slices.Clone(r.Items)
	for i := range r.Items {
		r.Items[i] = withoutWords(r.Items[i])
	}
	return r
}

// baseCodes are the commands that the builds of rhumb.VersionBase know. Nothing is added to it.
var baseCodes = []commandCode{
	codeInit, codeAddRegion, codeRegisterNode, codeCreateClass, codeCreateTable, codeEnsureRegions, codeOpenSlot, codeAlterISR, codeElect,
	codeFenceNode, codeSetNodeState, codeSetReplicas, codeSetVoters, codeBatch, codeQuarantineReplica, codeReadmitReplica,
	codeSetRegionDead, codeRecoverRange, codeSetTrust, codeRevokeCertificate, codeSetGossipKeys, codeForgetNode,
	codeCreateUser, codeSetUser, codeDropUser, codeCreateRole, codeDropRole, codeAssignRole, codeAlterGrant, codeRefuseSnapshot,
}

// TestNewCommandsNeedAFeature guards that no command enters a log which a build without it applies. A new
// command has a method needs.
func TestNewCommandsNeedAFeature(t *testing.T) {
	base := foundedBy("")
	for _, cmd := range goldenCommands() {
		if slices.Contains(baseCodes, cmd.wireCode()) {
			continue
		}
		// The command that raises the version cannot wait for the version. It is refused until every node
		// knows it.
		if _, raise := cmd.(SetClusterVersion); raise {
			continue
		}
		n, ok := cmd.(needing)
		if !ok || n.needs() == rhumb.NoFeature {
			t.Errorf("%T was added after the base version and has no method needs", cmd)
			continue
		}
		if err := base.Admits(cmd); rhumb.KindOf(err) != rhumb.Incompatible {
			t.Errorf("%T at the base version: %v", cmd, err)
		}
		if _, res, _ := base.Apply(Batch{[]Command{cmd}}); rhumb.KindOf(res.Items[0].Err()) != rhumb.Incompatible {
			t.Errorf("%T in a batch at the base version: %+v", cmd, res.Items[0])
		}
	}
	var decoded []commandCode
	for code := range commandDecoders {
		decoded = append(decoded, code)
	}
	for code := range accessDecoders {
		decoded = append(decoded, code)
	}
	for _, code := range decoded {
		if !slices.ContainsFunc(goldenCommands(), func(c Command) bool { return c.wireCode() == code }) {
			t.Errorf("command %d is not among goldenCommands, so this test did not see it", code)
		}
	}
}

// TestUnknownVersionStops guards that a binary stops where the log or a state goes past what it knows, and
// does not skip.
func TestUnknownVersionStops(t *testing.T) {
	beyond := rhumb.VersionNewest + 1
	first := registration(1, 1)
	first.Binary = rhumb.Build{Program: "next", Min: rhumb.VersionNewest, Max: beyond}.String()
	for _, cmd := range []Command{
		SetClusterVersion{Version: beyond, Previous: rhumb.VersionNewest},
		Batch{[]Command{AddRegion{Name: "a"}, SetClusterVersion{Version: beyond}}},
		Init{Cluster: rhumb.UUID{1}, First: first},
	} {
		if got, err := DecodeCommand(EncodeCommand(cmd)); rhumb.KindOf(err) != rhumb.Incompatible {
			t.Errorf("%T: %v, %v", cmd, got, err)
		}
	}
	s := *founded()
	s.version = beyond
	if _, err := Decode(s.Encode()); rhumb.KindOf(err) != rhumb.Incompatible {
		t.Errorf("a state of version %d: %v", beyond, err)
	}
}
