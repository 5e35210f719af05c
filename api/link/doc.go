// Package link holds the frames of links. A link is a connection to the main port of a node that does not speak HTTP/2
// (docs/formats/link.md). Nodes exchange the messages of replicas on links (package node/peer), and clients send their requests on
// links (packages client/stream and node/server). gRPC would pass each frame through two more goroutines on each side, which costs more
// than the frame itself. All traffic that is rare uses gRPC.
//
// A frame is
//
//	size(4, of kind and content) checksum(4, CRC-32C of kind and content) kind(1) content
//
// with integers in big endian. The dialer sends a magic and then KindHello. The receiver answers with its own KindHello, or with
// KindError. What follows depends on the magic.
//
// # The port
//
// Links share the main port of a node with gRPC. Admit wraps the credentials of the server of gRPC: after the handshake, it looks at the protocol
// that TLS has negotiated, or at the first bytes of a connection in plain text, and hands a link to whoever serves its kind. So the limits of
// connections, the certificates and their revocation are the same code for links and for gRPC.
//
// # Opening
//
// The dialer sends its hello first, and nothing else before the answer. A receiver that refuses the link answers with an error, whose kind is
// conclusive: nothing was carried out. A dialer that gets no answer learns that the other side does not know links.
//
// A client may log in before its hello. The messages are those of the service Session, and the token that the client receives is valid on this
// link only.
//
// # Silence
//
// The dialer sends a ping every PingEvery, which the receiver answers. Each side ends a link on which nothing arrives for Config.SilentMax. That
// is long, because a receiver handles frames in the goroutine that reads, and answers a ping only after the frames before it. A
// process that has stopped is found sooner by the probes of the gRPC connection to the same port, which break the links too.
//
// # Memory
//
// A link keeps a buffer for reads and one for writes, whose sizes Config bounds. A larger frame has a buffer of its own, which grows with what
// arrives. Content that NextFrame returns is in the buffer, and messages are copied out of it when they are decoded.
//
// The fields of a small message share one copy. The fields of a large message are copied one by one: whoever keeps one of them would
// otherwise keep all.
//
// # Errors
//
// A frame whose size or checksum is wrong ends the link. Nobody knows what it was, so there is nothing to answer, and both kinds of links repeat
// what was lost: replicas from the position of the peer, and clients under the same IDs. An error that a node sends is an Answer. Every other
// error is that of the connection, and leaves the outcome of what was sent open.
//
// # Concurrency
//
// One goroutine reads from a Conn. Any number may write: frames are written one after the other, each as a whole. A write blocks while the other
// side does not read, and whoever may not block must not write.
package link
