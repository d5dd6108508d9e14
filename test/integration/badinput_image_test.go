//go:build integration

package integration

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/berthrun/berth/internal/image/imagetest"
	"github.com/berthrun/berth/internal/require"
	"github.com/berthrun/berth/test/harness"
	"google.golang.org/grpc/codes"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// badArchive imports an archive that must be refused.
func (x *trial) badArchive(name string, code codes.Code, archive []byte, words ...string) attempt {
	return attempt{name, func() error {
		_, err := x.Import(bytes.NewReader(archive))
		return err
	}, code, words}
}

// layered returns a complete archive of an image with these files in its second layer.
func layered(t *testing.T, files ...imagetest.File) []byte {
	t.Helper()
	return archiveOf(t, imagetest.Spec{Name: "bad:1", Layers: []imagetest.Layer{{{Path: "/etc/a", Content: []byte("a")}, {Path: "/dir", Dir: true}}, files}})
}

func archiveOf(t *testing.T, spec imagetest.Spec) []byte {
	t.Helper()
	var buf bytes.Buffer
	if err := imagetest.Archive(&buf, spec); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

func TestBadArchivesAreRefusedAndLeaveNothing(t *testing.T) {
	x := newTrial(t, harness.Options{})
	const invalid = codes.InvalidArgument
	good := layered(t, imagetest.File{Path: "/big", Content: bytes.Repeat([]byte("0123456789abcdef"), 1<<16)})
	var oci, zipped bytes.Buffer
	if err := imagetest.OCIArchive(&oci, imagetest.Spec{Name: "bad:1", Files: []imagetest.File{{Path: "/a", Content: []byte("a")}}}); err != nil {
		t.Fatal(err)
	}
	w := gzip.NewWriter(&zipped)
	if _, err := w.Write(good); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	outside := filepath.Join(t.TempDir(), "outside")
	up := strings.Repeat("../", 20)
	attempts := []attempt{
		x.badArchive("empty", invalid, nil, "manifest.json"),
		x.badArchive("garbage", invalid, bytes.Repeat([]byte("garbage "), 4096), "tar"),
		x.badArchive("truncated", invalid, good[:len(good)/2], "truncated"),
		x.badArchive("truncated gzip", invalid, zipped.Bytes()[:zipped.Len()/2], "truncated"),
		x.badArchive("a layer with a bad digest", invalid, edited(t, good, func(name string, data []byte) []byte {
			if strings.HasSuffix(name, ".tar") {
				data[len(data)/2] ^= 1
			}
			return data
		}), "layer"),
		x.badArchive("a config with a bad digest", invalid, edited(t, oci.Bytes(), func(name string, data []byte) []byte {
			if strings.HasPrefix(name, "blobs/") {
				data[len(data)-1] ^= 1
			}
			return data
		}), "digest"),
		x.badArchive("no manifest", invalid, edited(t, good, func(name string, data []byte) []byte {
			if name == "manifest.json" {
				return nil
			}
			return data
		}), "manifest.json"),
		x.badArchive("a manifest that names files of the host", invalid, edited(t, good, func(name string, data []byte) []byte {
			if name == "manifest.json" {
				return []byte(`[{"Config":"` + up + `etc/passwd","Layers":["/etc/shadow"]}]`)
			}
			return data
		}), "etc/passwd"),
		x.badArchive("wrong architecture", codes.Unimplemented, archiveOf(t, imagetest.Spec{Name: "bad:1", Architecture: "s390x", Files: []imagetest.File{{Path: "/a"}}}), "s390x", runtime.GOARCH),
		x.badArchive("wrong system", codes.Unimplemented, archiveOf(t, imagetest.Spec{Name: "bad:1", OS: "windows", Files: []imagetest.File{{Path: "/a"}}}), "windows"),
		x.badArchive("name that is none", invalid, archiveOf(t, imagetest.Spec{Name: "UPPER case", Files: []imagetest.File{{Path: "/a"}}}), "UPPER case"),
		{"broken off by the client", func() error {
			_, err := x.Import(io.MultiReader(bytes.NewReader(good[:len(good)/2]), broken{}))
			return err
		}, codes.Unknown, []string{"it broke"}}, // the client's own error
	}
	for name, bad := range map[string]struct {
		file imagetest.File
		word string
	}{
		"file that climbs":                {imagetest.File{Path: up + outside[1:], Content: []byte("x"), Raw: true}, "leads out"},
		"hard link to a file of the host": {imagetest.File{Path: "/passwd", Hardlink: up + "etc/passwd", Raw: true}, "passwd"},
		"device that hides a directory":   {imagetest.File{Path: "/etc", Device: 'c'}, "etc"},
	} {
		a := x.badArchive(name, invalid, layered(t, bad.file), bad.word)
		if x.Has(harness.OwnLayers) {
			attempts = append(attempts, a)
			continue
		}
		t.Run(name, func(t *testing.T) { // refused by the engine, or kept inside
			if err := a.do(); err != nil {
				checkRefusal(t, err, invalid, nil)
			} else if _, err := x.Images.RemoveImage(x.Ctx(), &runtimeapi.RemoveImageRequest{Image: &runtimeapi.ImageSpec{Image: "bad:1"}}); err != nil {
				t.Error(err)
			}
			x.nothingLeft(t)
		})
	}
	x.try(t, attempts)
	if _, err := os.Lstat(outside); err == nil {
		t.Error("a file was made outside of the image")
	}
}

// Layers may have links that point anywhere, and device nodes, as real ones do. A write through a
// link stays inside, and a container cannot open the device.
func TestLinksAndDevicesOfImagesStayInside(t *testing.T) {
	x := newTrial(t, harness.Options{})
	outside := t.TempDir()
	busybox, err := os.ReadFile(require.Binary(t, "busybox"))
	if err != nil {
		t.Fatal(err)
	}
	up := strings.Repeat("../", 20)
	_, err = x.Import(bytes.NewReader(layered(t,
		imagetest.File{Path: "/bin/sh", Content: busybox, Mode: 0o755},
		imagetest.File{Path: "/swap", Symlink: outside},
		imagetest.File{Path: "swap/one", Content: []byte("one"), Raw: true},
		imagetest.File{Path: "/dir", Symlink: up + outside[1:]},
		imagetest.File{Path: "dir/two", Content: []byte("two"), Raw: true},
		imagetest.File{Path: "/mem", Device: 'c', Major: 1, Minor: 1, Mode: 0o666},
		imagetest.File{Path: "/sda", Device: 'b', Major: 8, Mode: 0o666},
	)))
	if err != nil && !x.Has(harness.OwnLayers) { // what the link leads to is not there, inside
		checkRefusal(t, err, codes.InvalidArgument, nil)
		if entries, err := os.ReadDir(outside); err != nil || len(entries) > 0 {
			t.Errorf("outside of the image: %v, %v", entries, err)
		}
		x.nothingLeft(t)
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	config := x.Container("inside", "while :; do sleep 1000; done")
	config.Image.Image = "bad:1"
	id := x.Create(x.pod.Sandbox, config, x.pod.Config)
	x.StartContainer(id)
	for script, want := range map[string]string{
		"cat /swap/one": "one",
		"cat /dir/two":  "two",
		"(head -c 1 /mem) 2>&1 | grep -o 'not permitted'": "not permitted",
		"(head -c 1 /sda) 2>&1 | grep -o 'not permitted'": "not permitted",
	} {
		if got := x.Exec(id, script); string(got.Stdout) != want && strings.TrimSpace(string(got.Stdout)) != want {
			t.Errorf("%s: %q %q, want %q", script, got.Stdout, got.Stderr, want)
		}
	}
	if entries, err := os.ReadDir(outside); err != nil || len(entries) > 0 {
		t.Errorf("outside of the image: %v, %v", entries, err)
	}
	if _, err := x.Runtime.RemoveContainer(x.Ctx(), &runtimeapi.RemoveContainerRequest{ContainerId: id}); err != nil {
		t.Error(err)
	}
	if _, err := x.Images.RemoveImage(x.Ctx(), &runtimeapi.RemoveImageRequest{Image: &runtimeapi.ImageSpec{Image: "bad:1"}}); err != nil {
		t.Error(err)
	}
	x.nothingLeft(t)
}

// broken is a reader that fails.
type broken struct{}

func (broken) Read([]byte) (int, error) { return 0, errors.New("it broke") }

// edited copies an archive and changes entries; nil removes one.
func edited(t *testing.T, archive []byte, edit func(name string, data []byte) []byte) []byte {
	t.Helper()
	var out bytes.Buffer
	w, r := tar.NewWriter(&out), tar.NewReader(bytes.NewReader(archive))
	for {
		header, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		data, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		if data = edit(header.Name, data); data == nil {
			continue
		}
		header.Size = int64(len(data))
		if err := w.WriteHeader(header); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(data); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// Images may name any user, and may have any content as their passwd file.
func TestBadUsersOfImages(t *testing.T) {
	x := newTrial(t, harness.Options{})
	busybox, err := os.ReadFile(require.Binary(t, "busybox"))
	if err != nil {
		t.Fatal(err)
	}
	use := func(name, user, passwd string, change func(*imagetest.Spec), words ...string) attempt {
		ref := "docker.io/library/users:" + fmt.Sprintf("%x", name)
		return attempt{name, func() error {
			spec := imagetest.Spec{
				Name: ref, User: user, Cmd: []string{"/bin/busybox", "true"},
				Files: []imagetest.File{{Path: "/bin/busybox", Content: busybox, Mode: 0o755}, {Path: "/etc/passwd", Content: []byte(passwd)}},
			}
			if change != nil {
				change(&spec)
			}
			if _, err := x.Import(bytes.NewReader(archiveOf(t, spec))); err != nil {
				return err
			}
			config := x.Container("user", "")
			config.Image.Image, config.Command = ref, nil
			answer, err := x.Runtime.CreateContainer(x.Ctx(), &runtimeapi.CreateContainerRequest{PodSandboxId: x.pod.Sandbox, Config: config, SandboxConfig: x.pod.Config})
			if err == nil {
				_, err = x.Runtime.RemoveContainer(x.Ctx(), &runtimeapi.RemoveContainerRequest{ContainerId: answer.ContainerId})
			}
			if _, err := x.Images.RemoveImage(x.Ctx(), &runtimeapi.RemoveImageRequest{Image: &runtimeapi.ImageSpec{Image: ref}}); err != nil {
				t.Error(err)
			}
			return err
		}, codes.InvalidArgument, append(words, "user")}
	}
	const root = "root:x:0:0::/:/bin/sh\n"
	attempts := []attempt{
		use("not in passwd", "web", root, nil, "web"),
		use("group not in group", "root:web", root, nil, "web"),
		use("no ids in passwd", "web", "web:x:zero:0::/:\n", nil, "web"),
		use("id that wraps to root in passwd", "web", "web:x:4294967296:0::/:\n", nil, "web"),
		use("passwd is a link to the host's", "daemon", root, func(s *imagetest.Spec) {
			s.Files[1] = imagetest.File{Path: "/etc/passwd", Symlink: strings.Repeat("../", 20) + "etc/passwd"}
		}, "daemon"),
		use("passwd is a FIFO", "web", root, func(s *imagetest.Spec) { s.Files[1] = imagetest.File{Path: "/etc/passwd", Device: 'p'} }),
	}
	for _, user := range []string{"4294967296", "2147483648", "99999999999999999999", "-1", "+0", "1e3", "0x0", " 0", "0:4294967296", "0:-1"} {
		// passwd has the name, as root. berth must not look it up.
		attempts = append(attempts, use("user "+user, user, user+":x:0:0::/:/bin/sh\n", nil))
	}
	x.try(t, attempts)
}

func TestBadImageRequests(t *testing.T) {
	x := newTrial(t, harness.Options{Config: "[image]\nno_progress_timeout = \"1s\"\n"})
	host := x.registry(t)
	const invalid = codes.InvalidArgument
	silence, unavailable := codes.Unknown, "RegistryUnavailable" // the kubelet knows the word with this code only
	if x.Docker != nil {                                         // which does not say that it waits for the registry
		silence, unavailable = codes.DeadlineExceeded, "image.no_progress_timeout"
	}
	image := func(ref string) *runtimeapi.ImageSpec { return &runtimeapi.ImageSpec{Image: ref} }
	pull := func(name string, code codes.Code, ref string, words ...string) attempt {
		return attempt{"pull of " + name, func() error {
			_, err := x.Images.PullImage(x.Ctx(), &runtimeapi.PullImageRequest{Image: image(ref)})
			return err
		}, code, words}
	}
	// The blobs that a pull has finished stay for the next one until the image is removed. A pull whose client has left
	// ends a moment later.
	giveUp := func(ref string) {
		x.Await("what the pull has left to go with its image", func() bool {
			_, err := x.Images.RemoveImage(x.Ctx(), &runtimeapi.RemoveImageRequest{Image: image(ref)})
			return err == nil && x.ground.Differences(x.Ground()) == ""
		})
	}
	attempts := []attempt{
		{"pull of nothing", func() error {
			_, err := x.Images.PullImage(x.Ctx(), &runtimeapi.PullImageRequest{})
			return err
		}, invalid, []string{"image"}},
		pull("a name that is none", invalid, "UPPER case", "UPPER case"),
		pull("a digest that is none", invalid, host+"/app@sha256:xyz", "sha256:xyz"),
		pull("a huge name", invalid, huge),
		pull("a tag that is not there", codes.NotFound, host+"/app:no", "app:no"),
		pull("another architecture only", codes.Unimplemented, host+"/foreign:1", "s390x", runtime.GOARCH),
		pull("a layer with a bad digest", invalid, host+"/lies:1", "digest"),
		pull("a registry that does not listen", codes.Unknown, "127.0.0.1:1/app:1", "RegistryUnavailable", "refused"),
		pull("a registry that does not exist", silence, "registry.invalid/app:1", unavailable, "registry.invalid"),
		pull("a registry that hangs before it answers", silence, host+"/silent:1", unavailable),
		{"pull of a registry that hangs in a layer", func() error {
			defer giveUp(host + "/slow:1")
			_, err := x.Images.PullImage(x.Ctx(), &runtimeapi.PullImageRequest{Image: image(host + "/slow:1")})
			return err
		}, silence, []string{unavailable, "for 1s"}},
		{"pull that its client gives up", func() error {
			defer giveUp(host + "/slow:1")
			ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
			defer cancel()
			_, err := x.Images.PullImage(ctx, &runtimeapi.PullImageRequest{Image: image(host + "/slow:1")})
			return err
		}, codes.DeadlineExceeded, nil},
		{"pull with a token of two lines", func() error {
			_, err := x.Images.PullImage(x.Ctx(), &runtimeapi.PullImageRequest{
				Image: image(host + "/app:1"), Auth: &runtimeapi.AuthConfig{RegistryToken: "a\r\nX-Header: b"},
			})
			return err
		}, invalid, []string{"auth.registry_token"}},
		{"pull with credentials that are none", func() error {
			_, err := x.Images.PullImage(x.Ctx(), &runtimeapi.PullImageRequest{
				Image: image(host + "/app:1"), Auth: &runtimeapi.AuthConfig{Auth: "!"},
			})
			return err
		}, invalid, []string{"auth.auth"}},
		{"status of nothing", func() error {
			_, err := x.Images.ImageStatus(x.Ctx(), &runtimeapi.ImageStatusRequest{})
			return err
		}, invalid, []string{"image"}},
		{"status of no name", func() error {
			_, err := x.Images.ImageStatus(x.Ctx(), &runtimeapi.ImageStatusRequest{Image: image("../../etc")})
			return err
		}, invalid, []string{"../../etc"}},
		{"status of an image that is not there", func() error {
			answer, err := x.Images.ImageStatus(x.Ctx(), &runtimeapi.ImageStatusRequest{Image: image("nosuch")})
			if answer.GetImage() != nil {
				t.Errorf("it is %v", answer.Image)
			}
			return err
		}, codes.OK, nil},
		{"removal of nothing", func() error {
			_, err := x.Images.RemoveImage(x.Ctx(), &runtimeapi.RemoveImageRequest{})
			return err
		}, invalid, []string{"image"}},
		{"removal of an image that is not there", func() error {
			_, err := x.Images.RemoveImage(x.Ctx(), &runtimeapi.RemoveImageRequest{Image: image("nosuch")})
			return err
		}, codes.OK, nil},
		{"removal of no name", func() error {
			_, err := x.Images.RemoveImage(x.Ctx(), &runtimeapi.RemoveImageRequest{Image: image("a\nb")})
			return err
		}, invalid, []string{"image"}},
	}
	x.try(t, attempts)
}

// registry serves images in the instance's host namespace. app is valid, foreign is for another
// platform, lies has a layer with wrong content, slow hangs in the middle of a layer, and silent
// hangs before the first byte.
func (x *trial) registry(t *testing.T) (host string) {
	t.Helper()
	r := &imagetest.Registry{}
	images := map[string]*imagetest.Image{}
	for _, name := range []string{"app", "foreign", "lies", "slow", "silent"} {
		spec := imagetest.Spec{Files: []imagetest.File{{Path: "/" + name, Content: bytes.Repeat([]byte(name), 1<<16)}}}
		if name == "foreign" {
			spec.Architecture = "s390x"
		}
		img, err := imagetest.Build(spec)
		if err != nil {
			t.Fatal(err)
		}
		images[name] = img
		r.Push(name, "1", img)
	}
	over := make(chan struct{})
	hang := func(req *http.Request) bool {
		select {
		case <-over:
		case <-req.Context().Done():
		}
		return true
	}
	r.Intercept = func(w http.ResponseWriter, req *http.Request) bool {
		slow, lies := images["slow"].Layers[0], images["lies"].Layers[0]
		switch {
		case strings.Contains(req.URL.Path, "/silent/"):
			return hang(req)
		case strings.HasSuffix(req.URL.Path, slow.Digest.String()):
			w.Header().Set("Content-Length", fmt.Sprint(len(slow.Data)))
			_, _ = w.Write(slow.Data[:len(slow.Data)/2])
			w.(http.Flusher).Flush()
			return hang(req)
		case strings.HasSuffix(req.URL.Path, lies.Digest.String()):
			w.Header().Set("Content-Length", fmt.Sprint(len(lies.Data)))
			_, _ = w.Write(bytes.ToUpper(lies.Data))
			return true
		}
		return false
	}
	host = x.Berth.Serve(r)
	t.Cleanup(func() { close(over) }) // before the server is closed
	return host
}
