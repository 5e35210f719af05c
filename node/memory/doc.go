// Package memory keeps a node within one amount of memory. Split divides that amount into named parts; a Budget counts what one
// part holds and refuses what does not fit; Limit finds how much memory the machine, or the control group, allows.
//
// What is refused is refused before it is copied, so that a node under overload does the work it took in and answers the
// rest at once.
package memory
