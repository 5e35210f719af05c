package token

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/rhumbdb/rhumb"
)

func example() Token {
	return Token{
		Cluster: rhumb.ClusterID{1, 2, 3}, Pin: [32]byte{4, 5, 6}, ID: ID{7}, Secret: Secret{8, 9}, Founder: true,
		Expires: time.Unix(1_800_000_000, 0), Node: "eu-1", Addresses: []string{"authority.example.com:7605", "[2001:db8::1]:7605"},
	}
}

// TestGolden guards the bytes of a token: a token made by one version is used by another.
func TestGolden(t *testing.T) {
	const want = "rhumb1.AQIDAAAAAAAAAAAAAAAAAAQFBgAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAABwAAAAAAAAAICQAAAAAAAAAAAAAAAAAAAYCkp9oGBGV1LTECGmF1dGhvcml0eS5leGFtcGxlLmNvbTo3NjA1ElsyMDAxOmRiODo6MV06NzYwNX3BVUc"
	got := example().Encode()
	if back, err := Parse(got); err != nil || fmt.Sprint(back) != fmt.Sprint(example()) {
		t.Errorf("%v is %v, %v", example(), back, err)
	}
	if got != want {
		t.Errorf("the token is %s", got)
	}
}

// TestRoundTrip guards that every valid token survives encoding.
func TestRoundTrip(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		tok := example()
		tok.Founder = rapid.Bool().Draw(r, "founder")
		tok.Node = rapid.StringMatching(`[a-z][a-z0-9-]{0,62}`).Draw(r, "node")
		tok.Addresses = rapid.SliceOfN(rapid.StringMatching(`[a-z0-9.]{1,100}:[1-9][0-9]{0,3}`), 1, AddressesMax).Draw(r, "addresses")
		tok.Expires = time.Unix(rapid.Int64Range(0, 1<<40).Draw(r, "expires"), 0)
		back, err := Parse(" " + tok.Encode() + "\n")
		if err != nil || fmt.Sprintf("%#v", back) != fmt.Sprintf("%#v", tok) {
			r.Fatalf("%v is %v, %v", tok, back, err)
		}
	})
}

// TestGarbled guards that a changed or cut token is refused before anything is sent, and that no
// error quotes it.
func TestGarbled(t *testing.T) {
	text := example().Encode()
	for i := range len(text) {
		for _, bad := range []string{text[:i], text[:i] + "A" + text[i+1:], text[:i] + text[i+1:], text[:i] + "~" + text[i:]} {
			if bad == text {
				continue
			}
			_, err := Parse(bad)
			if err == nil {
				t.Fatalf("%q is accepted", bad)
			}
			if len(bad) > 20 && strings.Contains(err.Error(), bad[8:16]) {
				t.Fatalf("the error quotes the token: %v", err)
			}
		}
	}
	for bad, want := range map[string]string{
		"":                                    "empty",
		"rhumb9.AAAA":                         "does not know",
		"hunter2":                             "begin with rhumb1.",
		text[:len(text)-5]:                    "garbled",
		Prefix + strings.Repeat("A", SizeMax): "at most",
	} {
		if _, err := Parse(bad); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.20q: %v, want %q", bad, err, want)
		}
	}
}

// TestHidden guards that a token and its secret never appear in formatted text.
func TestHidden(t *testing.T) {
	tok := example()
	if text := fmt.Sprint(tok.Secret) + fmt.Sprintf("%v %s", tok, tok.LogValue()); strings.Contains(text, "8 9") || !strings.Contains(text, "(secret)") {
		t.Error(text)
	}
}

// FuzzBody guards the same for texts whose checksum fits, which a random text never has.
func FuzzBody(f *testing.F) {
	body, _ := base64.RawURLEncoding.DecodeString(strings.TrimPrefix(example().Encode(), Prefix))
	for i := range len(body) - 4 {
		f.Add(body[:i])
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		sealed := binary.BigEndian.AppendUint32(bytes.Clone(body), crc32.Checksum(body, castagnoli))
		text := Prefix + base64.RawURLEncoding.EncodeToString(sealed)
		if tok, err := Parse(text); err == nil && tok.Encode() != text {
			t.Errorf("%q is %q", text, tok.Encode())
		}
	})
}

// FuzzParse guards that no text panics and that an accepted token has one encoding.
func FuzzParse(f *testing.F) {
	f.Add(example().Encode())
	f.Add(Prefix)
	body, _ := base64.RawURLEncoding.DecodeString(strings.TrimPrefix(example().Encode(), Prefix))
	for i := range body {
		f.Add(Prefix + base64.RawURLEncoding.EncodeToString(body[:i]))
	}
	f.Fuzz(func(t *testing.T, text string) {
		tok, err := Parse(text)
		if err == nil && tok.Encode() != strings.TrimSpace(text) {
			t.Errorf("%q is %q", text, tok.Encode())
		}
	})
}
