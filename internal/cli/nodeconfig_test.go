package cli

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/berthrun/berth/internal/berthtoml"
	"github.com/berthrun/berth/internal/config"
	"github.com/berthrun/berth/internal/provision/node/runtimeconf"
)

// TestNodeWritesWhatServeReads: the file that `berth node` writes for berth has only keys and
// values that `berth serve` accepts. Neither command imports the other.
func TestNodeWritesWhatServeReads(t *testing.T) {
	for name, m := range map[string]runtimeconf.Model{
		"least": {},
		"full": {
			Socket: "/run/own/berth.sock", Root: "/data/berth", State: "/run/own", LogLevel: "debug", SystemdCgroup: true, CDISpecDirs: []string{"/etc/own/cdi"},
			CNI:         runtimeconf.CNI{ConfDir: "/etc/own", BinDirs: []string{"/opt/own"}, Builtin: true, Subnets: []string{"10.1.0.0/24"}, MTU: 1400},
			RegistryDir: "/etc/own/certs.d",
		},
	} {
		text, err := runtimeconf.Berth(m)
		if err != nil {
			t.Fatal(err)
		}
		cfg := load(t, text)
		if name == "full" && (cfg.SocketPath() != m.Socket || cfg.Network.Mode != "builtin" || cfg.Runtime.CgroupDriver != "systemd") {
			t.Errorf("%s: %+v", name, cfg)
		}
	}
}

// TestClusterWritesWhatServeReads: the file that `berth cluster` writes for a node has only keys
// and values that `berth serve` accepts.
func TestClusterWritesWhatServeReads(t *testing.T) {
	text, err := berthtoml.File{
		CgroupDriver: "cgroupfs", SELinux: "lenient", RegistryDirs: []string{"/etc/own/certs.d"},
		Network: berthtoml.Network{Mode: "builtin", AwaitPodCIDR: true, ClusterSubnets: []string{"10.1.0.0/16", "fd00:1::/56"}},
	}.Text("")
	if err != nil {
		t.Fatal(err)
	}
	if cfg := load(t, text); !cfg.Network.Await || len(cfg.Network.Cluster) != 2 || cfg.Runtime.SELinux != "lenient" {
		t.Errorf("%+v", cfg)
	}
}

// load reads a configuration of the daemon.
func load(t *testing.T, text string) *config.Daemon {
	t.Helper()
	file := filepath.Join(t.TempDir(), "berth.toml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg, err := config.LoadDaemon(file, nil)
	if err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	return cfg
}
