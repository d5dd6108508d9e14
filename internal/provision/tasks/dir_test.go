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

// TestDataThatPodmanShares: CRI-O's images go with it, unless podman has used their directory since. A directory
// with a runtime's own volumes does not show that podman uses it.
func TestDataThatPodmanShares(t *testing.T) {
	for file, c := range map[string]struct {
		data  string
		stays bool
	}{
		"/var/lib/containers/storage/overlay/1":            {"/var/lib/containers", false},
		"/var/lib/containers/storage/libpod/bolt_state.db": {"/var/lib/containers", true},
		"/var/lib/containers/storage/db.sql":               {"/var/lib/containers", true},
		"/var/lib/docker/volumes/metadata.db":              {"/var/lib/docker", false},
		"/srv/containers/libpod/bolt_state.db":             {"/srv/containers", true},
	} {
		h := provisiontest.New()
		at := ""
		for word := range strings.SplitSeq(strings.Trim(path.Dir(file), "/"), "/") {
			at += "/" + word
			if err := h.Files().Mkdir(at, provision.Attr{Mode: 0o755}); err != nil {
				t.Fatal(err)
			}
		}
		if err := h.Files().Write(file, strings.NewReader("x"), provision.Attr{Mode: 0o644}); err != nil {
			t.Fatal(err)
		}
		err := tasks.Kinds()[provision.KindData].Restore(t.Context(), h, c.data, provision.State{}, nil)
		if errors.Is(err, errs.State) != c.stays || !c.stays && err != nil || provision.Exists(h.Files(), c.data) != c.stays {
			t.Errorf("with %s: %v", file, err)
		}
	}
}
