// Package api converts between the vocabulary (package rhumb) and the wire form (package rhumbpb), and holds the one
// table between error kinds and gRPC codes. Servers and clients on both sides of the wire use it; nothing else does.
//
// EncodeX makes a message from a value; it trusts the value. DecodeX makes a value from a message that may come from
// anybody: it refuses what no encoder writes with InvalidArgument, never panics, and shares the message's byte slices,
// so that a message is not to be changed after it was decoded.
//
// # Allocations
//
// A request of one mutation costs one allocation per message level. Slices of messages are made as one slab.
package api
