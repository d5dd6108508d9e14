package facts

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/provision/node/nodefile"
)

// TestSourcesWithoutDigest: only a directory needs no digest. The machine knows whether a source is
// one.
func TestSourcesWithoutDigest(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "runc"), nil, 0o755); err != nil {
		t.Fatal(err)
	}
	n := load(t, "runtime: {name: containerd, assets: [{source: "+dir+"}, {source: "+dir+"/runc}]}\nnetwork: {plugins: [{source: "+dir+"/none}]}\n"+
		"kubelet: {enabled: true, assets: [{source: "+dir+"/none, arch: s390x}]}\n")
	faults := CheckSources(n)
	if len(faults) != 2 || faults[0].Path != "runtime.assets[1].digest" || faults[1].Path != "network.plugins[0].source" ||
		!errors.Is(faults, errs.Invalid) || !errors.Is(faults, errs.NotFound) {
		t.Errorf("%v", faults)
	}
	other := errors.New("other")
	if got := faults.Join(other); !errors.Is(got, other) || errors.Is(got, errs.Invalid) {
		t.Errorf("beside another error: %v", got)
	}
	var all nodefile.FieldErrors
	if got := faults.Join(faults[:1]); !errors.As(got, &all) || len(all) != 3 {
		t.Errorf("beside field errors: %v", got)
	}
	if got := nodefile.FieldErrors(nil).Join(nil); got != nil {
		t.Errorf("nothing is %v", got)
	}
}
