//go:build integration

package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/berthrun/berth/internal/engine/docker/translate"
	"github.com/berthrun/berth/test/harness"
	"google.golang.org/grpc/codes"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// cdiSpec describes a device under two names, with everything else that CDI can add.
const cdiSpec = `{"cdiVersion": "0.6.0", "kind": "berth.test/toy", "containerEdits": {"env": ["TOYS=yes"]}, "devices": [
 {"name": "one", "containerEdits": {"deviceNodes": [{"path": "/dev/toy-one", "hostPath": "/dev/zero"}],
  "mounts": [{"hostPath": "%[1]s", "containerPath": "/toys", "options": ["bind", "ro"]}]}},
 {"name": "two", "containerEdits": {"deviceNodes": [{"path": "/dev/toy-two", "hostPath": "/dev/null", "permissions": "r"}]}}]}`

func devices(list ...*runtimeapi.Device) func(containerConfig) {
	return func(c containerConfig) { c.Devices = list }
}

// TestFieldsOfDevices: what a container can do with its devices.
func TestFieldsOfDevices(t *testing.T) {
	specs := t.TempDir()
	f := newFields(t, harness.Options{Config: fmt.Sprintf("[runtime]\ncdi_spec_dirs = [%q]\n", specs), CDIDirs: []string{specs}}, nil)
	f.try(t, "devices{host,container,permissions}", func(t *testing.T) {
		const zero = "head -c 3 /dev/inner | wc -c; echo x 2>/dev/null >/dev/inner && echo written || echo refused"
		want(t, "rw", f.says(t, zero, devices(&runtimeapi.Device{HostPath: "/dev/zero", ContainerPath: "/dev/inner", Permissions: "rw"})), "3 written")
		// Not a memory device: every container may use those.
		const open = "true 2>/dev/null </dev/inner && echo read || echo refused; true 2>/dev/null >/dev/inner && echo written || echo refused"
		want(t, "r", f.says(t, open, devices(&runtimeapi.Device{HostPath: "/dev/fuse", ContainerPath: "/dev/inner", Permissions: "r"})), "read refused")
		want(t, "w", f.says(t, open, devices(&runtimeapi.Device{HostPath: "/dev/fuse", ContainerPath: "/dev/inner", Permissions: "w"})), "refused written")
		want(t, "none", f.says(t, "ls /dev/inner 2>/dev/null || echo none", nil), "none")
	})
	f.try(t, "devices: a directory is all nodes below", func(t *testing.T) {
		dir := filepath.Dir(f.node(t, "many/deep/full", 7))
		f.node(t, "many/zero", 5)
		got := f.says(t, "cd /dev/many; find . -type c | sort", devices(&runtimeapi.Device{HostPath: filepath.Dir(dir), ContainerPath: "/dev/many", Permissions: "rwm"}))
		want(t, "nodes", got, "./deep/full ./zero")
	})
	f.try(t, "CDI_devices", func(t *testing.T) {
		toy := func(c containerConfig) { c.CDIDevices = []*runtimeapi.CDIDevice{{Name: "berth.test/toy=one"}} }
		if engineRefuses(t, f.Berth, translate.CDIDevices, ofContainer(toy), "CDI_devices") {
			return
		}
		spec := filepath.Join(specs, "toy.json")
		if err := os.WriteFile(spec, []byte(fmt.Sprintf(cdiSpec, f.Logs)), 0o600); err != nil {
			t.Fatal(err)
		}
		const look = "echo $TOYS; head -c 2 /dev/toy-one | wc -c; cat /dev/toy-two | wc -c; grep -c ' /toys ' /proc/mounts"
		want(t, "by the field and by an annotation", f.says(t, look, func(c containerConfig) {
			c.CDIDevices = []*runtimeapi.CDIDevice{{Name: "berth.test/toy=one"}}
			c.Annotations = map[string]string{"cdi.k8s.io/plugin_1": "berth.test/toy=two,berth.test/toy=one"}
		}), "yes 2 0 1")
		// A driver may remove its devices at any time.
		if err := os.Remove(spec); err != nil {
			t.Fatal(err)
		}
		config := f.Container("gone", "exit 0")
		toy(config)
		if !f.Has(harness.EarlyFaults) {
			_, err := f.Runtime.StartContainer(f.Ctx(), &runtimeapi.StartContainerRequest{ContainerId: f.Create(f.sandbox, config, f.config)})
			checkRefusal(t, err, codes.InvalidArgument, []string{"berth.test/toy=one"})
			return
		}
		_, err := f.Runtime.CreateContainer(f.Ctx(), &runtimeapi.CreateContainerRequest{PodSandboxId: f.sandbox, Config: config, SandboxConfig: f.config})
		checkRefusal(t, err, codes.InvalidArgument, []string{"CDI_devices", "berth.test/toy=one"})
	})
	f.try(t, "sc.privileged", func(t *testing.T) {
		privileged := f.privilegedPod()
		got := f.says(t, "test -c /dev/kmsg && echo kmsg; mknod /tmp/n c 1 5 && head -c 1 /tmp/n | wc -c; grep -c ' /sys sysfs rw' /proc/mounts; grep Seccomp: /proc/self/status", privileged)
		want(t, "devices of the host, any device, writable /sys, no filter", got, "kmsg 1 1 Seccomp:\t0")
	})
}

// TestFieldsOfDevicesByConfiguration: what an operator may change about devices.
func TestFieldsOfDevicesByConfiguration(t *testing.T) {
	const withoutDevices = "[runtime]\ndevice_ownership_from_security_context = true\nprivileged_without_host_devices = true\ncdi_spec_dirs = []\n"
	f := newFields(t, harness.Options{Config: withoutDevices}, nil)
	f.try(t, "devices: ownership from the security context", func(t *testing.T) {
		got := f.says(t, "stat -c '%u %g' /dev/inner", func(c containerConfig) {
			devices(&runtimeapi.Device{HostPath: f.node(t, "owned", 5), ContainerPath: "/dev/inner", Permissions: "rw"})(c)
			containerSecurity(c).RunAsUser, containerSecurity(c).RunAsGroup = user(1000), user(2000)
		})
		want(t, "owner", got, "1000 2000")
	})
	f.try(t, "privileged_without_host_devices", func(t *testing.T) {
		if engineRefuses(t, f.Berth, translate.PrivilegedNoDevices, func(p *runtimeapi.PodSandboxConfig, c *runtimeapi.ContainerConfig) {
			p.Linux.SecurityContext.Privileged, containerSecurity(c).Privileged = true, true
		}, "security_context.privileged") {
			return
		}
		privileged := f.privilegedPod()
		got := f.says(t, "test -c /dev/kmsg && echo kmsg; mknod /tmp/n c 1 11 && head -c 1 /tmp/n 2>/dev/null >/dev/null && echo read || echo refused", privileged)
		want(t, "the host's devices", got, "refused")
	})
	f.try(t, "privileged_without_host_devices_all_devices_allowed", func(t *testing.T) {
		f.Needs(t, translate.PrivilegedNoDevices)
		f.reload(t, "[runtime]\nprivileged_without_host_devices = true\nprivileged_without_host_devices_all_devices_allowed = true\n",
			"runtime.privileged_without_host_devices_all_devices_allowed")
		// Not a memory device: every container may use those.
		const try = "ls /dev/fuse /dev/kmsg 2>/dev/null; mknod /tmp/n c 10 229 && true 2>/dev/null </tmp/n && echo opened || echo refused"
		want(t, "a node that the container makes", f.says(t, try, f.privilegedPod()), "opened")
		f.pod(nil)
		want(t, "one that is not privileged", f.says(t, try, func(c containerConfig) {
			containerSecurity(c).Capabilities = &runtimeapi.Capability{AddCapabilities: []string{"ALL"}}
		}), "refused")
		f.reload(t, withoutDevices)
		want(t, "without it", f.says(t, try, f.privilegedPod()), "refused")
	})
	f.try(t, "CDI_devices without directories", func(t *testing.T) {
		f.NeedsPart(t, harness.OwnCDI)
		config := f.Container("cdi", "exit 0")
		config.CDIDevices = []*runtimeapi.CDIDevice{{Name: "berth.test/toy=one"}}
		_, err := f.Runtime.CreateContainer(f.Ctx(), &runtimeapi.CreateContainerRequest{PodSandboxId: f.sandbox, Config: config, SandboxConfig: f.config})
		checkRefusal(t, err, codes.Unimplemented, []string{"CDI_devices", "turned off"})
	})
}

// node creates a memory device (5 zero, 7 full) in the instance's directory, and returns its path.
func (f *fields) node(t *testing.T, name string, minor int) string {
	t.Helper()
	path := filepath.Join(f.Dir, "nodes", name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	const memory = 1
	if err := syscall.Mknod(path, syscall.S_IFCHR|0o666, memory<<8|minor); err != nil {
		t.Fatal(err)
	}
	return path
}

// privilegedPod makes the next containers belong to a privileged pod.
func (f *fields) privilegedPod() (privileged func(containerConfig)) {
	f.pod(func(c *runtimeapi.PodSandboxConfig) { c.Linux.SecurityContext.Privileged = true })
	return func(c containerConfig) {
		containerSecurity(c).Privileged = true
		containerSecurity(c).Seccomp = &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_RuntimeDefault}
	}
}
