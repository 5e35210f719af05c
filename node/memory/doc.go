// Package memory limits the memory of a node. Split divides the total into named parts, a Budget
// counts the bytes of one part and rejects what does not fit, and Limit returns the memory that the
// machine or the control group allows.
//
// Work is rejected before its bytes are copied, so that an overloaded node finishes the work it
// accepted and answers the others at once.
package memory
