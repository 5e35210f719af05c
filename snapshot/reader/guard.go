package reader

import "runtime/debug"

// Guard runs fn, which reads views of this client, and returns its error. If somebody has truncated
// a file of the image, the kernel answers a read with SIGBUS. Guard then ends fn, as a panic would,
// and returns an error of kind Corrupt that names the file and the offset. The use that fn makes of
// the values is guarded too, but not goroutines that fn starts. Any other fault, such as the use of
// a value after its view was unlocked, remains a panic.
//
// A call costs about 12 ns, which is as much as a read; put many reads into one call. Without Guard
// a truncated file ends the process, which is good enough for a program that is restarted anyway.
func (c *Client) Guard(fn func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		// truncatedError panics again unless the address is in a file of this client. It reads
		// c.mapped, which the mutex guards.
		if fault := recover(); fault != nil {
			c.mu.Lock()
			defer c.mu.Unlock()
			err = c.truncatedError(fault)
		}
	}()
	return fn()
}
