package reader

import "runtime/debug"

// Guard runs fn, which reads views of this client, and gives its error. When somebody has truncated a file of the image, so that
// the kernel answers a read with SIGBUS, the process does not end: fn is left where it is, as by a panic, and the error is of
// kind Corrupt and names the file and the offset. What fn does with the values that it was given is guarded too, but not
// what it starts in other goroutines. Any other fault, such as that of a value used after its view was unlocked, goes on as the
// panic that it is.
//
// It costs some 12 ns, which would count in a read; put many into one call. Without Guard a file that is truncated ends the
// process, which is as good for a program that is started again anyway.
func (c *Client) Guard(fn func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if fault := recover(); fault != nil {
			c.mu.Lock()
			defer c.mu.Unlock()
			err = c.cut(fault)
		}
	}()
	return fn()
}
