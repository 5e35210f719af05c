package reader

// ForcePortable leaves the assembly out until the function that it gives is called.
func ForcePortable() (restore func()) {
	old := hasKernel
	hasKernel = false
	return func() { hasKernel = old }
}

// HasKernel reports whether MultiGet runs in assembly.
func HasKernel() bool { return hasKernel }

// Look runs the watch at once.
func (c *Client) Look() { c.look() }
