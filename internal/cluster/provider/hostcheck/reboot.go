package hostcheck

import (
	"fmt"
	"io/fs"
	"path"
	"strings"
)

// Reboot tells that a unit of systemd is not enabled that starts an engine's containers when
// the host boots. A host without systemd is not asked for one. enable is what systemctl is to do
// with the unit.
func (h Host) Reboot(unit, enable string) []UnmetRequirement {
	if _, err := fs.Stat(h.Root, "run/systemd/system"); err != nil {
		return nil
	}
	dirs, fix := []string{"etc/systemd/system", "usr/lib/systemd/system", "lib/systemd/system"}, "systemctl "+enable+" "+unit
	if h.Rootless {
		dirs, fix = []string{"etc/systemd/user", "usr/lib/systemd/user"}, "systemctl --user "+enable+" "+unit+"\nloginctl enable-linger"
		if h.Home != "" {
			dirs = append(dirs, path.Join(strings.TrimPrefix(h.Home, "/"), ".config/systemd/user"))
		}
	}
	for _, dir := range dirs {
		// An enabled unit is a link among those that a target wants.
		if enabled, err := fs.Glob(h.Root, path.Join(dir, "*.wants", unit)); err == nil && len(enabled) > 0 {
			return nil
		}
	}
	return []UnmetRequirement{Warning(fmt.Sprintf("nodes will not come back when this host boots: %s is not enabled", unit), fix)}
}
