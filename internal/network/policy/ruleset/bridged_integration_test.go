//go:build integration

package ruleset_test

import (
	"os"
	"testing"

	"github.com/berthrun/berth/internal/network/policy/ruleset"
	"github.com/berthrun/berth/internal/sys/sysns"
)

// TestFilterBridged: a sysctl that another program has cleared is set again, and a mere check sets nothing.
func TestFilterBridged(t *testing.T) {
	l := newLab(t, 0)
	for _, family := range []string{"iptables", "ip6tables"} {
		key := "net/bridge/bridge-nf-call-" + family
		l.sysctl(key, "0")
		err := sysns.InNetNS(l.node, func() error {
			if err := ruleset.CanFilterBridged(); err != nil {
				return err
			}
			if now, err := os.ReadFile("/proc/sys/" + key); err != nil || string(now) != "0\n" {
				t.Errorf("%s: after a check: %q, %v", key, now, err)
			}
			for _, want := range []bool{true, false} {
				if changed, err := ruleset.FilterBridged(); err != nil || changed != want {
					t.Errorf("%s: changed %v, %v; want %v", key, changed, err, want)
				}
			}
			if now, err := os.ReadFile("/proc/sys/" + key); err != nil || string(now) != "1\n" {
				t.Errorf("%s: %q, %v", key, now, err)
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	}
	if err := l.table.ProbeFrames(); err != nil {
		t.Error(err)
	}
}
