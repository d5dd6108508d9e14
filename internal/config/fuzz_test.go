package config

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berthrun/berth/internal/errs"
)

// FuzzDaemon: any file is either a configuration that can be rendered and loaded again, or a list
// of faults.
func FuzzDaemon(f *testing.F) {
	f.Add([]byte(Sample(DefaultDaemon())))
	f.Add([]byte("root = 5\n[network]\nsubnets = ['10.0.0.0/8', 3]\n[nets]\nx.y = 1"))
	f.Add([]byte("log.level = 'debug'\n[log]\nformat = \"\"\"\ntext\"\"\""))
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, data []byte) {
		file := filepath.Join(dir, "berth.toml")
		if err := os.WriteFile(file, data, 0o600); err != nil {
			t.Fatal(err)
		}
		cfg, err := LoadDaemon(file, nil)
		if err != nil {
			if !errors.Is(err, errs.Invalid) {
				t.Errorf("%v blames nobody", err)
			}
			return
		}
		if err := os.WriteFile(file, []byte(Sample(cfg)), 0o600); err != nil {
			t.Fatal(err)
		}
		again, err := LoadDaemon(file, nil)
		if err != nil {
			t.Fatalf("what was loaded cannot be loaded again: %v", err)
		}
		if diff := cmp.Diff(cfg, again); diff != "" {
			t.Errorf("what was loaded changes:\n%s", diff)
		}
	})
}
