//go:build integration

package builtin_test

import (
	"encoding/json"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/berthrun/berth/internal/errs"
)

// TestOwnSubnetIsNoPodCIDR: a network that awaits the node's pod CIDR does not take a subnet for it that berth or its
// configuration chose before. What the kubelet sent meanwhile counts.
func TestOwnSubnetIsNoPodCIDR(t *testing.T) {
	l := newLab(t)
	await := l.config()
	await.AwaitPodCIDR, await.Bridge = true, "cbr0"
	wantAwaited := func(before string) {
		t.Helper()
		n := l.open(await)
		if err := n.Ready(t.Context()); !errors.Is(err, errs.Unavailable) {
			t.Errorf("after %s: %v with %v, want kind Unavailable", before, err, n.Info())
		}
		if err := n.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if err := l.open(l.config()).Close(); err != nil {
		t.Fatal(err)
	}
	wantAwaited("a chosen subnet")
	configured := l.config()
	configured.Subnets = []netip.Prefix{netip.MustParsePrefix("10.70.0.0/24")}
	n := l.open(configured)
	if err := n.Close(); err != nil {
		t.Fatal(err)
	}
	wantAwaited("a configured subnet")

	n = l.open(configured)
	if err := errors.Join(n.SetPodCIDR(t.Context(), "10.77.0.0/24"), n.Close()); err != nil {
		t.Fatal(err)
	}
	n = l.open(await)
	defer n.Close()
	if err := n.Ready(t.Context()); err != nil || n.Info()["subnets"] != "10.77.0.0/24" {
		t.Errorf("with the pod CIDR of before: %v, %v", err, n.Info())
	}
}

// TestSubnetOfAnOlderBerth: its record does not have where the subnet came from. A kubelet does not send the pod CIDR
// again, so the subnet counts as one, unless it is that which berth tries first.
func TestSubnetOfAnOlderBerth(t *testing.T) {
	l := newLab(t)
	n := l.open(l.config())
	chosen := n.Info()["subnets"]
	if err := n.Close(); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(l.dir, "root", "subnets", "chosen.json")
	for _, c := range []struct {
		change func(choice map[string]any)
		ready  bool
	}{
		{func(choice map[string]any) { delete(choice, "own") }, false},
		{func(choice map[string]any) { delete(choice, "own"); choice["subnets"] = []string{"10.77.0.0/24"} }, true},
	} {
		var whole map[string]any
		data, err := os.ReadFile(file)
		if err == nil {
			err = json.Unmarshal(data, &whole)
		}
		if err != nil {
			t.Fatal(err)
		}
		choice := whole["record"].(map[string]any)
		choice["subnets"] = strings.Split(chosen, ",")
		c.change(choice)
		if data, err = json.Marshal(whole); err == nil {
			err = os.WriteFile(file, data, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
		await := l.config()
		await.AwaitPodCIDR = true
		n := l.open(await)
		if err := n.Ready(t.Context()); (err == nil) != c.ready {
			t.Errorf("%v: %v, ready %t is wanted", choice, err, c.ready)
		}
		if err := n.Close(); err != nil {
			t.Fatal(err)
		}
	}
}
