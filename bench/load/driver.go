package load

// Ready is the first line that the driver of another database writes: either the database is ready,
// or Failed says why it is not.
type Ready struct {
	// Version is the version of the database, as it reports it.
	Version string `json:"version,omitempty"`
	// Ops are the operations that the driver offers, Many those that take several keys per call.
	Ops  []Op `json:"ops,omitempty"`
	Many []Op `json:"many,omitempty"`
	// Failed says why the database does not run, and Install how to get it if it is missing.
	Failed  string `json:"failed,omitempty"`
	Install string `json:"install,omitempty"`
}

// Answer is the line of a case: a result, or the reason why there is none. It is the line with which a driver answers a case.
type Answer struct {
	Result
	// Failed says why the case was not measured.
	Failed string `json:"failed,omitempty"`
}
