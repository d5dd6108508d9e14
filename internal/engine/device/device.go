// Package device finds the device nodes that containers get.
package device

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/engine/cdi"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/ocispec"
	"github.com/berthrun/berth/internal/ocispec/request"
	"github.com/berthrun/berth/internal/probe"
	"github.com/berthrun/berth/internal/sys/sysfile"
)

// Rules select the devices that containers get beyond those that they name.
type Rules struct {
	// OwnedByUser gives the devices that a container names to its run_as_user and
	// run_as_group, where it has them, instead of the host's owner.
	OwnedByUser bool
	// PrivilegedWithoutHost denies privileged containers the host's devices;
	// PrivilegedAllAllowed still lets them use devices that they make themselves.
	PrivilegedWithoutHost, PrivilegedAllAllowed bool
	// CDIDirs hold CDI specs, the later before the earlier; none turns CDI off.
	CDIDirs []string
	// Added are devices that every container gets, unless it requests another one at
	// the same path.
	Added []*runtimeapi.Device
}

// Finder looks at device nodes of the host.
type Finder struct{ Probes *probe.Pool }

// InjectCDI adds the requested CDI devices to the container's spec.
func (f Finder) InjectCDI(ctx context.Context, rules *Rules, config *runtimeapi.ContainerConfig, spec *specs.Spec) error {
	names, err := request.CDIDevices(config)
	if err != nil || len(names) == 0 {
		return err
	}
	return f.InjectNames(ctx, rules, "config.CDI_devices", names, spec)
}

// InjectNames adds CDI devices to the container's spec. field says who requests them.
func (f Finder) InjectNames(ctx context.Context, rules *Rules, field string, names []string, spec *specs.Spec) error {
	dirs := rules.CDIDirs
	if len(dirs) == 0 {
		return fmt.Errorf("%s: %q: CDI is turned off, no directory of specs is configured: %w", field, names[0], errs.Unsupported)
	}
	devices, err := probe.Ask(ctx, f.Probes, "read the CDI specs in "+strings.Join(dirs, ", "), func() (*cdi.Devices, error) {
		return cdi.Read(dirs)
	})
	if err != nil {
		return err
	}
	return devices.Inject(spec, names)
}

// Of lists the nodes that a container gets: all of the host's when it is
// privileged, those of every container, and those that it requests.
func (f Finder) Of(ctx context.Context, rules *Rules, config *runtimeapi.ContainerConfig) ([]ocispec.Device, error) {
	var devices []ocispec.Device
	if request.Security(config).GetPrivileged() && !rules.PrivilegedWithoutHost {
		host, err := nodesBelow("/dev")
		if err != nil {
			return nil, err
		}
		devices = withPaths(host, "/dev", "rwm")
	}
	var own []ocispec.Device
	for i, d := range config.GetDevices() {
		found, err := f.nodesOf(ctx, d)
		if err != nil {
			return nil, fmt.Errorf("config.devices[%d].host_path: %w", i, err)
		}
		if rules.OwnedByUser {
			setOwner(found, config.GetLinux().GetSecurityContext())
		}
		own = append(own, found...)
	}
	for _, d := range rules.Added {
		found, err := f.nodesOf(ctx, d)
		if err != nil {
			return nil, fmt.Errorf("a device that the configuration gives to every container: %w", err)
		}
		devices = append(devices, slices.DeleteFunc(found, func(node ocispec.Device) bool {
			same := func(other ocispec.Device) bool { return other.Path == node.Path }
			return slices.ContainsFunc(own, same) || slices.ContainsFunc(devices, same)
		})...)
	}
	return append(devices, own...), nil
}

// nodesOf are the nodes that d means, as a container gets them.
func (f Finder) nodesOf(ctx context.Context, d *runtimeapi.Device) ([]ocispec.Device, error) {
	nodes, err := probe.Ask(ctx, f.Probes, "look at the device "+d.GetHostPath(), func() ([]ocispec.Device, error) {
		return nodesAt(d.GetHostPath())
	})
	return withPaths(nodes, request.DevicePath(d), d.GetPermissions()), err
}

// setOwner gives devices to the user and the group that the request names.
func setOwner(devices []ocispec.Device, security *runtimeapi.LinuxContainerSecurityContext) {
	for i := range devices {
		if uid := security.GetRunAsUser(); uid != nil {
			devices[i].UID = uint32(uid.GetValue()) // in range: see check.Container
		}
		if gid := security.GetRunAsGroup(); gid != nil {
			devices[i].GID = uint32(gid.GetValue())
		}
	}
}

// withPaths returns copies of nodes with their paths in the container. It copies them, since
// probe.Ask may have returned the same nodes to other callers.
func withPaths(nodes []ocispec.Device, to, access string) []ocispec.Device {
	devices := slices.Clone(nodes)
	for i := range devices {
		devices[i].Path, devices[i].Access = filepath.Join(to, devices[i].Path), access
	}
	return devices
}

// nodesAt returns the node at from, or all nodes below it when it is a directory. Their
// paths are relative to it.
func nodesAt(from string) ([]ocispec.Device, error) {
	resolved, err := filepath.EvalSymlinks(from)
	if err != nil {
		return nil, fmt.Errorf("cannot use the device %s: %w: %w", from, err, errs.Invalid)
	}
	info, err := os.Stat(resolved)
	if err != nil {
		return nil, fmt.Errorf("cannot use the device %s: %w: %w", from, err, errs.Invalid)
	}
	if info.IsDir() {
		return nodesBelow(resolved)
	}
	device, ok, err := nodeAt(resolved, "")
	if err == nil && !ok {
		err = fmt.Errorf("%s is not a device node: %w", from, errs.Invalid)
	}
	return []ocispec.Device{device}, err
}

// nodesBelow leaves out the nodes that each container has itself: terminals, shared memory,
// message queues, the console.
func nodesBelow(from string) ([]ocispec.Device, error) {
	var devices []ocispec.Device
	err := filepath.WalkDir(from, func(path string, entry fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil // gone since it was listed
		}
		if errors.Is(err, fs.ErrPermission) {
			return fmt.Errorf("%w: %w", err, errs.Invalid) // not even root may look there
		}
		if err != nil {
			return err
		}
		if entry.IsDir() {
			switch entry.Name() {
			case "pts", "shm", "fd", "mqueue", ".lxc", ".lxd-mounts", ".udev":
				return fs.SkipDir
			}
			return nil
		}
		if entry.Type()&fs.ModeDevice == 0 || path == "/dev/console" {
			return nil
		}
		device, ok, err := nodeAt(path, strings.TrimPrefix(path, from))
		if ok {
			devices = append(devices, device)
		}
		return errs.IgnoreNotExist(err)
	})
	if err != nil {
		return nil, fmt.Errorf("cannot list the devices below %s: %w", from, err)
	}
	return devices, nil
}

func nodeAt(from, to string) (ocispec.Device, bool, error) {
	node, ok, err := sysfile.StatDevice(from)
	if err != nil || !ok {
		return ocispec.Device{}, false, err
	}
	kind := "c"
	if node.Block {
		kind = "b"
	}
	return ocispec.Device{
		Path: to, Source: from, Type: kind, Major: int64(node.Major), Minor: int64(node.Minor),
		Mode: node.Mode, UID: node.UID, GID: node.GID,
	}, true, nil
}
