package catalog

type wireCommand struct{}

func (Init) fill(*wireCommand)               {}
func (AddRegion) fill(*wireCommand)          {}
func (RegisterNode) fill(*wireCommand)       {}
func (CreateClass) fill(*wireCommand)        {}
func (CreateTable) fill(*wireCommand)        {}
func (EnsureRegionBlocks) fill(*wireCommand) {}
func (OpenSlot) fill(*wireCommand)           {}
func (AlterISR) fill(*wireCommand)           {}
func (Elect) fill(*wireCommand)              {}
func (FenceNode) fill(*wireCommand)          {}
func (SetNodeState) fill(*wireCommand)       {}
func (SetReplicas) fill(*wireCommand)        {}
func (SetVoters) fill(*wireCommand)          {}
func (Batch) fill(*wireCommand)              {}

// EncodeCommand gives the stored form of a command.
func EncodeCommand(cmd Command) []byte { panic("codec follows") }

// DecodeCommand reads what EncodeCommand writes. An unknown version, code or field is Incompatible, anything else that is
// wrong Corrupt.
func DecodeCommand(b []byte) (Command, error) { panic("codec follows") }

// EncodeResult gives the form in which a result travels to its proposer.
func EncodeResult(r Result) []byte { panic("codec follows") }

// DecodeResult reads what EncodeResult writes.
func DecodeResult(b []byte) (Result, error) { panic("codec follows") }

// Encode gives the stored form of the state.
func (s *State) Encode() []byte { panic("codec follows") }

// Decode reads what Encode writes and checks the invariants.
func Decode(b []byte) (*State, error) { panic("codec follows") }
