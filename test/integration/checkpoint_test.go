//go:build integration

package integration

import (
	"archive/tar"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	"google.golang.org/grpc/codes"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/require"
	"github.com/berthrun/berth/test/harness"
)

// counting writes a number that it has in memory into two files and its log, and has removed a file of its image. One of the
// files is whole when its processes are stopped.
const counting = "rm -r /bin/true; echo new > /new; i=0; while :; do i=$((i+1)); echo $i > /count; echo $i > /again; echo $i; sleep 0.05; done"

// TestCheckpoint: a container that counts in its memory is written into an archive and goes on counting. What is in the
// archive goes on counting, too, when runc restores it.
func TestCheckpoint(t *testing.T) {
	criu, runc := require.CRIU(t), require.Binary(t, "runc")
	f := newFields(t, harness.Options{Config: fmt.Sprintf("[checkpoint]\nenabled = true\ncriu = %q\n[handlers.runc]\nkind = \"oci\"\npath = %q\n", criu, runc)}, nil)
	b := f.Berth
	b.NeedsPart(t, harness.Supervisors)
	b.Await("berth info shows CRIU", func() bool {
		info := b.MustCLI("info", "--endpoint", "unix://"+b.Socket)
		return strings.Contains(info, "checkpoint:") && strings.Contains(info, criu) && !strings.Contains(info, "not known yet")
	})
	for _, handler := range []string{"", "runc"} {
		t.Run("handler "+handler, func(t *testing.T) {
			pod := runHandler(b, handler, counting)
			defer b.RemovePod(pod.Sandbox)
			location := filepath.Join(t.TempDir(), "archive.tar")
			request := &runtimeapi.CheckpointContainerRequest{ContainerId: pod.Container[:20], Location: location, Timeout: 60}
			if _, err := b.Runtime.CheckpointContainer(b.Ctx(), request); err != nil {
				t.Fatal(err)
			}
			before := count(t, pod.LogFile)
			b.Await("the container goes on", func() bool { return count(t, pod.LogFile) > before })
			if _, err := b.Runtime.CheckpointContainer(b.Ctx(), request); !strings.Contains(fmt.Sprint(err), "a file is there") {
				t.Errorf("a second checkpoint to the same place: %v", err)
			}
			request.Location = filepath.Join(filepath.Dir(location), "second.tar")
			if _, err := b.Runtime.CheckpointContainer(b.Ctx(), request); err != nil {
				t.Errorf("a second checkpoint: %v", err)
			}
			if left, err := os.ReadDir(filepath.Dir(location)); err != nil || len(left) != 2 {
				t.Errorf("beside the archives: %v, %v", left, err)
			}
			checkArchive(t, location, pod.Container)
			restoreElsewhere(t, b, runc, location)
		})
	}
}

// TestCheckpointIsUndone: a container that cannot be written goes on, with its connections, and nothing is written.
func TestCheckpointIsUndone(t *testing.T) {
	criu := require.CRIU(t)
	b := newFields(t, harness.Options{Config: fmt.Sprintf("[checkpoint]\nenabled = true\ncriu = %q\n", criu)}, nil).Berth
	b.NeedsPart(t, harness.Supervisors)
	const counts = "i=0; while :; do i=$((i+1)); echo $i; sleep 0.05; done"
	for words, script := range map[string]string{
		// The numbers of the log come through a connection.
		"Connected TCP socket": "mkfifo /p; sleep 1000 > /p & (" + counts + ") | nc -l -p 7000 & until nc 127.0.0.1 7000 < /p; do sleep 0.1; done",
		// CRIU has written its processes by then.
		"directories in one another": "p=d; i=0; while [ $i -lt 1030 ]; do p=$p/d; i=$((i+1)); done; mkdir -p $p || exit 1; " + counts,
	} {
		t.Run(words, func(t *testing.T) {
			pod := runHandler(b, "", script)
			defer os.Remove(pod.LogFile) // the next pod has the same name
			defer b.RemovePod(pod.Sandbox)
			numbers := func() int {
				lines, err := harness.LogLines(pod.LogFile)
				if err != nil {
					t.Fatal(err)
				}
				return len(lines)
			}
			b.Await("the container counts", func() bool { return numbers() > 3 })
			dir := t.TempDir()
			for range 2 {
				_, err := b.Runtime.CheckpointContainer(b.Ctx(), &runtimeapi.CheckpointContainerRequest{ContainerId: pod.Container, Location: filepath.Join(dir, "archive.tar"), Timeout: 60})
				checkRefusal(t, err, codes.FailedPrecondition, []string{words})
				if n := strings.Count(fmt.Sprint(err), "cannot checkpoint container"); n != 1 {
					t.Errorf("the message says %d times what cannot be done: %v", n, err)
				}
				before := numbers()
				b.Await("the container goes on", func() bool { return numbers() > before+3 })
			}
			if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
				t.Errorf("left: %v, %v", left, err)
			}
		})
	}
}

// count is the last number in a log.
func count(t *testing.T, log string) int {
	t.Helper()
	lines, err := harness.LogLines(log)
	if err != nil || len(lines) == 0 {
		t.Fatalf("log %s: %d lines, %v", log, len(lines), err)
	}
	n, err := strconv.Atoi(lines[len(lines)-1])
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// checkArchive checks what is in an archive, and who can read it.
func checkArchive(t *testing.T, location, id string) {
	t.Helper()
	info, err := os.Stat(location)
	if err != nil || info.Mode() != 0o600 {
		t.Fatalf("the archive: %v, %v", info, err)
	}
	dir := unpackTar(t, location)
	read := func(name string, into any) {
		t.Helper()
		data, err := os.ReadFile(filepath.Join(dir, name))
		if err == nil {
			err = json.Unmarshal(data, into)
		}
		if err != nil {
			t.Error(err)
		}
	}
	var config struct{ ID, Name, RootfsImageName, CheckpointedTime string }
	var deleted []string
	read("config.dump", &config)
	read("deleted.files", &deleted)
	if config.ID != id || config.Name != "c" || config.RootfsImageName == "" || config.CheckpointedTime == "" || !slices.Contains(deleted, "/bin/true") {
		t.Errorf("config.dump %+v, deleted.files %q", config, deleted)
	}
	for _, name := range []string{"dump.log", "stats-dump", "checkpoint/inventory.img", "checkpoint/descriptors.json"} {
		if info, err := os.Stat(filepath.Join(dir, name)); err != nil || info.Size() == 0 {
			t.Errorf("%s: %v, %v", name, info, err)
		}
	}
	changes := unpackTar(t, filepath.Join(dir, "rootfs-diff.tar"))
	if text, err := os.ReadFile(filepath.Join(changes, "new")); err != nil || string(text) != "new\n" {
		t.Errorf("a new file of the container: %q, %v", text, err)
	}
}

// unpackTar unpacks the directories and regular files of an archive, and returns where.
func unpackTar(t *testing.T, path string) string {
	t.Helper()
	dir := t.TempDir()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	for r := tar.NewReader(f); ; {
		header, err := r.Next()
		if errors.Is(err, io.EOF) {
			return dir
		}
		switch {
		case err != nil:
		case header.Typeflag == tar.TypeDir:
			err = root.MkdirAll(strings.TrimSuffix(header.Name, "/"), 0o755)
		case header.Typeflag == tar.TypeReg:
			var out *os.File
			if out, err = root.Create(header.Name); err == nil {
				_, err = io.Copy(out, r)
				out.Close()
			}
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// lastCount is the last number that counting has written into a file.
func lastCount(t *testing.T, changes string) (last int) {
	t.Helper()
	for _, name := range []string{"count", "again"} {
		data, err := os.ReadFile(filepath.Join(changes, name))
		if err != nil {
			t.Fatal(err)
		}
		if n, err := strconv.Atoi(strings.TrimSpace(string(data))); err == nil {
			last = max(last, n)
		}
	}
	if last == 0 {
		t.Fatal("no number in the files of the archive")
	}
	return last
}

// restoreElsewhere restores an archive by runc, in a copy of the root filesystem with the changes of the archive.
func restoreElsewhere(t *testing.T, b *harness.Berth, runc, location string) {
	t.Helper()
	dir := unpackTar(t, location)
	changes := unpackTar(t, filepath.Join(dir, "rootfs-diff.tar"))
	data, err := os.ReadFile(filepath.Join(dir, "spec.dump"))
	if err != nil {
		t.Fatal(err)
	}
	var spec specs.Spec
	if err := json.Unmarshal(data, &spec); err != nil {
		t.Fatal(err)
	}
	bundle, root := t.TempDir(), t.TempDir()
	copied := filepath.Join(bundle, "rootfs")
	for _, from := range []string{spec.Root.Path, changes} {
		if out, err := exec.CommandContext(t.Context(), "cp", "-a", "-T", from, copied).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	last := lastCount(t, changes)
	spec.Root.Path, spec.Hooks, spec.Linux.CgroupsPath, spec.Version = copied, nil, "/berth-test-restored-"+filepath.Base(b.Dir), "1.0.2"
	if data, err = json.Marshal(spec); err == nil {
		err = os.WriteFile(filepath.Join(bundle, "config.json"), data, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if out, err := exec.Command(runc, "--root", root, "delete", "--force", "restored").CombinedOutput(); err != nil {
			t.Errorf("%v: %s", err, out)
		}
	})
	reader, writer, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	cmd := exec.CommandContext(t.Context(), runc, "--root", root, "restore", "--detach", "--bundle", bundle,
		"--image-path", filepath.Join(dir, "checkpoint"), "--work-path", bundle, "restored")
	cmd.Stdout, cmd.Stderr = writer, writer
	err = cmd.Run()
	writer.Close()
	if err != nil {
		log, _ := os.ReadFile(filepath.Join(bundle, "restore.log"))
		t.Fatalf("runc restore: %v\n%s", err, log)
	}
	buf := make([]byte, 64)
	n, err := reader.Read(buf)
	if err != nil {
		t.Fatal(err)
	}
	line, _, _ := strings.Cut(string(buf[:n]), "\n")
	// The last number may be in the file and not yet in the log when the processes are stopped.
	if next, err := strconv.Atoi(line); err != nil || next < last || next > last+1 {
		t.Errorf("the restored container goes on with %q after %d", buf[:n], last)
	}
}

// TestCheckpointIsRefused: requests that cannot be honoured are refused with the reason, and make nothing. A path
// in the place of an image is an archive, and is not restored without CRIU.
func TestCheckpointIsRefused(t *testing.T) {
	f := newFields(t, harness.Options{Config: "[checkpoint]\nenabled = true\ncriu = '/no/such/criu'\n"}, nil)
	b := f.Berth
	b.NeedsPart(t, harness.Supervisors)
	pod := b.RunPod("counts", "sleep 1000")
	dir := t.TempDir()
	if info := b.MustCLI("info", "--endpoint", "unix://"+b.Socket); !strings.Contains(info, "/no/such/criu: no such file") {
		t.Errorf("berth info does not say why: %s", info)
	}
	for _, c := range []struct {
		container, location string
		timeout             int64
		code                codes.Code
		words               []string
	}{
		{pod.Container, filepath.Join(dir, "c.tar"), 0, codes.Unimplemented, []string{"/no/such/criu", "checkpoint.criu"}},
		{"", filepath.Join(dir, "c.tar"), 0, codes.InvalidArgument, []string{"container_id"}},
		{"missing", filepath.Join(dir, "c.tar"), 0, codes.NotFound, []string{"missing"}},
		{pod.Container, "", 0, codes.InvalidArgument, []string{"location"}},
		{pod.Container, filepath.Join(dir, "x") + "/../c.tar", 0, codes.InvalidArgument, []string{"location", "without"}},
		{pod.Container, "./c.tar", 0, codes.InvalidArgument, []string{"location", "absolute"}},
		{pod.Container, "registry.example/checkpoint:1", 0, codes.Unimplemented, []string{"location", "not written as images"}},
		{pod.Container, filepath.Join(dir, "c.tar"), -1, codes.InvalidArgument, []string{"timeout"}},
	} {
		_, err := b.Runtime.CheckpointContainer(b.Ctx(), &runtimeapi.CheckpointContainerRequest{ContainerId: c.container, Location: c.location, Timeout: c.timeout})
		checkRefusal(t, err, c.code, c.words)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Errorf("left: %v, %v", left, err)
	}
	config := b.Container("restored", "exit 0")
	config.Image.Image = filepath.Join(dir, "c.tar")
	_, err := b.Runtime.CreateContainer(b.Ctx(), &runtimeapi.CreateContainerRequest{PodSandboxId: pod.Sandbox, Config: config, SandboxConfig: pod.Config})
	checkRefusal(t, err, codes.Unimplemented, []string{"restore the checkpoint", "/no/such/criu", "checkpoint.criu"})
	f.reload(t, "[checkpoint]\nenabled = false\n", "checkpoint")
	_, err = b.Runtime.CheckpointContainer(b.Ctx(), &runtimeapi.CheckpointContainerRequest{ContainerId: pod.Container, Location: filepath.Join(dir, "c.tar")})
	checkRefusal(t, err, codes.Unimplemented, []string{"checkpoint.enabled"})
	_, err = b.Runtime.CreateContainer(b.Ctx(), &runtimeapi.CreateContainerRequest{PodSandboxId: pod.Sandbox, Config: config, SandboxConfig: pod.Config})
	checkRefusal(t, err, codes.Unimplemented, []string{"config.image.image", "checkpoint.enabled"})
}
