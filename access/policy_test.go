package access

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// reference answers questions the slow and obvious way: it walks all grants of all roles of the user.
type reference struct {
	users []*User
	roles []*Role
}

// grants returns the grants of a user.
func (f *reference) grants(name string) (out []Grant) {
	for _, u := range f.users {
		if u.Name != name || u.Disabled {
			continue
		}
		for _, r := range f.roles {
			if slices.Contains(u.Roles, r.Name) {
				out = append(out, r.Grants...)
			}
		}
	}
	return out
}

func (f *reference) allowsCluster(who Principal, right Rights) bool {
	switch who.Kind {
	case KindInsecure, KindOperator:
		return true
	case KindUser:
		for _, g := range f.grants(who.Name) {
			if g.Scope.Cluster && (g.Rights.Has(right) || g.Rights.Has(Admin)) {
				return true
			}
		}
	}
	return false
}

func (f *reference) allows(who Principal, right Rights, table string, name []byte) bool {
	switch who.Kind {
	case KindInsecure, KindOperator:
		return true
	case KindUser:
		for _, g := range f.grants(who.Name) {
			if g.Scope.Cluster && g.Rights.Has(Admin) && right == Admin {
				return true
			}
			if g.Scope.Cluster || !g.Rights.Has(right) {
				continue
			}
			if (g.Scope.Table == table || g.Scope.Table == AllTables) && strings.HasPrefix(string(name), g.Scope.Prefix) {
				return true
			}
		}
	}
	return false
}

func (f *reference) allowsTable(who Principal, table string) bool {
	if who.Kind == KindNode || f.allowsCluster(who, Read) {
		return true
	}
	if who.Kind != KindUser {
		return false
	}
	for _, g := range f.grants(who.Name) {
		if !g.Scope.Cluster && (g.Scope.Table == table || g.Scope.Table == AllTables) {
			return true
		}
	}
	return false
}

// Few and short words, so that prefixes overlap and scopes meet.
var (
	someTables = []string{"t", "tt", "u", "u-1", AllTables}
	someUsers  = []string{"ann", "bob", "cat", "dan"}
	someRoles  = []string{"reader", "writer", "ops", "none", "all"}
)

// drawName returns a name of up to four bytes of a small alphabet.
func drawName(r *rand.Rand) []byte {
	name := make([]byte, r.IntN(5))
	for i := range name {
		name[i] = "ab\x00\xff"[r.IntN(4)]
	}
	return name
}

// drawGrant returns a valid grant.
func drawGrant(r *rand.Rand) Grant {
	if r.IntN(8) == 0 {
		return Grant{Scope{Cluster: true}, []Rights{Read, Admin, Read | Admin}[r.IntN(3)]}
	}
	return Grant{Scope{Table: someTables[r.IntN(len(someTables))], Prefix: string(drawName(r))}, Rights(1 + r.IntN(int(TableRights)))}
}

// drawReference returns random users and roles. Some users have roles that do not exist.
func drawReference(r *rand.Rand) *reference {
	f := &reference{}
	for _, name := range someRoles[:r.IntN(len(someRoles)+1)] {
		role := &Role{Name: name}
		seen := map[Scope]bool{}
		for range r.IntN(6) {
			if g := drawGrant(r); !seen[g.Scope] {
				seen[g.Scope] = true
				role.Grants = append(role.Grants, g)
			}
		}
		slices.SortFunc(role.Grants, func(a, b Grant) int { return a.Scope.Compare(b.Scope) })
		f.roles = append(f.roles, role)
	}
	for _, name := range someUsers[:r.IntN(len(someUsers)+1)] {
		f.users = append(f.users, drawUser(r, name))
	}
	return f
}

func drawUser(r *rand.Rand, name string) *User {
	u := &User{Name: name, Disabled: r.IntN(6) == 0}
	for _, role := range someRoles {
		if r.IntN(3) == 0 {
			u.Roles = append(u.Roles, role)
		}
	}
	return u
}

// mutate changes one record, so that the next policy shares the others with the previous one.
func (f *reference) mutate(r *rand.Rand) {
	f.users, f.roles = slices.Clone(f.users), slices.Clone(f.roles)
	switch {
	case r.IntN(2) == 0 && len(f.roles) > 0:
		i := r.IntN(len(f.roles))
		f.roles[i] = &Role{Name: f.roles[i].Name, Grants: []Grant{drawGrant(r)}}
	case r.IntN(2) == 0 && len(f.roles) > 0:
		f.roles = f.roles[1:]
	case len(f.users) > 0:
		i := r.IntN(len(f.users))
		f.users[i] = drawUser(r, f.users[i].Name)
	}
}

// checkQuestions asks both evaluators the same random questions. It returns how many it asked.
func checkQuestions(t *testing.T, r *rand.Rand, f *reference, p *Policy) (asked int) {
	t.Helper()
	for range 40 {
		who := Principal{Kind(r.IntN(int(kindEnd) + 1)), append(someUsers, "nobody", "")[r.IntN(len(someUsers)+2)]}
		right := Rights(1 << r.IntN(rightCount))
		table := append(someTables[:4:4], "absent", "")[r.IntN(6)]
		name, prefix := drawName(r), drawName(r)
		what := lazy(func() string { return fmt.Sprintf("%v %v %q %q in %s", who, right, table, name, f) })
		if got, want := p.Allows(who, right, table, name), f.allows(who, right, table, name); got != want {
			t.Fatalf("Allows(%s) = %v, want %v", what, got, want)
		}
		more := Rights(1 + r.IntN(int(TableRights)))
		anyWant, allWant := false, true
		for one := Rights(1); one < rightsEnd; one <<= 1 {
			if more&one != 0 {
				ok := f.allows(who, one, table, name)
				anyWant, allWant = anyWant || ok, allWant && ok
			}
		}
		if got := p.Of(who).AllowsAny(more, table, name); got != anyWant {
			t.Fatalf("AllowsAny(%s, %v) = %v, want %v", what, more, got, anyWant)
		}
		if got := p.Allows(who, more, table, name); got != allWant {
			t.Fatalf("Allows(%s, %v) = %v, want %v", what, more, got, allWant)
		}
		if got, want := p.AllowsTable(who, table), f.allowsTable(who, table); got != want {
			t.Fatalf("AllowsTable(%s) = %v, want %v", what, got, want)
		}
		if right&ClusterRights != 0 {
			if got, want := p.AllowsCluster(who, right), f.allowsCluster(who, right); got != want {
				t.Fatalf("AllowsCluster(%s) = %v, want %v", what, got, want)
			}
		}
		filter := p.Of(who).Filter(right, table)
		want := f.allows(who, right, table, name)
		if got := filter.Allows(name); got != want {
			t.Fatalf("Filter(%s) allows %v, want %v", what, got, want)
		}
		// A scan by prefix yields the name in exactly one of its parts, or in none.
		yields := 0
		parts := filter.Within(prefix)
		for i, part := range parts {
			if !bytes.HasPrefix(part, prefix) || i > 0 && bytes.Compare(parts[i-1], part) >= 0 {
				t.Fatalf("Within(%q) of %s = %q", prefix, what, parts)
			}
			if bytes.HasPrefix(name, part) {
				yields++
			}
		}
		if seen := want && bytes.HasPrefix(name, prefix); yields > 1 || yields == 1 != seen {
			t.Fatalf("a scan of %q yields %d times: %s; parts %q", prefix, yields, what, parts)
		}
		asked++
	}
	return asked
}

// lazy is a text that only a failure needs.
type lazy func() string

func (l lazy) String() string { return l() }

// String describes the records for failures.
func (f *reference) String() string {
	var b strings.Builder
	for _, u := range f.users {
		fmt.Fprintf(&b, "%s disabled=%v %v; ", u.Name, u.Disabled, u.Roles)
	}
	for _, r := range f.roles {
		fmt.Fprintf(&b, "%s %+q; ", r.Name, r.Grants)
	}
	return b.String()
}

// TestPolicyAgainstReference guards authorisation as a whole: a compiled policy, also one that shares
// records with the one before it, answers as a walk over all grants does.
func TestPolicyAgainstReference(t *testing.T) {
	policies, asked := 20_000, 0
	if testing.Short() {
		policies = 2_000
	}
	r := rand.New(rand.NewPCG(12, 1))
	for range policies / 4 {
		f := drawReference(r)
		var p *Policy
		for i := range 4 {
			p = Compile(p, uint64(i+1), f.users, f.roles)
			asked += checkQuestions(t, r, f, p)
			f.mutate(r)
		}
	}
	t.Logf("%d policies, %d questions, each to 7 functions", policies, asked)
}

// FuzzPolicy is TestPolicyAgainstReference for seeds that the fuzzer chooses.
func FuzzPolicy(f *testing.F) {
	f.Add(uint64(1), uint64(2))
	f.Fuzz(func(t *testing.T, a, b uint64) {
		r := rand.New(rand.NewPCG(a, b))
		ref := drawReference(r)
		p := Compile(nil, 1, ref.users, ref.roles)
		checkQuestions(t, r, ref, p)
		ref.mutate(r)
		checkQuestions(t, r, ref, Compile(p, 2, ref.users, ref.roles))
	})
}

// FuzzParse guards the parsers and checks of words that callers send: they must not panic, and what they
// accept must survive.
func FuzzParse(f *testing.F) {
	f.Add("read,write", "t", "p", uint8(3), false)
	f.Add("", "*", "", uint8(0), true)
	f.Fuzz(func(t *testing.T, rights, table, prefix string, bits uint8, cluster bool) {
		if r, err := ParseRights(rights); err == nil {
			if back, err := ParseRights(r.String()); err != nil || back != r {
				t.Errorf("%q is %v, and then %v, %v", rights, r, back, err)
			}
		}
		g := Grant{Scope{cluster, table, prefix}, Rights(bits)}
		if g.Validate() == nil {
			p := Compile(nil, 1, []*User{{Name: "u", Roles: []string{"r"}}}, []*Role{{Name: "r", Grants: []Grant{g}}})
			u := Principal{KindUser, "u"}
			if g.Scope.Cluster && !p.AllowsCluster(u, g.Rights) || !g.Scope.Cluster && !p.Allows(u, g.Rights, table, []byte(prefix)) {
				t.Errorf("%v allows nothing", g)
			}
		}
		if ValidateName("user", table) == nil && (len(table) > NameSizeMax || strings.ContainsAny(table, "/ \t\n\x00%")) {
			t.Errorf("%q is a name", table)
		}
	})
}

// TestNobody guards the default: without a principal, a policy or a grant, nothing is allowed.
func TestNobody(t *testing.T) {
	who, ok := FromContext(context.Background())
	if ok || who != (Principal{}) {
		t.Errorf("a context without a principal has %v, %v", who, ok)
	}
	empty := Compile(nil, 1, []*User{{Name: "ann"}}, nil)
	for _, p := range []*Policy{nil, empty} {
		for _, who := range []Principal{{}, {KindUser, ""}, {KindUser, "ann"}, {kindEnd, "ann"}, {KindNode, "n"}} {
			if p.Allows(who, Read, "", nil) || p.Of(who).AllowsAny(TableRights, "t", nil) || p.AllowsCluster(who, Read) || !p.Of(who).Filter(Read, "t").None() {
				t.Errorf("%v may do something", who)
			}
			if p.AllowsTable(who, "t") != (who.Kind == KindNode) {
				t.Errorf("%v sees a table, or a node does not", who)
			}
		}
		for _, who := range []Principal{{Kind: KindInsecure}, {KindOperator, "x"}} {
			if !p.Allows(who, TableRights, "t", nil) || !p.AllowsCluster(who, ClusterRights) || !p.Of(who).Filter(Read, "t").All() {
				t.Errorf("%v may not do everything", who)
			}
		}
	}
	if empty.Allows(Principal{Kind: KindOperator}, 0, "t", nil) || empty.AllowsCluster(Principal{Kind: KindOperator}, 0) {
		t.Error("no right is a right")
	}
}

// TestContextCarriesPrincipal guards the way from the session layer to the checks.
func TestContextCarriesPrincipal(t *testing.T) {
	want := Principal{KindUser, "ann"}
	if got, ok := FromContext(WithPrincipal(context.Background(), want)); !ok || got != want {
		t.Errorf("got %v, %v", got, ok)
	}
}

// TestVerifierIsHidden guards verifiers against logs, messages and documents.
func TestVerifierIsHidden(t *testing.T) {
	u := User{Name: "ann", Verifier: Verifier{4096, []byte("saltsalt"), bytes.Repeat([]byte("k"), 32), bytes.Repeat([]byte("s"), 32)}}
	text := fmt.Sprintf("%v %+v %#v %s", u, u, u, u.Verifier)
	if strings.Contains(text, "salt") || strings.Contains(text, "kkk") || strings.Contains(text, "107 107") {
		t.Errorf("shown: %s", text)
	}
	if err := u.Verifier.Validate(); err != nil {
		t.Error(err)
	}
}

// TestValidateName fixes the alphabet of names.
func TestValidateName(t *testing.T) {
	for name, ok := range map[string]bool{
		"ann": true, "a": true, "ann@example.com": true, "svc-1_x.y": true, "0": true, "Ann": true, "@a": true, strings.Repeat("a", 63): true,
		"": false, "a b": false, "-a": false, ".a": false, "a/b": false, "ä": false, "a\x00": false, strings.Repeat("a", 64): false,
	} {
		if err := ValidateName("user", name); (err == nil) != ok {
			t.Errorf("%q: %v", name, err)
		}
	}
}

// benchPolicy has 1,000 users with 2 roles each, of which one has 1,000 prefixes.
func benchPolicy() *Policy {
	wide := &Role{Name: "wide"}
	for i := range 1_000 {
		wide.Grants = append(wide.Grants, Grant{Scope{Table: "flights", Prefix: fmt.Sprintf("tenant-%04d/", i)}, Read | Write})
	}
	roles := []*Role{wide, {Name: "reader", Grants: []Grant{{Scope{Table: "airports"}, Read}}}}
	var users []*User
	for i := range 1_000 {
		users = append(users, &User{Name: fmt.Sprintf("user-%d", i), Roles: []string{"reader", "wide"}})
	}
	return Compile(nil, 1, users, roles)
}

func BenchmarkAllows(b *testing.B) {
	p, who := benchPolicy(), Principal{KindUser, "user-77"}
	for _, c := range []struct {
		what  string
		table string
		name  string
		want  bool
	}{
		{"table", "airports", "EDDF", true},
		{"prefix", "flights", "tenant-0500/LH441", true},
		{"denied", "flights", "tenant-x/LH441", false},
	} {
		b.Run(c.what, func(b *testing.B) {
			name := []byte(c.name)
			b.ReportAllocs()
			for b.Loop() {
				if p.Allows(who, Read, c.table, name) != c.want {
					b.Fatal(c)
				}
			}
		})
	}
}

// TestAllowsAllocatesNothing guards the path of every request.
func TestAllowsAllocatesNothing(t *testing.T) {
	p, who, name := benchPolicy(), Principal{KindUser, "user-77"}, []byte("tenant-0500/LH441")
	if n := testing.AllocsPerRun(100, func() { p.Allows(who, Read|Write, "flights", name) }); n != 0 {
		t.Errorf("%v allocations per question", n)
	}
}

// BenchmarkCompile measures a change of one user among 1,000.
func BenchmarkCompile(b *testing.B) {
	p := benchPolicy()
	var users []*User
	var roles []*Role
	for _, s := range p.users {
		users = append(users, s.source)
	}
	for _, r := range p.roles {
		roles = append(roles, r.source)
	}
	for i := 0; b.Loop(); i++ {
		users[i%len(users)] = &User{Name: users[i%len(users)].Name, Roles: []string{"reader"}}
		p = Compile(p, 2, users, roles)
	}
}
