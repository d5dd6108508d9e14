package node

import (
	"slices"
	"testing"
	"time"

	"github.com/berthrun/berth/internal/provision/node/distro"
	"github.com/berthrun/berth/internal/provision/node/facts"
	"github.com/berthrun/berth/internal/provision/node/nodefile"
)

// TestBootTriesAgain: the boot unit is restarted a limited number of times, if its systemd supports
// that and no timer does it.
func TestBootTriesAgain(t *testing.T) {
	const never = "StartLimitIntervalSec=0"
	for _, c := range []struct {
		family, version string
		drift           time.Duration
		again           bool
		limit           string
	}{
		{"rhel", "8.10", 0, false, never},
		{"rhel", "9.4", 0, true, "StartLimitBurst=8"},
		{"debian", "10", 0, false, never},
		{"debian", "13", 0, true, "StartLimitBurst=8"},
		{"debian", "13", time.Minute, false, never},
		{"debian", "13", 2 * time.Hour, true, "StartLimitBurst=11"},
		{"debian", "13", 24 * time.Hour, true, "StartLimitBurst=8"},
	} {
		n := nodefile.Default()
		n.Boot.Drift = nodefile.Duration(c.drift)
		b := &builder{n: n, f: facts.Facts{Distro: distro.Distro{ID: c.family, Family: c.family, Version: c.version}}}
		limits, again := b.tryAgain()
		if got := slices.Contains(again, "Restart=on-failure"); got != c.again || !c.again && len(again) > 0 || !slices.Contains(limits, c.limit) {
			t.Errorf("%s %s, drift %s: got %v %v, want a restart %v and %s", c.family, c.version, c.drift, limits, again, c.again, c.limit)
		}
	}
}
