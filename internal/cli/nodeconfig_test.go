package cli

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/berthrun/berth/internal/config"
	"github.com/berthrun/berth/internal/provision/node/runtimeconf"
)

// TestNodeWritesWhatServeReads: the file that `berth node` makes for berth has only
// keys and values that `berth serve` takes. The two know nothing of each other.
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
		file := filepath.Join(t.TempDir(), "berth.toml")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		cfg, err := config.LoadDaemon(file, nil)
		if err != nil {
			t.Errorf("%s: %v\n%s", name, err, text)
			continue
		}
		if name == "full" && (cfg.SocketPath() != m.Socket || cfg.Network.Mode != "builtin" || cfg.Runtime.CgroupDriver != "systemd") {
			t.Errorf("%s: %+v", name, cfg)
		}
	}
}
