// Package session identifies the callers of a node: by certificate, by a login with a password, or, on an insecure node, not
// at all. It puts an access.Principal into the context of each call, and rejects calls without one.
//
// # Logins
//
// A login is one exchange of SCRAM-SHA-256, bound to the TLS connection. The node never receives a password, and a login costs
// it a few hashes. The result is a token that is valid on the connection for an hour. Users that do not exist, and users
// without a password, get a challenge like all others, so that nobody can find out who exists.
//
// # Wrong passwords
//
// After a few failures, a source address has to wait before it may try the same user again, twice as long after each failure.
// Many addresses that try one user share a rate of failures, as do many users that one address tries. A user who logged in
// from an address before is not affected by failures of other addresses. Refused attempts are not examined, so guessing is slow
// and costs the node nothing. All records are bounded.
//
// # Ends
//
// A session ends when it expires, when its user is disabled or dropped, or when the password changes. Streams of the user end
// with it, in the middle of a scan too. Connections with certificates end in package identity.
//
// # Where callers are identified
//
// A tap identifies the caller of a call before the transport creates the stream, so that the messages of strangers are not
// even received. The token is compared in constant time. A connection counts as early in package gate until its first call
// was identified.
//
// # Locks
//
// Manager.mu guards the list of connections, connState.mu one connection. A goroutine that holds both has taken Manager.mu
// first. Neither is held while a message is sent or received.
package session
