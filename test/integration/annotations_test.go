//go:build integration

package integration

import (
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/engine/docker/translate"
	"github.com/berthrun/berth/internal/network"
	"github.com/berthrun/berth/internal/ocispec/request"
	"github.com/berthrun/berth/test/harness"
)

// annotated returns a busybox container with annotations of berth.
func annotated(b *harness.Berth, annotations map[string]string) *runtimeapi.ContainerConfig {
	config := b.Container("c", "sleep 1000")
	config.Annotations = annotations
	return config
}

// privilegedPod returns attempt n of a pod that may have privileged containers.
func privilegedPod(b *harness.Berth, name string, n uint32) *runtimeapi.PodSandboxConfig {
	config := b.Sandbox(name)
	config.Metadata.Attempt = n
	config.Linux.SecurityContext.Privileged = true
	config.Linux.SecurityContext.Seccomp = nil
	return config
}

func wantCode(t *testing.T, what string, err error, code codes.Code, says string) {
	t.Helper()
	if status.Code(err) != code || !strings.Contains(err.Error(), says) {
		t.Errorf("%s: %v, want %s with %q", what, err, code, says)
	}
}

// TestAnnotationTmpfsAndVolumes: directories in memory, and directories on disk with the content of
// the image.
func TestAnnotationTmpfsAndVolumes(t *testing.T) {
	b := harness.Start(t, harness.Options{})
	b.Needs(t, translate.OwnRootfs)
	pod := b.Sandbox("annotated")
	sandbox := b.RunSandbox(pod)
	config := annotated(b, map[string]string{request.AnnotationTmpfs: "/tmp,/run/mem", request.AnnotationVolumes: "/etc/ssl,/bin/extra"})
	id := b.Create(sandbox, config, pod)
	b.StartContainer(id)
	for script, want := range map[string]string{
		"stat -f -c %T /tmp":                           "tmpfs",
		"stat -c %a /tmp":                              "1777",
		"grep ' /run/mem tmpfs ' /proc/mounts | wc -l": "1",
		"grep -c '^overlay / overlay ' /proc/mounts":   "1",
		"grep -c '^overlay /bin/extra ' /proc/mounts":  "0",
		"grep -c ' /bin/extra ' /proc/mounts":          "1",
		"touch /bin/extra/x && ls /bin/extra":          "x",
	} {
		if got := b.ExecOut(id, script+"; true"); got != want {
			t.Errorf("%s: %q, want %q", script, got, want)
		}
	}
	config = annotated(b, map[string]string{request.AnnotationTmpfs: "/proc/x"})
	config.Metadata.Name = "refused"
	_, err := b.Runtime.CreateContainer(b.Ctx(), &runtimeapi.CreateContainerRequest{PodSandboxId: sandbox, Config: config, SandboxConfig: pod})
	wantCode(t, "a file system in memory in /proc", err, codes.InvalidArgument, `config.annotations["run.berth.tmpfs"]`)
}

// TestAnnotationStorage: the next container finds what a container wrote, after a removal, a crash
// of the daemon, and a reboot.
func TestAnnotationStorage(t *testing.T) {
	b := harness.Start(t, harness.Options{BinDir: harness.Bootable(t)})
	b.Needs(t, translate.OwnRootfs)
	storage := filepath.Join(t.TempDir(), "node", "storage")
	annotations := map[string]string{request.AnnotationStorage: storage, request.AnnotationVolumes: "/var"}
	for run, between := range []func(sandbox, container string){
		func(sandbox, _ string) { b.RemovePod(sandbox) },
		func(sandbox, _ string) { b.KillDaemon(); b.StartDaemon(); b.RemovePod(sandbox) },
		// The record of a container that ran for a moment only may be gone by then. A container
		// whose record remains keeps the storage until it is removed.
		func(sandbox, _ string) { b.Reboot(); b.StartDaemon(); b.RemovePod(sandbox) },
		func(sandbox, _ string) { b.RemovePod(sandbox) },
	} {
		pod := b.Sandbox("kept")
		pod.Metadata.Attempt = uint32(run)
		sandbox := b.RunSandbox(pod)
		id := b.Create(sandbox, annotated(b, annotations), pod)
		b.StartContainer(id)
		b.ExecOut(id, "echo run >> /root.log; echo run >> /var/var.log; rm -f /etc/group")
		for _, file := range []string{"/root.log", "/var/var.log"} {
			if got := b.ExecOut(id, "wc -l < "+file); got != string(rune('1'+run)) {
				t.Errorf("run %d: %s has %s lines", run, file, got)
			}
		}
		if got := b.ExecOut(id, "ls /etc"); strings.Contains(got, "group") {
			t.Errorf("run %d: what was removed is there again: %q", run, got)
		}
		if run == 0 {
			second := annotated(b, annotations)
			second.Metadata.Name = "second"
			_, err := b.Runtime.CreateContainer(b.Ctx(), &runtimeapi.CreateContainerRequest{PodSandboxId: sandbox, Config: second, SandboxConfig: pod})
			wantCode(t, "a storage that is in use", err, codes.FailedPrecondition, "in use")
		}
		between(sandbox, id)
	}
	b.RemoveAllPods()
	if err := os.RemoveAll(storage); err != nil {
		t.Errorf("it cannot be removed: %v", err)
	}
}

// TestAnnotationAddresses: a privileged pod gets the address that it requests, also when it is
// recreated at once. No other pod may request it.
func TestAnnotationAddresses(t *testing.T) {
	b := harness.Start(t, harness.Options{Config: "[network]\nsubnets = ['10.66.0.0/24', 'fd66::/64']\n"})
	want := netip.MustParseAddr("10.66.0.200")
	for run := range uint32(3) {
		pod := privilegedPod(b, "fixed", run)
		pod.Annotations[network.AnnotationAddresses] = want.String()
		sandbox := b.RunSandbox(pod)
		if got := b.SandboxStatus(sandbox).Network; got.Ip != want.String() || len(got.AdditionalIps) != 1 {
			t.Errorf("run %d: %v", run, got)
		}
		other := privilegedPod(b, "other", run)
		other.Annotations[network.AnnotationAddresses] = want.String()
		_, err := b.Runtime.RunPodSandbox(b.Ctx(), &runtimeapi.RunPodSandboxRequest{Config: other})
		wantCode(t, "an address that another pod has", err, codes.AlreadyExists, "default/fixed")
		b.RemovePod(sandbox)
	}
	for name, c := range map[string]struct {
		change func(*runtimeapi.PodSandboxConfig)
		value  string
		says   string
	}{
		"a pod without privilege": {func(p *runtimeapi.PodSandboxConfig) { p.Linux.SecurityContext.Privileged = false }, "10.66.0.201", "privileged pods only"},
		"a pod in the host's network": {func(p *runtimeapi.PodSandboxConfig) {
			p.Hostname, p.Linux.SecurityContext.NamespaceOptions.Network = "", runtimeapi.NamespaceMode_NODE
		}, "10.66.0.201", "host's network"},
		"no address":           {nil, "web", `"web"`},
		"of another subnet":    {nil, "10.67.0.1", "10.66.0.0/24"},
		"the gateway":          {nil, "10.66.0.1", "not for a pod"},
		"two of a family":      {nil, "10.66.0.201,10.66.0.202", "second one"},
		"one for broadcasting": {nil, "10.66.0.255", "not for a pod"},
	} {
		pod := privilegedPod(b, "refused", 0)
		pod.Annotations[network.AnnotationAddresses] = c.value
		if c.change != nil {
			c.change(pod)
		}
		_, err := b.Runtime.RunPodSandbox(b.Ctx(), &runtimeapi.RunPodSandboxRequest{Config: pod})
		wantCode(t, name, err, codes.InvalidArgument, c.says)
	}
}
