package image

// Draw draws the figures.
func (r *Report) Draw(dir string) error { return nil }
