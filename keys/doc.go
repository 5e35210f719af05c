// Package keys is the physical keyspace of a store: how every kind of key is written as bytes, in which order the bytes
// sort, and how a key is explained to a person. It is pure.
//
// # The keyspace as one picture
//
//	offset  0          4        8      9
//	        region(4)  slot(4)  kind   …
//	                            'd'    table(4) name… 00 00 [^hlc(8) ^node(4) 0D]   a version of a record
//	                            'l'    seq(8) 00                                    an entry of the log
//	                            'm'    field(1) 00                                  state of the replica
//	                            'q'    client(16) seq(8) 00                         the result of a request
//	0          space(4)         'x'    key… 00 00                                   local to the store
//
// Integers are big endian, so that bytes sort as numbers do. A name is written with 00 escaped as 00 FF and ended by
// 00 00, so that names sort as their bytes do and no name is a prefix of another. Hash and node of a version are
// complemented, so that newer versions come first.
//
// # Invariants
//
//   - Every key, and every bound of a span, ends either in 00 or in a suffix: a complemented version and the byte 0D,
//     which is the suffix's length. Split looks at the last byte only and never at the kind, so it is right for any
//     tail of a key too, as Pebble demands.
//   - All keys of a range lie in the span [home 00, next home 00).
//   - Compare is a total order of all byte strings, not only of keys.
//
// # Testing
//
// Golden vectors of every kind stand in testdata; random tests check that the order of keys is that of what they encode;
// decoders are fuzzed.
package keys
