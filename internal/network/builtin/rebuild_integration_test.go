//go:build integration

package builtin

import (
	"net/netip"
	"path/filepath"
	"testing"
	"time"

	"github.com/berthrun/berth/internal/network"
	"github.com/berthrun/berth/internal/require"
	"github.com/berthrun/berth/internal/sys/sysns"
)

// TestRebuildBesideAChange: a change of the table that comes while a rebuild lists what should be in it is not lost.
func TestRebuildBesideAChange(t *testing.T) {
	require.Root(t)
	netns := filepath.Join(t.TempDir(), "netns")
	if err := sysns.NewNetNS(netns); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := sysns.RemoveNetNS(netns); err != nil {
			t.Error(err)
		}
	})
	port := func(host uint16) []element {
		return elementsOf(&record{
			Addrs: []netip.Prefix{netip.MustParsePrefix("10.0.0.2/24")}, Ports: []network.Port{{Protocol: "tcp", HostPort: host, ContainerPort: 80}},
		})
	}
	err := sysns.InNetNS(netns, func() error {
		table, err := openTable("berth-test", "br")
		if err != nil {
			return err
		}
		none := func() []element { return nil }
		if err := table.rebuild(prefixes("10.0.0.0/24"), none); err != nil {
			return err
		}
		if err := table.change(port(80), nil); err != nil {
			return err
		}
		changed := make(chan error, 1)
		err = table.rebuild(prefixes("10.0.0.0/24"), func() []element {
			go func() { changed <- table.change(port(81), port(80)) }()
			time.Sleep(50 * time.Millisecond) // if a change could come between, it would be now
			return port(80)
		})
		if err != nil {
			return err
		}
		if err := <-changed; err != nil {
			return err
		}
		if intact, err := table.intact(); err != nil || !intact || !table.elements[port(81)[0]] || table.elements[port(80)[0]] {
			t.Errorf("intact %t, %v; elements %v", intact, err, table.elements)
		}
		return table.close()
	})
	if err != nil {
		t.Fatal(err)
	}
}
