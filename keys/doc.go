// Package keys is the physical keyspace of a store: how each kind of key is encoded, how the
// encoded keys sort, and how a key is explained to a person. It is pure.
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
// Integers are big endian, so that bytes sort as numbers do. In a name, 00 is escaped as 00 FF, and
// 00 00 ends the name, so that names sort as their bytes do and no name is a prefix of another. The
// timestamp and the node of a version are complemented, so that newer versions sort first.
//
// # Invariants
//
//   - Every key and every bound of a span ends in 00 or in a suffix: a complemented version and the byte
//     0D, which is the length of the suffix. Split reads the last byte only and never the kind, so it
//     works for any tail of a key too, as Pebble requires.
//   - All keys of a range lie in the span [first home 00, last home + 1 00). Its log, state and results
//     are in the first of its slots.
//   - Compare is a total order on all byte strings, not only on keys.
//
// # Testing
//
// Golden vectors of every kind are in testdata. Random tests check that keys sort as the values
// that they encode, and decoders are fuzzed.
package keys
