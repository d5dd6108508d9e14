//go:build integration

package builtin_test

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/berthrun/berth/internal/network/builtin"
)

// TestNothingIsOpenedBeforeItsTurn: a daemon answers lists of pods before it opens the network. What needs the
// network waits as long as its caller does.
func TestNothingIsOpenedBeforeItsTurn(t *testing.T) {
	l := newLab(t)
	pod := l.pod()
	n := l.open(l.config())
	want := l.attach(n, pod)
	if err := n.Close(); err != nil {
		t.Fatal(err)
	}
	ruleset := l.ruleset()
	l.run(l.host, "nft", "flush", "ruleset")

	turn := make(chan struct{})
	cfg := l.config()
	cfg.After = turn
	n = l.start(cfg)
	gone, stop := context.WithCancel(t.Context())
	stop()
	_, attached := n.Attach(gone, l.pod())
	for what, err := range map[string]error{
		"Attach": attached, "Detach": n.Detach(gone, pod), "Ready": n.Ready(gone), "GC": n.GC(gone, nil), "SetPodCIDR": n.SetPodCIDR(gone, "10.1.0.0/16"),
	} {
		if !errors.Is(err, context.Canceled) {
			t.Errorf("%s, for a caller that does not wait: %v", what, err)
		}
	}
	if got := l.ruleset(); got != "" {
		t.Errorf("rules before the turn:\n%s", got)
	}
	close(turn)
	got, err := n.Attach(t.Context(), pod)
	if err != nil || !slices.Equal(got.IPs, want.IPs) {
		t.Errorf("the addresses of the pod: %v, %v, want %v", got, err, want)
	}
	if got := l.ruleset(); got != ruleset {
		t.Errorf("rules:\n%s\nwant:\n%s", got, ruleset)
	}
	if err := n.Close(); err != nil {
		t.Error(err)
	}

	// A daemon that ends before it has answered leaves the network as it is.
	cfg.After = make(chan struct{})
	n = l.start(cfg)
	if err := n.Close(); err != nil {
		t.Error(err)
	}
	if err := n.Ready(t.Context()); err == nil {
		t.Error("a closed network is ready")
	}
	if got := l.ruleset(); got != ruleset {
		t.Errorf("rules after a daemon that has not answered:\n%s\nwant:\n%s", got, ruleset)
	}

	n = l.open(l.config())
	if err := errors.Join(n.Detach(t.Context(), pod), n.Close()); err != nil {
		t.Fatal(err)
	}
	// One that ends as soon as it has answered removes what a killed daemon has left.
	l.run(l.host, "ip", "link", "add", "berth0", "type", "bridge")
	turn = make(chan struct{})
	cfg.After = turn
	n = l.start(cfg)
	close(turn)
	if err := n.Close(); err != nil {
		t.Error(err)
	}
	if out, err := l.tryRun(l.host, "ip", "link", "show", "berth0"); err == nil {
		t.Errorf("the bridge of a killed daemon is left: %s", out)
	}
}

// start begins to open a network.
func (l *lab) start(cfg builtin.Config) *builtin.Network {
	l.t.Helper()
	n, err := builtin.Start(l.t.Context(), cfg)
	if err != nil {
		l.t.Fatal(err)
	}
	return n
}
