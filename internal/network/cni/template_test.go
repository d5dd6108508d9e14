package cni_test

import (
	"bytes"
	"log/slog"
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

// TestTemplateIsFollowed: berth writes the configuration again when its template changes, when somebody removes it, and when
// another configuration that was in use is gone. A template with a fault changes nothing.
func TestTemplateIsFollowed(t *testing.T) {
	dir := t.TempDir()
	template, confs := filepath.Join(dir, "template"), filepath.Join(dir, "net.d")
	file := filepath.Join(confs, "10-berth.conflist")
	write := func(path, content string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	of := func(name string) string {
		return `{"name": "` + name + `", "cniVersion": "1.0.0", "plugins": [{"type": "ptp", "subnet": "{{.PodCIDR}}"}]}`
	}
	write(template, of("first"))
	var log bytes.Buffer
	n, err := cni.New(t.Context(), cni.Config{
		ConfDir: confs, RootDir: filepath.Join(dir, "root"), Template: template, MaxNetworks: 1, Log: slog.New(slog.NewTextHandler(&log, nil)),
	})
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	if err := n.SetPodCIDR(t.Context(), "10.1.0.0/24"); err != nil {
		t.Fatal(err)
	}
	look := func(network string) {
		t.Helper()
		_ = n.Ready(t.Context()) // the plugins are not there
		content, _ := os.ReadFile(file)
		if info := n.Info(); info["network"] != network || network == info["network"] && info["config"] == file && !strings.Contains(string(content), "10.1.0.0/24") {
			t.Errorf("in use is %v, %s has\n%s\nwant the network %s", info, file, content, network)
		}
	}
	look("first")
	write(template, of("second"))
	look("second")
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	look("second")
	write(template, "{{.PodCIDR")
	look("second")
	look("second")
	if count := strings.Count(log.String(), "cannot follow the template"); count != 1 {
		t.Errorf("a fault of the template is logged %d times, want once:\n%s", count, log.String())
	}
	operators := filepath.Join(confs, "05-operator.conflist")
	write(operators, `{"name": "operator", "cniVersion": "1.0.0", "plugins": [{"type": "bridge"}]}`)
	write(template, of("third"))
	look("operator")
	if err := os.Remove(operators); err != nil {
		t.Fatal(err)
	}
	look("third")
}
