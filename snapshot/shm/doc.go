// Package shm maps the files of an image for writing: it creates them with all their memory, so
// that no later store can fail, and it locks them against readers.
//
// A reader holds an OFD read lock on byte 0 of every segment that it has mapped. The publisher
// writes into a file that readers may have opened before only while it holds the write lock on that
// byte. OFD locks belong to the open file and not to the process, so that a publisher and a reader
// in one process exclude each other too.
//
// Words that readers load at any time are stored with Store64 and Store32. Stores are atomic and
// have release order: a reader that sees a stored value also sees everything written before it. The
// publishing protocol depends on that order; see docs/formats/snapshot.md.
package shm
