//go:build integration

package builtin_test

import (
	"strings"
	"testing"

	"github.com/berthrun/berth/internal/network"
)

// TestAddressesOfABatch: many pods start at once. Each can use its IPv6 address as soon as it is
// attached, and none detects a duplicate.
func TestAddressesOfABatch(t *testing.T) {
	l := newLab(t)
	n := l.open(l.config())
	const count = 24
	var pods []*network.Attachment
	for range count {
		pods = append(pods, l.pod())
	}
	done := make(chan error, count)
	shown := make([]string, count)
	for i, att := range pods {
		go func() {
			_, err := n.Attach(t.Context(), att)
			if err == nil {
				shown[i], err = l.tryRun(att.NetNS, "ip", "-6", "addr", "show", "dev", "eth0", "scope", "global")
			}
			done <- err
		}()
	}
	for range pods {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	for i, att := range pods {
		if !strings.Contains(shown[i], "inet6 fd") || strings.Contains(shown[i], "tentative") || strings.Contains(shown[i], "dadfailed") {
			t.Errorf("%s when it was attached:\n%s", att.Name, shown[i])
		}
		if later := l.run(att.NetNS, "ip", "-6", "addr"); strings.Contains(later, "dadfailed") {
			t.Errorf("%s found a duplicate:\n%s", att.Name, later)
		}
	}
	if err := n.GC(t.Context(), nil); err != nil {
		t.Error(err)
	}
	if err := n.Close(); err != nil {
		t.Error(err)
	}
}
