package ociruntime

import (
	"sync"
	"testing"

	"github.com/opencontainers/runc/libcontainer/specconv"
	"github.com/opencontainers/runtime-spec/specs-go"
)

// TestDevicesAfterAUserNamespace: root of a user namespace owns the devices of its own container, and of no
// other one.
func TestDevicesAfterAUserNamespace(t *testing.T) {
	spec := func(mapped bool) *specs.Spec {
		s := &specs.Spec{
			Version: specs.Version, Root: &specs.Root{Path: t.TempDir()}, Process: &specs.Process{Args: []string{"/x"}, Cwd: "/"},
			Linux: &specs.Linux{CgroupsPath: "/test/c", Namespaces: []specs.LinuxNamespace{{Type: specs.MountNamespace}}},
		}
		if mapped {
			ids := []specs.LinuxIDMapping{{HostID: 100000, Size: 65536}}
			s.Linux.UIDMappings, s.Linux.GIDMappings = ids, ids
			s.Linux.Namespaces = append(s.Linux.Namespaces, specs.LinuxNamespace{Type: specs.UserNamespace})
		}
		return s
	}
	l := &libcontainerStarter{}
	var all sync.WaitGroup
	for i := range 20 {
		mapped := i%2 == 0
		owner := uint32(0)
		if mapped {
			owner = 100000
		}
		all.Go(func() {
			config, err := l.configOf(&specconv.CreateOpts{CgroupName: "c", Spec: spec(mapped)})
			if err != nil {
				t.Error(err)
				return
			}
			if len(config.Devices) == 0 {
				t.Error("no devices")
			}
			for _, device := range config.Devices {
				if device.Uid != owner || device.Gid != owner {
					t.Errorf("user namespace %v: %s belongs to %d:%d", mapped, device.Path, device.Uid, device.Gid)
				}
			}
		})
	}
	all.Wait()
}
