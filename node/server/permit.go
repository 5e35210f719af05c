package server

import (
	"bytes"
	"context"
	"slices"
	"time"

	"github.com/rhumbdb/rhumb"
	"github.com/rhumbdb/rhumb/access"
	"github.com/rhumbdb/rhumb/api"
	"github.com/rhumbdb/rhumb/api/rhumbpb"
	"github.com/rhumbdb/rhumb/raftmeta/catalog"
)

// catchUpMax bounds how long a request that the local catalog denies waits for a revision that the
// sender has seen.
const catchUpMax = time.Second

// catchingUpMax bounds the requests that wait at once, and catchUpRetry is when the others should come back. Everybody
// with an identity can send requests that would wait, and claim any revision.
const (
	catchingUpMax = 256
	catchUpRetry  = 100 * time.Millisecond
)

// permit decides about one request by the newest catalog of this node.
//
// It is made for one request and thrown away, so all names of a request are judged by one catalog,
// and no request by an old one.
type permit struct {
	who     access.Principal
	subject *access.Subject
	st      *catalog.State // nil before there is one
	// id and name are those of the table that was looked up last: the mutations of a batch are
	// mostly of one.
	id   rhumb.TableID
	name string
}

// permitFor returns the permit of the caller in a context.
func (k *KV) permitFor(ctx context.Context) permit {
	p := permit{}
	p.who, _ = access.FromContext(ctx)
	if k.cfg.State != nil {
		p.st = k.cfg.State()
	}
	p.subject = p.st.Access().Of(p.who)
	return p
}

// table returns the name of a table, or "" for a table that does not exist.
func (p *permit) table(id rhumb.TableID) string {
	if p.id != id || id == 0 {
		p.id, p.name = id, ""
		if p.st != nil {
			if t, ok := p.st.Table(id); ok {
				p.name = t.Name
			}
		}
	}
	return p.name
}

// existenceRights allow to learn whether a record exists. A writer needs that to find the home of a
// record, and the outcome of a conditional write shows it anyway.
const existenceRights = access.Read | access.Write | access.Delete

// check returns an error if the caller may not send a request. It costs tens of nanoseconds per
// name, and is called before anything is decoded, routed or proposed.
func (p *permit) check(q *rhumbpb.Request) error {
	const op rhumb.Op = "server.KV"
	if p.subject.IsUnlimited() {
		return nil
	}
	if !p.subject.IsKnown() {
		return errUnknownCaller(op, p.who, p.st)
	}
	switch {
	case q.Write != nil:
		return p.checkWrite(q.Write)
	case q.Read != nil:
		id, rights := rhumb.TableID(q.Read.Table), access.Read
		if q.Read.VersionsOnly {
			rights = existenceRights
		}
		for _, name := range q.Read.Names {
			if !p.subject.AllowsAny(rights, p.table(id), name) {
				return p.errDenied(access.Read, id, name)
			}
		}
	case q.Scan != nil:
		// The page contains only what the caller may read; a caller that may read nothing has no
		// use of it.
		if id := rhumb.TableID(q.Scan.Table); p.subject.Filter(access.Read, p.table(id)).None() {
			return p.errDenied(access.Read, id, nil)
		}
	}
	// Names of a locate are checked one by one, in allowsLocate.
	return nil
}

// checkWrite returns an error if the caller may not apply all mutations of a batch.
func (p *permit) checkWrite(w *rhumbpb.Write) error {
	// A batch is atomic, so one forbidden name forbids all of it.
	for _, m := range w.Mutations {
		right, name := access.Write, m.GetName()
		switch m.GetKind() {
		case rhumbpb.MutationKind_MUTATION_KIND_DELETE:
			right = access.Delete
		case rhumbpb.MutationKind_MUTATION_KIND_INSERT:
			// The server will choose the name, so the right must cover every name.
			name = nil
		}
		if id := rhumb.TableID(m.GetTable()); !p.subject.AllowsAny(right, p.table(id), name) {
			return p.errDenied(right, id, name)
		}
	}
	return nil
}

// allowsLocate reports whether the caller may learn whether a record exists.
func (p *permit) allowsLocate(id rhumb.TableID, name []byte) bool {
	return p.subject.IsUnlimited() || p.subject.AllowsAny(existenceRights, p.table(id), name)
}

// errDenied returns the error for a missing right. It names the table only to callers that may see
// it, and has the same text for a hidden table and for one that does not exist.
func (p *permit) errDenied(right access.Rights, id rhumb.TableID, name []byte) error {
	const op rhumb.Op = "server.KV"
	table := p.table(id)
	if table == "" || !p.subject.AllowsTable(table) {
		return rhumb.Ef(op, rhumb.PermissionDenied, "%s has no right to table %s, or it does not exist; list the tables that you may use with `rhumb table ls`", p.who, id)
	}
	// The name is the caller's own word; it shows which record of a batch was meant.
	of := ""
	if len(name) > 0 {
		of = "record " + rhumb.NameString(name) + " of "
	}
	return rhumb.Ef(op, rhumb.PermissionDenied, "%s may not %s %stable %s; ask a cluster admin for `rhumb grant ROLE --table %s --rights %s`", p.who, right, of, table, table, right)
}

// rejectCaller answers a request that the local catalog denies. If the sender has newer metadata,
// the request waits until this node has them as well, since the table or the right may be new. Only
// denied requests wait, and only within catchUpMax.
func (k *KV) rejectCaller(ctx context.Context, q *rhumbpb.Request, p *permit, err error, done func(*rhumbpb.Response)) {
	if p.st == nil || q.Revision <= p.st.Revision() || p.who.Kind == access.KindNobody {
		done(k.failedResponse(q, err, api.Hint{}))
		return
	}
	if k.catchingUp.Add(1) > catchingUpMax {
		k.catchingUp.Add(-1)
		done(k.failedResponse(q, &rhumb.Error{
			Op: "server.KV", Kind: rhumb.Overloaded, RetryAfter: catchUpRetry, Msg: "too many requests wait for newer metadata, which decide whether they are allowed; retry later",
		}, api.Hint{}))
		return
	}
	go func() {
		err := k.checkLater(ctx, q)
		k.catchingUp.Add(-1)
		if err != nil {
			done(k.failedResponse(q, err, api.Hint{}))
			return
		}
		k.dispatch(ctx, q, done)
		// The caller's own call may be over by now.
		k.cfg.Ranges.Drive()
	}()
}

// checkLater checks a request once the local catalog has the revision of its sender.
func (k *KV) checkLater(ctx context.Context, q *rhumbpb.Request) error {
	ctx, cancel := context.WithTimeout(ctx, catchUpMax)
	defer cancel()
	for {
		// A new permit each time: the catalog may have moved.
		p := k.permitFor(ctx)
		err := p.check(q)
		if err == nil || p.st == nil || p.st.Revision() >= q.Revision {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(pollInterval):
		}
	}
}

// scanPermitted answers one page of a scan with the records that the caller may read.
//
// The scan visits the permitted intervals only. Filtering a page after it was read would be
// simpler, but empty pages and their timing would show how many hidden records there are.
func (k *KV) scanPermitted(ctx context.Context, q rhumb.ScanQuery) (rhumb.ScanPage, rhumb.Receipt, error) {
	p := k.permitFor(ctx)
	f := p.subject.Filter(access.Read, p.table(q.Table))
	if f.All() {
		return k.cfg.Ranges.Scan(ctx, q)
	}
	page, receipt := rhumb.ScanPage{}, rhumb.Receipt{Node: k.cfg.Self, Range: q.Range, Hops: 1}
	size, sizeMax := 0, q.BytesMax
	if sizeMax == 0 || sizeMax > rhumb.ScanPageBytes {
		sizeMax = rhumb.ScanPageBytes
	}
	for _, prefix := range partsAfter(f.Within(q.Prefix), q.After) {
		// A full page ends before the next part. An empty one must not: it would end the scan.
		if len(page.Items) > 0 && (len(page.Items) >= q.Limit || size >= sizeMax) {
			page.More = true
			return page, receipt, nil
		}
		part := q
		part.Prefix, part.Limit, part.BytesMax = prefix, q.Limit-len(page.Items), sizeMax-size
		// A position within an earlier part says nothing about this one.
		if !bytes.HasPrefix(q.After, prefix) {
			part.After = nil
		}
		got, r, err := k.cfg.Ranges.Scan(ctx, part)
		if err != nil {
			return rhumb.ScanPage{}, r, err
		}
		// A split between two parts would make the page cover other slots in each.
		if page.Last != 0 && page.Last != got.Last || page.Ends != nil && !slices.Equal(page.Ends, got.Ends) {
			return rhumb.ScanPage{}, r, &rhumb.Error{Op: "server.KV", Kind: rhumb.Unavailable, Range: q.Range, Msg: "the range was split during the scan of a page; retry"}
		}
		page.Items, page.Last, page.Ends, receipt = append(page.Items, got.Items...), got.Last, got.Ends, r
		if got.More {
			page.More = true
			return page, receipt, nil
		}
		for i := range got.Items {
			size += len(got.Items[i].Key.Name) + len(got.Items[i].Value)
		}
	}
	return page, receipt, nil
}

// partsAfter returns the parts of a scan that may have names after a position; nil is the
// beginning.
func partsAfter(parts [][]byte, after []byte) [][]byte {
	if after == nil {
		return parts
	}
	for i, prefix := range parts {
		// Names with a prefix follow the position if it is below them or among them.
		if bytes.Compare(after, prefix) < 0 || bytes.HasPrefix(after, prefix) {
			return parts[i:]
		}
	}
	return nil
}
