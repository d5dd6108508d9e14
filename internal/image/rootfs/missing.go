package rootfs

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/berthrun/berth/internal/image"
)

// OnMissing has mend called when a root filesystem of an image cannot be made and directories of its layers are missing. If it
// returns nil, they are there again. Its error says which layers are missing, and what becomes of them. Call it before
// the manager is used.
func (m *Manager) OnMissing(mend func(ctx context.Context, imageID string) error) { m.mend = mend }

// makeOrMend is make, and unpacks again what is missing of the layers. Only a failure looks for them.
func (m *Manager) makeOrMend(ctx context.Context, spec image.RootfsSpec) (path string, err error) {
	path, u, err := m.make(ctx, spec)
	if err == nil || ctx.Err() != nil || !m.lacksLayers(u) {
		return path, err
	}
	if err := m.mend(ctx, u.Image); err != nil {
		return "", fmt.Errorf("cannot prepare the root filesystem of %s: %w", spec.Key, err)
	}
	path, _, err = m.make(ctx, spec)
	return path, err
}

// lacksLayers reports whether a directory of a layer of this store is missing.
func (m *Manager) lacksLayers(u use) bool {
	if u.Proxy != "" || m.mend == nil {
		return false
	}
	for _, lower := range u.lower {
		if fi, err := os.Stat(filepath.Join(m.layersDir, lower)); err != nil || !fi.IsDir() {
			return true
		}
	}
	return false
}
