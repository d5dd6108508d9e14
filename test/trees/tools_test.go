//go:build integration && e2e

package trees

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/docker/dockertest"
	"github.com/berthrun/berth/internal/image/imagetest"
	"github.com/berthrun/berth/internal/image/local"
	"github.com/berthrun/berth/internal/require"
)

// fill makes a tree with what a file system can have.
func fill(t *testing.T, root string) {
	t.Helper()
	in := func(name string) string { return filepath.Join(root, name) }
	write := func(name, content string, mode uint32, uid, gid int) {
		must(t, os.WriteFile(in(name), []byte(content), 0o600))
		must(t, os.Lchown(in(name), uid, gid))
		must(t, unix.Chmod(in(name), mode))
	}
	for name, mode := range map[string]uint32{"plain": 0o755, "sticky": 0o1777, "setgid": 0o2750, "opaque": 0o711, "gone": 0o700, "becomes-file": 0o755, "becomes-link": 0o755, "acl": 0o750} {
		must(t, os.Mkdir(in(name), 0o700))
		must(t, unix.Chmod(in(name), mode))
	}
	write("plain/su", "su", 0o4755, 0, 0)
	write("plain/sg", "sg", 0o2711, 3, 4)
	write("plain/owned", "owned", 0o640, 1<<32-2, 65534)
	write("plain/hidden", "x", 0, 1000, 1000)
	write("opaque/low", "low", 0o644, 0, 0)
	write("gone/low", "low", 0o644, 0, 0)
	write("becomes-file/in", "in", 0o644, 0, 0)
	write("becomes-link/in", "in", 0o644, 0, 0)
	write("becomes-directory", "file", 0o644, 0, 0)
	write("deleted", "file", 0o644, 0, 0)
	write(strings.Repeat("n", 255), "long", 0o644, 0, 0)
	deep := strings.Repeat(strings.Repeat("p", 90)+"/", 4)
	must(t, os.MkdirAll(in(deep), 0o755))
	write(deep+"f", "deep", 0o644, 0, 0)
	write("ünïcode 日本 \\ \t", "odd", 0o644, 0, 0)
	must(t, os.Link(in("plain/su"), in("plain/su-again")))
	must(t, os.Link(in("plain/su"), in("setgid/su-again")))
	for name, target := range map[string]string{"absolute": "/plain/su", "relative": "plain/../plain/su", "dangling": "nowhere", "to-directory": "plain"} {
		must(t, os.Symlink(target, in(name)))
		must(t, os.Lchown(in(name), 5, 6))
	}
	for attr, value := range map[string]string{"user.text": "value", "user.binary": "\x01\xff\x00\x7f"} {
		must(t, unix.Lsetxattr(in("plain/sg"), attr, []byte(value), 0))
		must(t, unix.Lsetxattr(in("sticky"), attr, []byte(value), 0))
	}
	write("plain/ping", "ping", 0o755, 0, 0)
	must(t, unix.Lsetxattr(in("plain/ping"), "security.capability", []byte(capability), 0))
	write("acl/f", "acl", 0o640, 0, 0)
	must(t, unix.Lsetxattr(in("acl/f"), "system.posix_acl_access", []byte(aclAccess), 0))
	must(t, unix.Lsetxattr(in("acl"), "system.posix_acl_default", []byte(aclDefault), 0))
	must(t, unix.Mkfifo(in("plain/pipe"), 0o620))
	must(t, unix.Mknod(in("plain/null"), unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))))
	must(t, unix.Mknod(in("plain/disk"), unix.S_IFBLK|0o660, int(unix.Mkdev(8, 1))))
	sparse, err := os.Create(in("plain/sparse"))
	must(t, err)
	_, err = sparse.WriteAt([]byte("end"), 16<<20)
	must(t, err)
	must(t, sparse.Close())
	for name, at := range map[string]unix.Timespec{"plain/su": {Sec: -1000}, "plain/sg": {Sec: 1_600_000_000, Nsec: 123_456_789}, "plain/pipe": {Sec: 1 << 32}, "sticky": {Sec: 1_500_000_000}} {
		must(t, unix.UtimesNanoAt(unix.AT_FDCWD, in(name), []unix.Timespec{at, at}, unix.AT_SYMLINK_NOFOLLOW))
	}
}

// change makes what fill has made another tree, which a second layer describes.
func change(t *testing.T, root string) {
	t.Helper()
	in := func(name string) string { return filepath.Join(root, name) }
	for _, name := range []string{"gone", "deleted", "becomes-file", "becomes-link", "becomes-directory", "opaque", "plain/su-again"} {
		must(t, os.RemoveAll(in(name)))
	}
	must(t, os.WriteFile(in("becomes-file"), []byte("file"), 0o600))
	must(t, os.Symlink("plain", in("becomes-link")))
	must(t, os.Mkdir(in("becomes-directory"), 0o711))
	must(t, os.WriteFile(in("becomes-directory/in"), []byte("in"), 0o600))
	must(t, os.Mkdir(in("opaque"), 0o700))
	must(t, os.WriteFile(in("opaque/high"), []byte("high"), 0o600))
	must(t, os.WriteFile(in("plain/hidden"), []byte("changed"), 0o600))
	must(t, unix.Chmod(in("sticky"), 0o1700))
	must(t, os.WriteFile(in("acl/new"), []byte("new"), 0o600))
}

// tarOf is a tree as an archive of GNU tar, which takes more options. Docker cannot save again what has sparse files.
func tarOf(t *testing.T, root string, options ...string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "tree.tar")
	args := append([]string{"-c", "--format=posix", "--xattrs", "--xattrs-include=*", "--numeric-owner"}, options...)
	must(t, command(t, "tar", append(args, "-C", root, "-f", name, ".")...))
	return name
}

// compareArchive compares an archive with what umoci unpacks of a layout of the same image.
func compareArchive(t *testing.T, archive, layout string) map[string]imagetest.Node {
	t.Helper()
	data, err := os.ReadFile(archive)
	must(t, err)
	root, err := imported(t, store(t, local.AutoSnapshotter), data)
	must(t, err)
	tree, err := umoci(t, layout, "t")
	must(t, err)
	ours := treeOf(t, root)
	report(t, t.Name(), differences(ours, treeOf(t, tree), began, nil), map[decision]bool{})
	return ours
}

// compareLayout is compareArchive for a layout alone.
func compareLayout(t *testing.T, layout string) map[string]imagetest.Node {
	t.Helper()
	archive := filepath.Join(t.TempDir(), "image.tar")
	must(t, command(t, "tar", "-c", "-f", archive, "-C", layout, "."))
	return compareArchive(t, archive, layout)
}

// wantChanged checks that a tree is not only equal, but what the tool was given.
func wantChanged(t *testing.T, tree map[string]imagetest.Node) {
	t.Helper()
	for _, name := range []string{"gone", "deleted", "opaque/low", "becomes-file/in", "plain/su-again"} {
		if tree[name] != nil {
			t.Errorf("%s is there", name)
		}
	}
	for _, name := range []string{"opaque/high", "becomes-directory/in", "plain/su", "setgid/su-again", "plain/null", "acl/new"} {
		if tree[name] == nil {
			t.Errorf("%s is missing", name)
		}
	}
}

func TestTreesOfUmoci(t *testing.T) {
	require.Root(t)
	program, dir := require.Binary(t, "umoci"), t.TempDir()
	image, bundle := filepath.Join(dir, "layout")+":t", filepath.Join(dir, "bundle")
	must(t, command(t, program, "init", "--layout", filepath.Join(dir, "layout")))
	must(t, command(t, program, "new", "--image", image))
	must(t, command(t, program, "unpack", "--image", image, bundle))
	fill(t, filepath.Join(bundle, "rootfs"))
	must(t, command(t, program, "repack", "--refresh-bundle", "--image", image, bundle))
	change(t, filepath.Join(bundle, "rootfs"))
	must(t, command(t, program, "repack", "--image", image, bundle))
	wantChanged(t, compareLayout(t, filepath.Join(dir, "layout")))
}

// storage are the options of podman and buildah for directories of the test's own.
func storage(t *testing.T) []string {
	t.Helper()
	dir := t.TempDir()
	return []string{"--root", filepath.Join(dir, "root"), "--runroot", filepath.Join(dir, "run"), "--storage-driver", "vfs"}
}

// says runs a program and returns the line that it prints.
func says(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), name, args...).Output()
	if err != nil {
		t.Fatalf("%s %q: %v", name, args, err)
	}
	return strings.TrimSpace(string(out))
}

func TestTreesOfBuildah(t *testing.T) {
	require.Root(t)
	program, options, dir := require.Binary(t, "buildah"), storage(t), t.TempDir()
	run := func(args ...string) string {
		return says(t, program, append(options[:len(options):len(options)], args...)...)
	}
	container := run("from", "scratch")
	fill(t, run("mount", container))
	first := run("commit", "-q", container)
	run("rm", container)
	container = run("from", first)
	change(t, run("mount", container))
	for _, format := range []string{"oci", "docker"} {
		t.Run(format, func(t *testing.T) {
			layout := filepath.Join(dir, format)
			id := run("commit", "-q", "--format", format, container)
			run("push", "-q", "--format", "oci", id, "oci:"+layout+":t")
			wantChanged(t, compareLayout(t, layout))
		})
	}
	run("rm", container)
}

// buildContext is a build context whose steps add two trees.
func buildContext(t *testing.T) string {
	t.Helper()
	dir, root := t.TempDir(), t.TempDir()
	fill(t, root)
	must(t, os.Rename(tarOf(t, root), filepath.Join(dir, "first.tar")))
	must(t, os.Mkdir(filepath.Join(dir, "more"), 0o755))
	must(t, os.WriteFile(filepath.Join(dir, "more/new"), []byte("new"), 0o4755))
	must(t, os.Symlink("new", filepath.Join(dir, "more/link")))
	must(t, os.WriteFile(filepath.Join(dir, "Dockerfile"), []byte("FROM scratch\nADD first.tar /\nCOPY more /plain\nCOPY more/new /deleted\nCOPY more /to/new/\nWORKDIR /work/dir\nENV A=b\n"), 0o644))
	return dir
}

func TestTreesOfPodman(t *testing.T) {
	require.Root(t)
	program, options, dir := require.Binary(t, "podman"), storage(t), t.TempDir()
	run := func(args ...string) string {
		return says(t, program, append(options[:len(options):len(options)], args...)...)
	}
	for _, layers := range []string{"true", "false"} {
		t.Run("layers "+layers, func(t *testing.T) {
			tag := "localhost/trees:" + layers
			run("build", "-q", "--network", "none", "--layers="+layers, "-t", tag, buildContext(t))
			archive, layout := filepath.Join(dir, layers+".tar"), filepath.Join(dir, layers)
			run("save", "-q", "--format", "docker-archive", "-o", archive, tag)
			must(t, command(t, require.Binary(t, "skopeo"), "copy", "docker-archive:"+archive, "oci:"+layout+":t"))
			if compareArchive(t, archive, layout)["to/new/link"] == nil {
				t.Error("a copied link is missing")
			}
		})
	}
}

func TestTreesOfDocker(t *testing.T) {
	skopeo, docker := require.Binary(t, "skopeo"), require.Binary(t, "docker")
	d := dockertest.Start(t, dockertest.Options{})
	root := t.TempDir()
	fill(t, root)
	t.Setenv("DOCKER_BUILDKIT", "0")
	for name, args := range map[string][]string{
		"import": {"import", tarOf(t, root), "trees:t"},
		"build":  {"build", "-q", "-t", "trees:t", buildContext(t)},
	} {
		t.Run(name, func(t *testing.T) {
			must(t, command(t, docker, append([]string{"-H", d.Endpoint}, args...)...))
			archive, layout := filepath.Join(t.TempDir(), "image.tar"), filepath.Join(t.TempDir(), "layout")
			must(t, command(t, docker, "-H", d.Endpoint, "save", "-o", archive, "trees:t"))
			must(t, command(t, skopeo, "copy", "docker-archive:"+archive, "oci:"+layout+":t"))
			if tree := compareArchive(t, archive, layout); tree["plain/null"] == nil || tree["setgid/su-again"] == nil {
				t.Error("files of the image are missing")
			}
		})
	}
}

// TestTreesOfKo builds a program of this repository onto an image whose layers have what a file system can have. In the base
// /var/run is a link, as in most images.
func TestTreesOfKo(t *testing.T) {
	require.Root(t)
	program := require.Given(t, "KO", "program of github.com/google/ko")
	registry := &imagetest.Registry{Intercept: func(w http.ResponseWriter, r *http.Request) bool { return r.URL.Path == "/v2/" }}
	server := httptest.NewServer(registry)
	t.Cleanup(server.Close)
	root := t.TempDir()
	fill(t, root)
	must(t, os.MkdirAll(filepath.Join(root, "var"), 0o755))
	must(t, os.Symlink("../plain", filepath.Join(root, "var/run")))
	base, err := os.ReadFile(tarOf(t, root, "-S"))
	must(t, err)
	registry.Push("base", "1", imageOf(t, [][]byte{base}, nil))
	dir, err := os.MkdirTemp("", "berth-ko-") // ko takes the path for a reference, which has no capitals
	must(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	host, layout := strings.TrimPrefix(server.URL, "http://"), filepath.Join(dir, "layout")
	cmd := exec.CommandContext(t.Context(), program, "build", "--push=false", "--oci-layout-path="+layout, "--sbom=none", "./examples/hello")
	cmd.Dir = "../.."
	cmd.Env = append(os.Environ(), "KO_DEFAULTBASEIMAGE="+host+"/base:1", "KO_DOCKER_REPO="+host+"/out", "GOFLAGS=-mod=readonly -buildvcs=false")
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil {
		t.Fatalf("ko: %v: %s", err, out.String())
	}
	must(t, command(t, require.Binary(t, "skopeo"), "copy", "oci:"+layout, "oci:"+layout+"-tagged:t"))
	if tree := compareLayout(t, layout+"-tagged"); tree["ko-app/hello"] == nil || tree["plain/su"] == nil {
		t.Error("files of the image are missing")
	}
}
