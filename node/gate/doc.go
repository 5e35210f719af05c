// Package gate bounds what strangers and single callers can take of a node: connections before they are authenticated,
// connections in total, and the rates and bytes in flight of a user or a connection.
//
// # Connections
//
// A Gate is a listener. A connection is early until the node knows who its caller is. Early connections are few, live for
// a bounded time and may send few bytes, so idle, half-open and hostile connections take little memory. Further connections
// wait without a goroutine or a buffer. A place that another connection needs is taken from the oldest early connection,
// if that has been early for longer than a handshake takes. One source address cannot occupy all places.
//
// Connections from addresses of the cluster's nodes have places of their own. Otherwise clients that connect in great
// numbers, for example after a restart, would delay replication.
//
// # Rates
//
// A Limiter holds a token bucket for requests, one for bytes, and a count of bytes in flight, for each user and each
// connection. A refusal is Overloaded and says when to come back.
//
// # Accounting
//
// A request counts from its admission to its answer. Answers count in the bytes per second of later requests, because their
// size is known only once the work is done. A refused request takes no tokens, so a caller who obeys the recommended waits
// gets the full rate.
//
// # Locks
//
// One lock guards the lists of a gate. It is taken when a connection is accepted, authenticated and closed, and once per
// call, never per message. Layers above are called without it.
package gate
