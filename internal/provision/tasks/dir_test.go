package tasks_test

import (
	"errors"
	"path"
	"strings"
	"testing"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/provision"
	"github.com/berthrun/berth/internal/provision/provisiontest"
	"github.com/berthrun/berth/internal/provision/tasks"
)

// TestDataThatPodmanShares: CRI-O's images go with it, unless podman has used their directory since.
func TestDataThatPodmanShares(t *testing.T) {
	const name = "/var/lib/containers"
	for file, stays := range map[string]bool{"overlay/1": false, "libpod/bolt_state.db": true, "volumes/mine": true} {
		h := provisiontest.New()
		for _, dir := range []string{name, name + "/storage", path.Dir(name + "/storage/" + file)} {
			if err := h.Files().Mkdir(dir, provision.Attr{Mode: 0o755}); err != nil {
				t.Fatal(err)
			}
		}
		if err := h.Files().Write(name+"/storage/"+file, strings.NewReader("x"), provision.Attr{Mode: 0o644}); err != nil {
			t.Fatal(err)
		}
		err := tasks.Kinds()[provision.KindData].Restore(t.Context(), h, name, provision.State{}, nil)
		if errors.Is(err, errs.State) != stays || !stays && err != nil || provision.Exists(h.Files(), name) != stays {
			t.Errorf("with %s: %v", file, err)
		}
	}
}
