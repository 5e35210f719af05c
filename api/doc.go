// Package api converts between the vocabulary (package rhumb) and the wire form (package rhumbpb),
// and holds the table between error kinds and gRPC codes. Both sides of the wire use it: servers,
// clients and nodes among each other.
//
// EncodeX returns the message for a value, which it trusts. DecodeX returns the value of a message
// that may have any origin. It rejects messages that no encoder writes with InvalidArgument and
// never panics. The value shares the byte slices of the message, so the message must not change
// afterwards.
//
// # Allocations
//
// A request with one mutation costs one allocation per level of the message: slices of messages are
// allocated as one slab.
package api
