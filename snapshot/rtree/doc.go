// Package rtree is the spatial index of an image: a packed R-tree in Hilbert order over the records of a segment's base,
// and the spherical geometry that queries by radius, by nearness and by polygon need. It works on byte slices and on
// numbers: it maps no memory and opens no file.
//
// The tree is built at once from all boxes, sorted along a Hilbert curve and packed sixteen to a node, every node full but
// the last of each level (I. Kamel and C. Faloutsos, On Packing R-trees, CIKM 1993; flatbush by V. Agafonkin has the same
// shape). The coordinates of a node's sixteen boxes stand in four columns, so that a vector unit tests a node in a few
// instructions. A search walks level by level in chunks: it tests a list of nodes and writes the list of their children that
// the query touches. Nodes that lie wholly in the query are marked, and what is below them is taken without a test.
//
// The publisher uses Sorter, Size and Build; the reader uses Open, Cursor, FirstMatch and the geometry.
//
// # Invariants
//
//   - The boxes of a tree are plain: one that crosses the antimeridian is put in as its two parts (Box.Split), both with the
//     reference of the one record.
//   - Child j of node i of a level is node 16i+j of the level below; the lanes of leaf i are the leaves 16i to 16i+15.
//   - Lanes that hold nothing have MinX and MinY at the greatest and MaxX and MaxY at the least int32. They stand only at
//     the end of the last node of a level, which Open checks: so no search leaves the section.
//   - A cursor gives the leaves of one query box in rising order, each once.
//
// # Concurrency
//
// A Tree is immutable and may be used by any number of goroutines; a Cursor and a Sorter belong to one at a time.
//
// # Testing
//
// Every search is compared with a test of every box, by each kernel that the processor can run. The bytes of a small tree
// are kept in testdata.
package rtree
