package cni_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/berthrun/berth/internal/network/cni"
)

// TestTemplate: the configuration of the node comes from a template and the kubelet's pod CIDR. It
// is there after a restart, follows the CIDR and the template, and never replaces one that an
// operator has installed.
func TestTemplate(t *testing.T) {
	dir := t.TempDir()
	template, confs := filepath.Join(dir, "template"), filepath.Join(dir, "net.d")
	write := func(path, content string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(template, `{"name": "from-template", "cniVersion": "1.0.0", "plugins": [{"type": "ptp", "subnet": "{{.PodCIDR}}"}]}`)
	open := func() *cni.Network {
		t.Helper()
		n, err := cni.New(t.Context(), cni.Config{ConfDir: confs, RootDir: filepath.Join(dir, "root"), Template: template, MaxNetworks: 1})
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	inUse := func(n *cni.Network, want ...string) {
		t.Helper()
		info := n.Info()
		content, _ := os.ReadFile(info["config"])
		for _, part := range want {
			if !strings.Contains(info["network"]+string(content), part) {
				t.Errorf("in use is %v:\n%s\nwant %s in it", info, content, part)
			}
		}
	}
	setCIDR := func(n *cni.Network, cidr string) {
		t.Helper()
		if err := n.SetPodCIDR(t.Context(), cidr); err != nil {
			t.Error(err)
		}
	}
	n := open()
	if n.Info()["network"] != "" {
		t.Errorf("a network before the kubelet sent the CIDR: %v", n.Info())
	}
	setCIDR(n, "10.1.0.0/24")
	inUse(n, "from-template", "10.1.0.0/24")
	setCIDR(n, "10.2.0.0/24,fd00::/64")
	inUse(n, "10.2.0.0/24")
	n.Close()

	write(template, `{"name": "changed", "cniVersion": "1.0.0", "plugins": [{"type": "bridge", "subnet": "{{.PodCIDR}}"}]}`)
	n = open()
	inUse(n, "changed", "10.2.0.0/24")
	n.Close()

	write(filepath.Join(confs, "05-operator.conflist"), `{"name": "operator", "cniVersion": "1.0.0", "plugins": [{"type": "bridge"}]}`)
	n = open()
	setCIDR(n, "10.3.0.0/24")
	inUse(n, "operator")
	if content, err := os.ReadFile(filepath.Join(confs, "10-berth.conflist")); err != nil || strings.Contains(string(content), "10.3") {
		t.Errorf("the configuration that is not in use was written: %s, %v", content, err)
	}
	n.Close()
}
