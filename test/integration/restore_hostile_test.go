//go:build integration && e2e

package integration

import (
	"archive/tar"
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	criucore "github.com/checkpoint-restore/go-criu/v8/crit/images/criu-core"

	"github.com/berthrun/berth/test/harness"
)

// hostile is an archive that someone has changed.
type hostile struct {
	// edit changes the files of the archive, and added are entries after them.
	edit  func(t *testing.T, dir string)
	added []tar.Header
	// end is where the archive is cut, 0 for not at all.
	end   int64
	code  codes.Code
	words []string
}

// pack writes the files of a directory, and entries without content, into an archive.
func (h *hostile) pack(t *testing.T, whole string) string {
	t.Helper()
	dir := unpackTar(t, whole)
	if h.edit != nil {
		h.edit(t, dir)
	}
	path := filepath.Join(t.TempDir(), "archive.tar")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	w := tar.NewWriter(f)
	if err := w.AddFS(os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
	for _, header := range h.added {
		if err := w.WriteHeader(&header); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if h.end > 0 {
		if err := f.Truncate(h.end); err != nil {
			t.Fatal(err)
		}
	}
	return path
}

// replaced returns an edit that replaces bytes of the files that a pattern names.
func replaced(pattern, old, with string) func(t *testing.T, dir string) {
	return func(t *testing.T, dir string) {
		t.Helper()
		editFiles(t, dir, pattern, func(data []byte) []byte {
			if !bytes.Contains(data, []byte(old)) {
				t.Fatalf("%s has no %q", pattern, old)
			}
			return bytes.ReplaceAll(data, []byte(old), []byte(with))
		})
	}
}

func written(name, content string) func(t *testing.T, dir string) {
	return func(t *testing.T, dir string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

func editFiles(t *testing.T, dir, pattern string, edit func(data []byte) []byte) {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(dir, pattern))
	if err != nil || len(names) == 0 {
		t.Fatalf("%s: %v, %v", pattern, names, err)
	}
	for _, name := range names {
		data, err := os.ReadFile(name)
		if err == nil {
			err = os.WriteFile(name, edit(data), 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// editInit changes the image of the init.
func editInit(change func(core *criucore.CoreEntry)) func(t *testing.T, dir string) {
	return func(t *testing.T, dir string) {
		t.Helper()
		editFiles(t, dir, "checkpoint/core-1.img", func(data []byte) []byte {
			const header = 12 // two magic numbers and the length
			core := &criucore.CoreEntry{}
			if err := proto.Unmarshal(data[header:], core); err != nil {
				t.Fatal(err)
			}
			change(core)
			message, err := proto.Marshal(core)
			if err != nil {
				t.Fatal(err)
			}
			return append(binary.LittleEndian.AppendUint32(data[:8:8], uint32(len(message))), message...)
		})
	}
}

func changesWith(t *testing.T, header *tar.Header) string {
	t.Helper()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	if err := w.WriteHeader(header); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

// hostileArchives are those that are refused, by what is wrong with them.
func hostileArchives(t *testing.T) map[string]hostile {
	other := criucore.CoreEntry_AARCH64
	if runtime.GOARCH == "arm64" {
		other = criucore.CoreEntry_X86_64
	}
	const unknown = "sha256:0123456789012345678901234567890123456789012345678901234567890123"
	return map[string]hostile{
		// containerd CVE-2026-53489: the log of an archive was a link to a file of the host.
		"a log that is a link":         {added: []tar.Header{{Typeflag: tar.TypeSymlink, Name: "io.kubernetes.cri-o.LogPath", Linkname: "/etc/shadow"}}, code: codes.InvalidArgument, words: []string{"io.kubernetes.cri-o.LogPath", "neither a directory nor a regular file"}},
		"an image that is a link":      {added: []tar.Header{{Typeflag: tar.TypeSymlink, Name: "checkpoint/x.img", Linkname: "/etc/shadow"}}, code: codes.InvalidArgument, words: []string{"checkpoint/x.img"}},
		"another name of a file":       {added: []tar.Header{{Typeflag: tar.TypeLink, Name: "checkpoint/x.img", Linkname: "/etc/shadow"}}, code: codes.InvalidArgument, words: []string{"checkpoint/x.img"}},
		"a device":                     {added: []tar.Header{{Typeflag: tar.TypeBlock, Name: "checkpoint/x.img", Devmajor: 8}}, code: codes.InvalidArgument, words: []string{"checkpoint/x.img"}},
		"a name that leads out":        {added: []tar.Header{{Typeflag: tar.TypeReg, Name: "../../x"}}, code: codes.InvalidArgument, words: []string{"leads out"}},
		"an absolute name":             {added: []tar.Header{{Typeflag: tar.TypeReg, Name: "/etc/berth-test-hostile"}}, code: codes.InvalidArgument, words: []string{"leads out"}},
		"a file that is there twice":   {added: []tar.Header{{Typeflag: tar.TypeReg, Name: "checkpoint/core-1.img"}}, code: codes.InvalidArgument, words: []string{"checkpoint/core-1.img", "twice"}},
		"a part of an archive":         {end: 20000, code: codes.InvalidArgument, words: []string{"archive"}},
		"a program of another machine": {edit: editInit(func(c *criucore.CoreEntry) { c.Mtype, c.ThreadInfo = other.Enum(), nil }), code: codes.Unimplemented, words: []string{"checkpoint/core-1.img", "architecture " + other.String()}},
		"a file that is not an image":  {edit: written("checkpoint/core-1.img", "nonsense"), code: codes.InvalidArgument, words: []string{"checkpoint/core-1.img", "not an image"}},
		"an image of no process":       {edit: written("checkpoint/core-4711.img", "nonsense"), code: codes.InvalidArgument, words: []string{"checkpoint/core-4711.img", "belongs to no process"}},
		// CRI-O CVE-2024-8676: mounts of an archive were made.
		"a mount of the host": {edit: replaced("checkpoint/mountpoints-*.img", "/etc/hostname", "/host-of-node"), code: codes.InvalidArgument, words: []string{"/host-of-node", "the request does not have it"}},
		"capabilities": {edit: editInit(func(c *criucore.CoreEntry) {
			c.ThreadCore.Creds.CapEff[0] |= 1 << unix.CAP_SYS_ADMIN
		}), code: codes.InvalidArgument, words: []string{"checkpoint/core-1.img", "effective capabilities 0x200000"}},
		"a device in the root filesystem": {edit: func(t *testing.T, dir string) {
			written("rootfs-diff.tar", changesWith(t, &tar.Header{Typeflag: tar.TypeBlock, Name: "sda", Devmajor: 8}))(t, dir)
		}, code: codes.InvalidArgument, words: []string{"rootfs-diff.tar", "sda", "device"}},
		"a change outside of the root filesystem": {edit: func(t *testing.T, dir string) {
			written("rootfs-diff.tar", changesWith(t, &tar.Header{Typeflag: tar.TypeReg, Name: "../../x"}))(t, dir)
		}, code: codes.InvalidArgument, words: []string{"rootfs-diff.tar", "leads out"}},
		"a deletion outside of the root filesystem": {edit: written("deleted.files", `["/../../etc/hostname"]`), code: codes.InvalidArgument, words: []string{"deleted.files"}},
		"no description": {edit: written("config.dump", ""), code: codes.InvalidArgument, words: []string{"config.dump"}},
		// containerd CVE-2026-50195: an archive chose what a tag is.
		"a base image by a tag":    {edit: written("config.dump", `{"rootfsImage":"busybox:test","rootfsImageRef":"busybox:test"}`), code: codes.InvalidArgument, words: []string{"config.dump", "no base image by a digest"}},
		"a base image that is not": {edit: written("config.dump", `{"rootfsImageRef":"`+unknown+`"}`), code: codes.NotFound, words: []string{unknown, "not on this node"}},
	}
}

// restoreHostile: each archive is refused with the entry that is bad, and nothing of it is left.
func restoreHostile(t *testing.T, b *harness.Berth, location string) {
	pod := b.RunPod("hostile", "sleep 1000")
	defer b.RemovePod(pod.Sandbox)
	images := namesOfImages(t, b)
	before := b.StillGround()
	for name, archive := range hostileArchives(t) {
		t.Run(name, func(t *testing.T) {
			config := hidden(b.Container("hostile", "exit 99"))
			config.Image = &runtimeapi.ImageSpec{Image: archive.pack(t, location)}
			_, err := b.Runtime.CreateContainer(b.Ctx(), &runtimeapi.CreateContainerRequest{PodSandboxId: pod.Sandbox, Config: config, SandboxConfig: pod.Config})
			checkRefusal(t, err, archive.code, archive.words)
		})
	}
	if differences := b.AwaitGround(before, 30*time.Second); differences != "" {
		t.Error(differences)
	}
	if _, err := os.Lstat("/etc/berth-test-hostile"); err == nil {
		t.Error("an archive has written a file of the host")
	}
	if now := namesOfImages(t, b); !maps.Equal(now, images) {
		t.Errorf("images %v, before %v", now, images)
	}
}

// namesOfImages are the names of images, with the id of each.
func namesOfImages(t *testing.T, b *harness.Berth) map[string]string {
	t.Helper()
	list, err := b.Images.ListImages(b.Ctx(), &runtimeapi.ListImagesRequest{})
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]string{}
	for _, image := range list.Images {
		for _, name := range append(image.RepoTags, image.RepoDigests...) {
			names[name] = image.Id
		}
	}
	return names
}

// restoreAsking: an archive whose descriptions ask for privileges, mounts, devices, namespaces, hooks and CDI devices (CRI-O
// CVE-2024-8676, containerd CVE-2026-53492), and that names a tag (containerd CVE-2026-50195), is restored with what the request
// has, and changes no name of an image.
func restoreAsking(t *testing.T, b *harness.Berth, location string) {
	asking := hostile{edit: func(t *testing.T, dir string) {
		editJSON(t, filepath.Join(dir, "spec.dump"), func(spec map[string]any) {
			all := []string{"CAP_SYS_ADMIN", "CAP_SYS_MODULE", "CAP_SYS_PTRACE"}
			process := spec["process"].(map[string]any)
			process["capabilities"] = map[string]any{"bounding": all, "effective": all, "permitted": all}
			process["apparmorProfile"], process["noNewPrivileges"] = "unconfined", false
			spec["mounts"] = append(spec["mounts"].([]any), map[string]any{"destination": "/host", "type": "bind", "source": "/", "options": []string{"rbind"}})
			spec["hooks"] = map[string]any{"createRuntime": []any{map[string]any{"path": "/bin/touch", "args": []string{"touch", "/etc/berth-test-hostile"}}}}
			spec["annotations"] = map[string]any{"cdi.k8s.io/x": "vendor.com/device=all", "io.kubernetes.cri-o.Volumes": `[{"container_path":"/host","host_path":"/"}]`}
			linux := spec["linux"].(map[string]any)
			linux["namespaces"], linux["maskedPaths"], linux["readonlyPaths"] = []any{map[string]any{"type": "mount"}}, nil, nil
			linux["devices"] = []any{map[string]any{"path": "/dev/kmsg", "type": "c", "major": 1, "minor": 11}}
		})
		editJSON(t, filepath.Join(dir, "config.dump"), func(config map[string]any) {
			config["rootfsImageName"], config["runtime"], config["privileged"] = "docker.io/library/busybox:stolen", "/bin/sh", true
		})
		// The OCI runtime, which is its parent, ends before the container is started.
		editInit(func(c *criucore.CoreEntry) { c.ThreadCore.PdeathSig = proto.Uint32(uint32(unix.SIGCONT)) })(t, dir)
		written("bind.mounts", `[{"destination":"/host","source":"/"}]`)(t, dir)
	}}
	const shows = "grep Cap /proc/1/status; ls -a / /dev; cut -d' ' -f5,6,9 /proc/1/mountinfo"
	images, seen := namesOfImages(t, b), map[string]string{}
	for name, from := range map[string]string{"as it was": location, "asking": asking.pack(t, location)} {
		pod := b.RunPod("asking", "sleep 1000")
		config := hidden(b.Container("restored", "exit 99"))
		config.Image = &runtimeapi.ImageSpec{Image: from}
		id := b.Create(pod.Sandbox, config, pod.Config)
		b.StartContainer(id)
		seen[name] = b.ExecOut(id, shows)
		for _, kind := range []string{"net", "ipc", "uts", "pid", "mnt"} {
			host, err := os.Readlink("/proc/self/ns/" + kind)
			if own := strings.TrimSpace(b.ExecOut(id, "readlink /proc/1/ns/"+kind)); err != nil || own == host || own == "" {
				t.Errorf("%s: its namespace %s is %q, that of the host %q, %v", name, kind, own, host, err)
			}
		}
		b.RemovePod(pod.Sandbox)
		if err := os.RemoveAll(pod.Config.LogDirectory); err != nil {
			t.Error(err)
		}
	}
	if seen["asking"] != seen["as it was"] || !strings.Contains(seen["asking"], "CapEff") {
		t.Errorf("with an archive that asks for more:\n%s\nwithout:\n%s", seen["asking"], seen["as it was"])
	}
	if now := namesOfImages(t, b); !maps.Equal(now, images) {
		t.Errorf("images %v, before %v", now, images)
	}
	if _, err := os.Lstat("/etc/berth-test-hostile"); err == nil {
		t.Error("a hook of the archive ran")
	}
}

// restoreOnHost: a volume keeps the flags with which the host has mounted it, and a device that the request does not have is
// not opened.
func restoreOnHost(t *testing.T, b *harness.Berth, location string) {
	source := t.TempDir()
	if err := unix.Mount("berth-test", source, "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(source, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	if err := unix.Mount("", source, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY|unix.MS_NOSUID|unix.MS_NODEV, ""); err != nil {
		t.Fatal(err)
	}
	pod := b.RunPod("on-host", "sleep 1000")
	defer b.RemovePod(pod.Sandbox)
	config := hidden(b.Container("restored", "exit 99"))
	config.Image, config.Mounts = &runtimeapi.ImageSpec{Image: location}, []*runtimeapi.Mount{{ContainerPath: "/vol", HostPath: source}}
	id := b.Create(pod.Sandbox, config, pod.Config)
	b.StartContainer(id)
	said := b.ExecOut(id, "touch /vol/x || echo not written; mknod /kmsg c 1 11 && head -c1 /kmsg >/dev/null || echo not opened; grep ' /vol ' /proc/self/mountinfo")
	for _, words := range []string{"not written", "not opened", "ro,nosuid,nodev"} {
		if !strings.Contains(said, words) {
			t.Errorf("no %q in %s", words, said)
		}
	}
}

func editJSON(t *testing.T, path string, edit func(value map[string]any)) {
	t.Helper()
	data, err := os.ReadFile(path)
	value := map[string]any{}
	if err == nil {
		err = json.Unmarshal(data, &value)
	}
	if err != nil {
		t.Fatal(err)
	}
	edit(value)
	if data, err = json.Marshal(value); err == nil {
		err = os.WriteFile(path, data, fs.FileMode(0o600))
	}
	if err != nil {
		t.Fatal(fmt.Errorf("%s: %w", path, err))
	}
}
