//go:build integration

package daemon

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/berthrun/berth/internal/config"
	"github.com/berthrun/berth/internal/require"
	"github.com/berthrun/berth/internal/sys/sysns"
)

// TestCheckSubnets: `berth config check` refuses the subnets that a start of the network would refuse on this host.
func TestCheckSubnets(t *testing.T) {
	require.Root(t)
	require.Binary(t, "ip")
	dir := t.TempDir()
	host := filepath.Join(dir, "host")
	if err := sysns.NewNetNS(host); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := sysns.RemoveNetNS(host); err != nil {
			t.Error(err)
		}
	})
	for subnet, want := range map[string]string{
		"192.0.2.0/29": "network.subnets: subnet 192.0.2.0/29 contains 192.0.2.5, an address of the host on link lo", "10.200.0.0/24": "",
	} {
		cfg := config.DefaultDaemon()
		cfg.State, cfg.Root = filepath.Join(dir, "state"), filepath.Join(dir, "root")
		cfg.Network.Mode, cfg.Network.Subnets = "builtin", []string{subnet}
		got := ""
		err := sysns.InNetNS(host, func() error {
			if out, err := exec.Command("ip", "addr", "replace", "192.0.2.5/32", "dev", "lo").CombinedOutput(); err != nil {
				return fmt.Errorf("%s: %w", out, err)
			}
			CheckSubnets(cfg, func(key, format string, args ...any) { got = key + ": " + fmt.Sprintf(format, args...) })
			return nil
		})
		if err != nil || want == "" && got != "" || !strings.HasPrefix(got, want) {
			t.Errorf("%s: %q, %v, want %q", subnet, got, err, want)
		}
	}
}
