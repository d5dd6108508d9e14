//go:build integration && e2e

package integration

import (
	"bytes"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/image/imagetest"
	"github.com/berthrun/berth/internal/require"
	"github.com/berthrun/berth/internal/sys/sysmount"
	"github.com/berthrun/berth/test/harness"
)

// checkpointed writes the archive of a container that counts, on a berth of its own, which is gone afterwards.
func checkpointed(t *testing.T, config string) (location string, last int) {
	t.Helper()
	location = filepath.Join(t.TempDir(), "archive.tar")
	t.Run("write", func(t *testing.T) {
		b := newFields(t, harness.Options{Config: config}, nil).Berth
		b.NeedsPart(t, harness.Supervisors)
		pod := runHandler(b, "", counting)
		defer b.RemovePod(pod.Sandbox)
		b.Await("some numbers", func() bool { return count(t, pod.LogFile) > 3 })
		if _, err := b.Runtime.CheckpointContainer(b.Ctx(), &runtimeapi.CheckpointContainerRequest{ContainerId: pod.Container, Location: location, Timeout: 60}); err != nil {
			t.Fatal(err)
		}
		changes := unpackTar(t, filepath.Join(unpackTar(t, location), "rootfs-diff.tar"))
		last = lastCount(t, changes)
	})
	if t.Failed() {
		t.FailNow()
	}
	return location, last
}

// hidden are the paths that a kubelet hides and protects.
func hidden(config *runtimeapi.ContainerConfig) *runtimeapi.ContainerConfig {
	if config.Linux == nil {
		config.Linux = &runtimeapi.LinuxContainerConfig{}
	}
	if config.Linux.SecurityContext == nil {
		config.Linux.SecurityContext = &runtimeapi.LinuxContainerSecurityContext{}
	}
	config.Linux.SecurityContext.MaskedPaths = []string{"/proc/acpi", "/proc/kcore", "/proc/keys", "/sys/firmware"}
	config.Linux.SecurityContext.ReadonlyPaths = []string{"/proc/bus", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"}
	return config
}

// TestRestore: a container that was written on one berth goes on counting on another, in a pod of berth itself and in one
// of runc, from a file and from an image. Its output is in the log of the new container.
func TestRestore(t *testing.T) {
	criu, runc := require.CRIU(t), require.Binary(t, "runc")
	config := fmt.Sprintf("[checkpoint]\nenabled = true\ncriu = %q\nruntime = %q\n[handlers.runc]\nkind = \"oci\"\npath = %q\n", criu, runc, runc)
	location, last := checkpointed(t, config)
	f := newFields(t, harness.Options{Config: config}, nil)
	b := f.Berth
	b.NeedsPart(t, harness.Supervisors)
	image := importCheckpoint(t, b, location)
	for _, handler := range []string{"", "runc"} {
		for _, from := range []string{location, image} {
			t.Run(handler+" "+filepath.Base(from), func(t *testing.T) {
				sandbox := b.Sandbox("restored")
				answer, err := b.Runtime.RunPodSandbox(b.Ctx(), &runtimeapi.RunPodSandboxRequest{Config: sandbox, RuntimeHandler: handler})
				if err != nil {
					t.Fatal(err)
				}
				defer b.RemovePod(answer.PodSandboxId)
				log := filepath.Join(sandbox.LogDirectory, "c", "0.log")
				defer os.Remove(log)
				request := hidden(b.Container("c", "exit 99"))
				request.Image = &runtimeapi.ImageSpec{Image: from}
				id := b.Create(answer.PodSandboxId, request, sandbox)
				if lines, err := harness.LogLines(log); err != nil || len(lines) != 0 {
					t.Fatalf("before the start the log has %q, %v", lines, err)
				}
				switch {
				case from != location:
				case handler == "":
					b.KillDaemon()
					b.StartDaemon()
				default:
					killSupervisor(b)
				}
				b.StartContainer(id)
				b.Await("the count goes on", func() bool { lines, _ := harness.LogLines(log); return len(lines) > 3 })
				lines, err := harness.LogLines(log)
				if err != nil {
					t.Fatal(err)
				}
				// The last number may be in the file and not yet in the log when the processes are stopped.
				if next, err := strconv.Atoi(lines[0]); err != nil || next < last || next > last+1 {
					t.Errorf("it goes on with %q after %d", lines[0], last)
				}
				executed, err := b.Runtime.ExecSync(b.Ctx(), &runtimeapi.ExecSyncRequest{ContainerId: id, Cmd: []string{"sh", "-c", "cat /new; ls /bin/true || exit 7"}})
				if err != nil || executed.ExitCode != 7 || string(executed.Stdout) != "new\n" {
					t.Errorf("exec: %v, %v", executed, err)
				}
				if _, err := b.Runtime.StopContainer(b.Ctx(), &runtimeapi.StopContainerRequest{ContainerId: id, Timeout: 0}); err != nil {
					t.Fatal(err)
				}
				status, err := b.Runtime.ContainerStatus(b.Ctx(), &runtimeapi.ContainerStatusRequest{ContainerId: id})
				if err != nil || status.Status.State != runtimeapi.ContainerState_CONTAINER_EXITED || status.Status.ExitCode != 137 {
					t.Errorf("after the stop: %v, %v", status, err)
				}
			})
		}
	}
	t.Run("what the request does not give", func(t *testing.T) { restoreLess(t, b, location) })
	t.Run("confined", func(t *testing.T) { restoreConfined(t, b) })
	t.Run("hostile archives", func(t *testing.T) { restoreHostile(t, b, location) })
	t.Run("archives that ask for more", func(t *testing.T) { restoreAsking(t, b, location) })
	t.Run("what the host does not give", func(t *testing.T) { restoreOnHost(t, b, location) })
	t.Run("killed", func(t *testing.T) { killRestores(t, f, config, criu, location) })
	t.Run("without runc", func(t *testing.T) { restoreWithoutRunc(t, f, config, location) })
}

// importCheckpoint imports an image of one layer, which is the archive, and returns its name.
func importCheckpoint(t *testing.T, b *harness.Berth, location string) string {
	t.Helper()
	const name = "docker.io/library/checkpoint:1"
	dir := unpackTar(t, location)
	spec := imagetest.Spec{Name: name, Annotations: map[string]string{"io.kubernetes.cri-o.annotations.checkpoint.name": "c"}}
	if err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && entry.Type().IsRegular() {
			spec.Files = append(spec.Files, imagetest.File{Path: strings.TrimPrefix(path, dir+"/"), Source: path, Mode: 0o600})
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	var archive bytes.Buffer
	if err := imagetest.OCIArchive(&archive, spec); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Import(&archive); err != nil {
		t.Fatal(err)
	}
	return name
}

// restoreLess: a request that gives less than the processes have is refused with the entry, and leaves nothing.
func restoreLess(t *testing.T, b *harness.Berth, location string) {
	pod := b.RunPod("less", "sleep 1000")
	defer b.RemovePod(pod.Sandbox)
	before := b.StillGround()
	config := hidden(b.Container("less", "exit 99"))
	config.Image = &runtimeapi.ImageSpec{Image: location}
	config.Linux.SecurityContext.RunAsUser = &runtimeapi.Int64Value{Value: 1000}
	_, err := b.Runtime.CreateContainer(b.Ctx(), &runtimeapi.CreateContainerRequest{PodSandboxId: pod.Sandbox, Config: config, SandboxConfig: pod.Config})
	checkRefusal(t, err, codes.InvalidArgument, []string{"checkpoint/", "the request"})
	if differences := b.AwaitGround(before, 30*time.Second); differences != "" {
		t.Error(differences)
	}
}

// confined are a filter, a limit, no capabilities, and no new privileges.
func confined(config *runtimeapi.ContainerConfig) *runtimeapi.ContainerConfig {
	config = hidden(config)
	security := config.Linux.SecurityContext
	security.Capabilities, security.NoNewPrivs = &runtimeapi.Capability{DropCapabilities: []string{"ALL"}}, true
	security.Seccomp = &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_RuntimeDefault}
	config.Linux.Resources = &runtimeapi.LinuxContainerResources{MemoryLimitInBytes: 128 << 20}
	return config
}

// restoreConfined: processes are restored with the filter and the limits of the request, also where the
// container had no filter.
func restoreConfined(t *testing.T, b *harness.Berth) {
	const script = "sleep 1000 & i=0; while :; do i=$((i+1)); echo $i; sleep 0.05; done"
	for _, filtered := range []bool{true, false} {
		sandbox, location := b.Sandbox("confined"), filepath.Join(t.TempDir(), "archive.tar")
		pod, log := b.RunSandbox(sandbox), filepath.Join(sandbox.LogDirectory, "c", "0.log")
		config := confined(b.Container("c", script))
		if !filtered {
			config.Linux.SecurityContext.Seccomp = nil
		}
		id := b.Create(pod, config, sandbox)
		b.StartContainer(id)
		b.Await("some numbers", func() bool { lines, _ := harness.LogLines(log); return len(lines) > 3 })
		if _, err := b.Runtime.CheckpointContainer(b.Ctx(), &runtimeapi.CheckpointContainerRequest{ContainerId: id, Location: location, Timeout: 60}); err != nil {
			t.Fatal(err)
		}
		b.RemovePod(pod)
		if err := os.Remove(log); err != nil {
			t.Fatal(err)
		}
		pod = b.RunSandbox(sandbox)
		config = confined(b.Container("c", "exit 99"))
		config.Image = &runtimeapi.ImageSpec{Image: location}
		id = b.Create(pod, config, sandbox)
		b.StartContainer(id)
		b.Await("the count goes on", func() bool { lines, _ := harness.LogLines(log); return len(lines) > 3 })
		if n := count(t, log); n < 4 {
			t.Errorf("it counts from the beginning: %d", n)
		}
		status := strings.Fields(b.ExecOut(id, "grep -hE 'Seccomp:|NoNewPrivs|Cap(Eff|Bnd)' /proc/1/status"))
		if got := strings.Join(status, " "); got != "CapEff: 0000000000000000 CapBnd: 0000000000000000 NoNewPrivs: 1 Seccomp: 2" {
			t.Errorf("filtered before: %v; the init has %s", filtered, got)
		}
		b.RemovePod(pod)
		if err := os.Remove(log); err != nil {
			t.Error(err)
		}
	}
}

// killRestores: what a daemon or a supervisor that is killed while CRIU works has made is gone after the next start.
func killRestores(t *testing.T, f *fields, config, criu, location string) {
	b, dir := f.Berth, t.TempDir()
	began, waits := filepath.Join(dir, "began"), filepath.Join(dir, "criu")
	// CRIU mounts cgroups where it works. So does this one, and what it mounts ends with it.
	script := fmt.Sprintf("#!/bin/sh\n[ \"$1\" != swrk ] || { mkdir %[1]s.mount; mount -t tmpfs berth-test %[1]s.mount; touch %[1]s; sleep 600; }\nexec %[2]s \"$@\"\n", began, criu)
	if err := os.WriteFile(waits, []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	f.reload(t, strings.Replace(config, "criu = ", fmt.Sprintf("criu = %q # ", waits), 1), "checkpoint")
	sandbox := b.Sandbox("killed") // without another container, for which the next supervisor makes files
	pod := b.RunSandbox(sandbox)
	defer b.RemovePod(pod)
	request := hidden(b.Container("killed", "exit 99"))
	request.Image = &runtimeapi.ImageSpec{Image: location}
	for name, kill := range map[string]func(){"daemon": func() { b.KillDaemon(); b.StartDaemon() }, "supervisor": func() { killSupervisor(b) }} {
		t.Run(name, func(t *testing.T) {
			for _, path := range []string{began, began + ".mount"} {
				if err := os.RemoveAll(path); err != nil {
					t.Fatal(err)
				}
			}
			b.StillGround()
			before, done := groundOfKilled(b), make(chan error, 1)
			go func() {
				_, err := b.Runtime.CreateContainer(b.Ctx(), &runtimeapi.CreateContainerRequest{PodSandboxId: pod, Config: request, SandboxConfig: sandbox})
				done <- err
			}()
			b.Await("CRIU", func() bool { _, err := os.Stat(began); return err == nil || len(done) > 0 })
			ground := b.Ground()
			maps.DeleteFunc(ground, func(what string, _ int) bool {
				return !strings.HasPrefix(what, "mount ") || !strings.Contains(what, "criu-root")
			})
			if mounted, err := sysmount.IsMountPoint(began + ".mount"); len(ground) > 0 || err != nil || mounted {
				t.Errorf("the host has mounts of a restore: %v, %v, %v", ground, mounted, err)
			}
			kill()
			if err := <-done; err == nil {
				t.Error("the container was created")
			}
			differences := ""
			defer func() {
				if differences != "" {
					t.Error(differences)
				}
			}()
			b.Await("the ground as it was", func() bool { differences = before.Differences(groundOfKilled(b)); return differences == "" })
		})
	}
}

// groundOfKilled is the ground without the descriptors of the supervisor: the next one opens some of them later.
func groundOfKilled(b *harness.Berth) harness.Ground {
	ground := b.Ground()
	maps.DeleteFunc(ground, func(what string, _ int) bool { return strings.HasPrefix(what, "descriptor of the supervisor ") })
	return ground
}

// restoreWithoutRunc: a runtime for restores that is missing, or is not runc, is named with its key.
func restoreWithoutRunc(t *testing.T, f *fields, config, location string) {
	other := filepath.Join(t.TempDir(), "crun")
	if err := os.WriteFile(other, []byte("#!/bin/sh\necho crun version 1.14\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	pod := f.RunPod("without", "sleep 1000")
	defer f.RemovePod(pod.Sandbox)
	request := hidden(f.Container("without", "exit 99"))
	request.Image = &runtimeapi.ImageSpec{Image: location}
	for path, words := range map[string][]string{"/no/such/runc": {"checkpoint.runtime", "/no/such/runc"}, other: {"checkpoint.runtime", "only runc restores checkpoints", "crun version"}} {
		f.reload(t, strings.Replace(config, "runtime = ", fmt.Sprintf("runtime = %q # ", path), 1), "checkpoint")
		_, err := f.Runtime.CreateContainer(f.Ctx(), &runtimeapi.CreateContainerRequest{PodSandboxId: pod.Sandbox, Config: request, SandboxConfig: pod.Config})
		checkRefusal(t, err, codes.Unimplemented, append(words, "restore the checkpoint"))
	}
}
