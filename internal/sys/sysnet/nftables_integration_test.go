//go:build integration

package sysnet

import (
	"errors"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/require"
	"github.com/berthrun/berth/internal/sys/sysns"
)

// TestChangeNftables: all changes are made or none, and the error names the change that the kernel refused. A batch that
// the kernel refuses as a whole gets one answer alone.
func TestChangeNftables(t *testing.T) {
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
	table := func(message, flags uint16, name string) NetlinkRequest {
		payload := append(NetfilterHeader(unix.NFPROTO_IPV4), byte(4+len(name)+1), 0, unix.NFTA_TABLE_NAME, 0)
		payload = append(payload, name...)
		return NetlinkRequest{Type: NftablesType(message), Flags: flags, Payload: append(payload, make([]byte, 4-len(name)%4)...)}
	}
	err := sysns.InNetNS(netns, func() error {
		n, err := OpenNetlink(unix.NETLINK_NETFILTER)
		if err != nil {
			return err
		}
		defer n.Close()
		add := table(unix.NFT_MSG_NEWTABLE, unix.NLM_F_CREATE|unix.NLM_F_EXCL, "one")
		var refused *NetlinkError
		if err := n.ChangeNftables(add, add); !errors.As(err, &refused) || refused.Index != 1 || !errors.Is(err, unix.EEXIST) {
			t.Errorf("%+v, want EEXIST of the second change", err)
		}
		if _, err := n.Do(table(unix.NFT_MSG_GETTABLE, 0, "one")); !errors.Is(err, unix.ENOENT) {
			t.Errorf("the first change of those was made: %v", err)
		}
		if err := n.ChangeNftables(add); err != nil {
			t.Error(err)
		}
		if _, err := n.Do(table(unix.NFT_MSG_GETTABLE, 0, "one")); err != nil {
			t.Error(err)
		}
		if err := n.ChangeNftables(); err != nil {
			t.Error(err)
		}
		again := table(unix.NFT_MSG_NEWTABLE, unix.NLM_F_CREATE, "one")
		if err := n.ChangeNftables(slices.Repeat([]NetlinkRequest{again}, 5000)...); err != nil {
			t.Errorf("many changes: %v", err)
		}
		// The rights of this thread, which ends with the function.
		var none [2]unix.CapUserData
		if err := unix.Capset(&unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, &none[0]); err != nil {
			return err
		}
		if err := n.ChangeNftables(add, add); !errors.As(err, &refused) || refused.Index != -1 || !errors.Is(err, unix.EPERM) {
			t.Errorf("%+v, want EPERM for all of them", err)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
