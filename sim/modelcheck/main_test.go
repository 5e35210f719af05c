package main

import (
	"strings"
	"testing"
)

func TestRun(t *testing.T) {
	for _, c := range []struct {
		args   string
		broken bool
		err    string
		want   string
	}{
		{args: "-list", want: "unchanged-moves-version"},
		{args: "-epochs 2 -writes 0 -messages 1", want: "bounds: exhausted"},
		{args: "-epochs 3 -states 100", want: "stopped by a limit"},
		{args: "-states 50", want: "handover-change: stopped by a limit"},
		{args: "-states 50", want: "voter-asking: stopped by a limit"},
		{args: "-preset voter-asking-t", want: "voter-asking-thrice: exhausted | N3"},
		{args: "-without vote-above-floor", broken: true, want: "leader holds every committed entry"},
		{args: "-without prepare-quorum", broken: true, want: "restarts with lost data"},
		{args: "-preset slack", want: "slack: exhausted | slack 1, E2"},
		{args: "-preset handover-t", want: "handover-twice: exhausted"},
		{args: "-without fence", broken: true, want: "fence: BROKEN"},
		{args: "-preset log -without fence", broken: true, want: "log: BROKEN"},
		{args: "-without publish-from-start", broken: true, want: "publishes closed timestamp 1"},
		{args: "-walk -preset walk-log -steps 1000 -seed 5", want: "walk-log: walked with seed 5"},
		{args: "-walk -epochs 3", err: "a walk has no end"},
		{args: "-damages 9", err: "Damages is 9"},
		{args: "-without gravity", err: `unknown mutation "gravity"`},
		{args: "-preset moon", err: `unknown preset "moon"`},
		{args: "everything", err: "unexpected argument"},
	} {
		t.Run(c.args, func(t *testing.T) {
			var out strings.Builder
			broken, err := run(strings.Fields(c.args), &out)
			if c.err != "" {
				if err == nil || !strings.Contains(err.Error(), c.err) {
					t.Fatalf("error %v, want %q", err, c.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if broken != c.broken || !strings.Contains(out.String(), c.want) {
				t.Errorf("broken %v, want %v and %q in:\n%s", broken, c.broken, c.want, out.String())
			}
		})
	}
}
