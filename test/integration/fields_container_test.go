//go:build integration

package integration

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/berthrun/berth/test/harness"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// TestFieldsOfContainers: the remaining fields of a container's configuration.
func TestFieldsOfContainers(t *testing.T) {
	f := newFields(t, harness.Options{}, nil)
	f.try(t, "command / args", func(t *testing.T) {
		want(t, "both", f.says(t, "", func(c containerConfig) { c.Command, c.Args = []string{"/bin/echo", "a"}, []string{"b c", ""} }), "a b c ")
		// The image's own command is a shell, which reads nothing and ends.
		want(t, "none", f.says(t, "", func(c containerConfig) { c.Command = nil }), "")
	})
	f.try(t, "working_dir, envs", func(t *testing.T) {
		got := f.says(t, "pwd; echo $ONE$TWO; echo $PATH", func(c containerConfig) {
			c.WorkingDir = "/made/for/it"
			c.Envs = []*runtimeapi.KeyValue{{Key: "ONE", Value: []byte("1 ")}, {Key: "TWO", Value: []byte("2")}}
		})
		want(t, "directory, variables, the image's own", got, "/made/for/it 1 2 /bin")
		// Any bytes in a Secret are valid in the environment.
		got = f.says(t, "printf %s $BINARY | od -An -tx1 | tr -d ' '", func(c containerConfig) {
			c.Envs = []*runtimeapi.KeyValue{{Key: "BINARY", Value: []byte("a\xff")}}
		})
		want(t, "a byte that is no text", got, "61efbfbd")
	})
	f.try(t, "metadata, image{image, annotations, user_specified_image, runtime_handler, image_ref}", func(t *testing.T) {
		image, err := f.Images.ImageStatus(f.Ctx(), &runtimeapi.ImageStatusRequest{Image: &runtimeapi.ImageSpec{Image: harness.Busybox}})
		if err != nil {
			t.Fatal(err)
		}
		// As a kubelet requests it: by the id, with the name that the user wrote.
		id := f.create("exit 0", func(c containerConfig) {
			c.Metadata = &runtimeapi.ContainerMetadata{Name: "named", Attempt: 2}
			c.Image = &runtimeapi.ImageSpec{
				Image: image.Image.Id, UserSpecifiedImage: "busybox:test", Annotations: map[string]string{"kept": "yes"}, ImageRef: "sha256:note",
			}
		})
		status := f.Status(id)
		if status.Metadata.Name != "named" || status.Metadata.Attempt != 2 || status.Image.Image != harness.Busybox ||
			status.Image.Annotations["kept"] != "yes" || status.Image.UserSpecifiedImage != "busybox:test" || status.ImageId != image.Image.Id || status.ImageRef == "" {
			t.Errorf("status %v", status)
		}
		config := f.Container("handled", "exit 0")
		config.Image.RuntimeHandler = "kata"
		_, err = f.Runtime.CreateContainer(f.Ctx(), &runtimeapi.CreateContainerRequest{PodSandboxId: f.sandbox, Config: config, SandboxConfig: f.config})
		checkRefusal(t, err, codes.Unimplemented, []string{"image.runtime_handler", "kata"})
	})
	f.try(t, "labels, annotations", func(t *testing.T) {
		labels, annotations := map[string]string{"a/b": "c", "empty": ""}, map[string]string{"note": "two\nlines"}
		status := f.Status(f.create("exit 0", func(c containerConfig) { c.Labels, c.Annotations = labels, annotations }))
		if diff := cmp.Diff([]any{labels, annotations}, []any{status.Labels, status.Annotations}); diff != "" {
			t.Errorf("status (-want +got):\n%s", diff)
		}
	})
	f.try(t, "log_path, tty, stdin, stdin_once", func(t *testing.T) {
		logged := f.create("echo logged", func(c containerConfig) { c.LogPath = "deep/er/0.log" })
		f.StartContainer(logged)
		f.AwaitExit(logged)
		lines, err := harness.LogLines(filepath.Join(f.config.LogDirectory, "deep/er/0.log"))
		if err != nil || strings.Join(lines, "") != "logged" {
			t.Errorf("%q, %v", lines, err)
		}
		if f.Has(harness.HostKernel) {
			want(t, "tty", strings.ReplaceAll(f.says(t, "tty; echo $TERM", func(c containerConfig) { c.Tty, c.Stdin = true, true }), "\r", ""), "/dev/pts/0 xterm")
		}
		want(t, "no stdin", f.says(t, "cat; echo end", nil), "end")
		id := f.create("cat; echo end", func(c containerConfig) { c.Stdin, c.StdinOnce = true, true })
		f.StartContainer(id)
		f.Await("cat to wait for a client", func() bool {
			return f.ExecOut(id, "ps -o args | grep -c '^cat$' || true") == "1"
		})
		if state := f.Status(id).State; state != runtimeapi.ContainerState_CONTAINER_RUNNING {
			t.Errorf("with stdin: %s", state)
		}
	})
	f.try(t, "a missing program", func(t *testing.T) {
		id := f.create("", func(c containerConfig) { c.Command = []string{"no-such-program"} })
		_, err := f.Runtime.StartContainer(f.Ctx(), &runtimeapi.StartContainerRequest{ContainerId: id})
		if status := f.Status(id); err == nil || status.ExitCode != 128 || status.Reason != "StartError" ||
			!namesMissingProgram(status.Message) {
			t.Errorf("%v, status %v", err, status)
		}
	})
}

// namesMissingProgram reports whether a message says that a program was not found, in the words of runc, crun or gVisor.
func namesMissingProgram(message string) bool {
	return strings.Contains(message, "executable file not found in $PATH") ||
		strings.Contains(message, "executable file `") && strings.Contains(message, "` not found in $PATH") ||
		strings.Contains(message, "error finding executable")
}
