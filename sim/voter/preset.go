package voter

// Small groups in which mutations show. Each of them is a preset as well.
var (
	asking       = Config{Voters: 3, Terms: 2, Entries: 1, Restarts: 1, Damages: 1, Damaged: 1, Messages: 1, Asking: true}
	askingThrice = Config{Voters: 3, Terms: 3, Restarts: 1, Damages: 1, Damaged: 1, Messages: 1, Asking: true}
	admission    = Config{Voters: 3, Terms: 2, Entries: 2, Restarts: 1, Damages: 1, Damaged: 1, Messages: 1, Admission: true}
	readmission  = Config{Voters: 3, Terms: 2, Entries: 2, Restarts: 2, Damages: 1, Damaged: 1, Messages: 1, Admission: true}
	learning     = Config{Voters: 3, Terms: 2, Entries: 2, Restarts: 1, Damages: 1, Damaged: 1, Messages: 1, Learning: true}
	relearning   = Config{Voters: 3, Terms: 2, Entries: 2, Restarts: 2, Damages: 1, Damaged: 1, Messages: 1, Learning: true}
	noticed      = Config{Voters: 3, Terms: 2, Entries: 1, Restarts: 2, Damages: 1, Damaged: 1, Messages: 1, Asking: true, Noticed: true, Answers: 1}
	noticedTwice = Config{Voters: 3, Terms: 2, Entries: 1, Restarts: 2, Damages: 2, Damaged: 1, Messages: 1, Asking: true, Noticed: true, Answers: 1}
)

// Preset is a configuration with a name.
type Preset struct {
	Name   string
	Config Config
	// Short marks the presets that the tests always exhaust.
	Short bool
}

// Presets lists the configurations that docs/model.md reports as exhausted.
func Presets() []Preset {
	return []Preset{
		{"voter-asking", asking, true},
		{"voter-asking-thrice", askingThrice, true},
		{"voter-asking-all", Config{Voters: 3, Terms: 2, Restarts: 3, Damages: 1, Damaged: 1, Messages: 1, Asking: true}, true},
		{"voter-asking-five", Config{Voters: 5, Terms: 2, Restarts: 1, Damages: 1, Damaged: 1, Messages: 1, Asking: true}, true},
		{"voter-noticed", noticed, true},
		{"voter-noticed-twice", noticedTwice, true},
		{"voter-admission", admission, true},
		{"voter-learning", learning, true},

		{"long-voter-asking", Config{Voters: 3, Terms: 3, Entries: 1, Restarts: 1, Damages: 1, Damaged: 1, Messages: 1, Asking: true}, false},
		{"long-voter-asking-all", Config{Voters: 3, Terms: 2, Entries: 1, Restarts: 3, Damages: 1, Damaged: 1, Messages: 1, Asking: true}, false},
		{"long-voter-asking-late", Config{Voters: 3, Terms: 2, Entries: 1, Restarts: 1, Damages: 1, Damaged: 1, Messages: 2, Asking: true}, false},
		{"long-voter-image", Config{Voters: 3, Terms: 2, Entries: 2, Restarts: 1, Damages: 1, Damaged: 1, Messages: 1, Asking: true, Images: true}, false},
		{"long-voter-both", Config{Voters: 3, Terms: 2, Entries: 2, Restarts: 1, Damages: 1, Damaged: 1, Messages: 1, Asking: true, Admission: true}, false},
		{"long-voter-admission", readmission, false},
		{"long-voter-learning", relearning, false},
		{"long-voter-learning-log", Config{Voters: 3, Terms: 2, Entries: 3, Restarts: 1, Damages: 1, Damaged: 1, Messages: 1, Learning: true}, false},
		{"long-voter-five", Config{Voters: 5, Terms: 2, Entries: 1, Restarts: 1, Damages: 1, Damaged: 1, Messages: 1, Asking: true}, false},
		{"long-voter-five-admission", Config{Voters: 5, Terms: 2, Entries: 1, Restarts: 1, Damages: 1, Damaged: 1, Messages: 1, Admission: true}, false},
	}
}
