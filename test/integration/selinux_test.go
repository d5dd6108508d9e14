//go:build integration

package integration

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/berthrun/berth/internal/image/imagetest"
	"github.com/berthrun/berth/internal/require"
	"github.com/berthrun/berth/test/harness"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// The types that policies have for containers.
const (
	confinedPrefix = "system_u:system_r:container_t:s0:c"
	unconfinedType = "spc_t"
	layersLabel    = "system_u:object_r:container_ro_file_t:s0"
)

// startLabelled starts berth on a host that enforces SELinux.
func startLabelled(t *testing.T, opts harness.Options) *fields {
	t.Helper()
	require.Root(t)
	require.SELinux(t)
	return newFields(t, opts, nil)
}

// volume creates a directory whose permissions allow everybody to use it.
func (f *fields) volume(t *testing.T, name string) string {
	t.Helper()
	dir := filepath.Join(f.Dir, name)
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	return dir
}

func mounting(dir string, relabel bool) func(containerConfig) {
	return func(c containerConfig) {
		c.Mounts = []*runtimeapi.Mount{{HostPath: dir, ContainerPath: "/v", SelinuxRelabel: relabel}}
	}
}

// privileged is a container of a privileged sandbox.
func (f *fields) privileged(change func(containerConfig)) func(containerConfig) {
	f.pod(func(c *runtimeapi.PodSandboxConfig) { c.Linux.SecurityContext.Privileged = true })
	return func(c containerConfig) {
		containerSecurity(c).Privileged = true
		change(c)
	}
}

func fileLabel(t *testing.T, path string) string {
	t.Helper()
	value := make([]byte, 256)
	n, err := syscall.Getxattr(path, "security.selinux", value)
	if err != nil {
		t.Fatalf("the label of %s: %v", path, err)
	}
	return strings.TrimRight(string(value[:n]), "\x00")
}

// level is the last part of a label.
func level(label string) string {
	parts := strings.SplitN(label, ":", 4)
	return parts[len(parts)-1]
}

// TestSELinuxKeepsPodsApart: no pod can read another pod's files, even if permissions allow it,
// until the volume is relabelled for it. A privileged pod can read everything.
func TestSELinuxKeepsPodsApart(t *testing.T) {
	f := startLabelled(t, harness.Options{})
	dir := f.volume(t, "one")
	one := f.running(mounting(dir, true))
	label := f.ExecOut(one, sayLabel)
	if !strings.HasPrefix(label, confinedPrefix) {
		t.Errorf("a container's label is %q", label)
	}
	want(t, "its own file", f.ExecOut(one, "umask 0; echo secret >/v/file && cat /v/file"), "secret")
	if got := fileLabel(t, filepath.Join(dir, "file")); level(got) != level(label) {
		t.Errorf("its file is labelled %q, itself %q", got, label)
	}
	second := f.running(mounting(dir, true))
	want(t, "the label of the pod's second container", f.ExecOut(second, sayLabel), label)
	want(t, "the pod's second container", f.ExecOut(second, "cat /v/file"), "secret")

	f.pod(nil)
	other := f.running(mounting(dir, false))
	if got := f.ExecOut(other, sayLabel); !strings.HasPrefix(got, confinedPrefix) || level(got) == level(label) {
		t.Errorf("the other pod's label is %q, the first one's %q", got, label)
	}
	for _, script := range []string{"cat /v/file", "ls /v", "echo x >/v/file", "touch /v/new", "rm -f /v/file"} {
		if got := f.Exec(other, script); got.ExitCode == 0 || !strings.Contains(string(got.Stderr), "Permission denied") {
			t.Errorf("the other pod does %q: code %d, %s%s", script, got.ExitCode, got.Stdout, got.Stderr)
		}
	}
	// Without a requested label it has the host's.
	host := f.volume(t, "host")
	if got := f.Exec(f.running(mounting(host, false)), "ls /v"); got.ExitCode == 0 {
		t.Error("a confined container lists a directory of the host's")
	}

	container := f.running(f.privileged(mounting(dir, false)))
	if got := f.ExecOut(container, sayLabel); !strings.Contains(got, ":"+unconfinedType+":") {
		t.Errorf("a privileged container's label is %q", got)
	}
	want(t, "a privileged container", f.ExecOut(container, "cat /v/file"), "secret")

	// After relabelling it belongs to the next pod, with everything in it.
	f.pod(nil)
	want(t, "a pod whose volume was relabelled", f.ExecOut(f.running(mounting(dir, true)), "cat /v/file"), "secret")
	if got := f.Exec(one, "cat /v/file"); got.ExitCode == 0 {
		t.Errorf("the first pod still reads it: %s", got.Stdout)
	}
}

// TestSELinuxSharedVolumes: if the operator allows it, every pod may use a relabelled volume.
func TestSELinuxSharedVolumes(t *testing.T) {
	f := startLabelled(t, harness.Options{Config: "[runtime]\nselinux_volume_label = \"shared\"\n"})
	dir := f.volume(t, "shared")
	one := f.running(mounting(dir, true))
	want(t, "the first pod", f.ExecOut(one, "echo first >/v/file && cat /v/file"), "first")
	f.pod(nil)
	other := f.running(mounting(dir, true))
	want(t, "the second pod lists", f.ExecOut(other, "ls /v"), "file")
	want(t, "the first pod, after", f.ExecOut(one, "ls /v"), "file")
	want(t, "the volume's label", level(fileLabel(t, dir)), "s0")
}

// TestSELinuxPodRun: the volumes of a pod from a file belong to it alone, as with a kubelet.
func TestSELinuxPodRun(t *testing.T) {
	require.Root(t)
	require.SELinux(t)
	b := harness.Start(t, harness.Options{})
	pod := strings.NewReplacer( // confined pods may not use a directory of the host
		"    - {name: host, hostPath: {path: HOSTDIR, type: DirectoryOrCreate}}\n", "",
		"          ls /host\n", "",
		"        - {name: host, mountPath: /host, readOnly: true}\n", "",
	).Replace(volumesPod)
	if strings.Contains(pod, "host,") {
		t.Fatalf("the host's directory is not taken out of\n%s", pod)
	}
	out, errOut, code := run(t, b, "", "pod", "run", "--rm", "-f", podFile(t, b, "volumes", pod))
	if code != 7 {
		t.Errorf("exit code %d, %s", code, errOut)
	}
	wantVolumes(t, out)
	wantNothing(t, b)
}

// TestSELinuxCategoryRange: sandboxes have different categories of the operator's range, until none
// are left.
func TestSELinuxCategoryRange(t *testing.T) {
	f := startLabelled(t, harness.Options{Config: "[runtime]\nselinux_category_range = 3\n"})
	seen := map[string]bool{}
	for _, pod := range []string{"first", "second", "third"} { // the pairs of c0, c1, c2
		if pod != "first" {
			f.pod(nil)
		}
		seen[level(f.ExecOut(f.running(nil), sayLabel))] = true
	}
	for _, want := range []string{"s0:c0,c1", "s0:c0,c2", "s0:c1,c2"} {
		if !seen[want] {
			t.Errorf("no sandbox has %s: %v", want, seen)
		}
	}
	_, err := f.Runtime.RunPodSandbox(f.Ctx(), &runtimeapi.RunPodSandboxRequest{Config: f.Sandbox("fourth")})
	if err == nil || !strings.Contains(err.Error(), "selinux_options") {
		t.Errorf("one more than there are categories for: %v", err)
	}
}

// TestSELinuxLevelsInAPod: a container with a level of its own can use the files that its pod
// shares with all containers, and so can the others.
func TestSELinuxLevelsInAPod(t *testing.T) {
	f := startLabelled(t, harness.Options{})
	volume := func(c containerConfig) {
		c.Mounts = append(c.Mounts, &runtimeapi.Mount{ContainerPath: "/image", Image: &runtimeapi.ImageSpec{Image: harness.Busybox}, Readonly: true})
	}
	use := func(name string) string {
		return "cat /etc/hosts /etc/hostname /etc/resolv.conf >/dev/null && test -n \"$(ls /image)\" && " +
			"echo 127.0.0.9 more >>/etc/hosts && echo x >/dev/shm/" + name + " && echo used"
	}
	plain := f.running(volume)
	want(t, "before", f.ExecOut(plain, use("before")), "used")
	for _, asked := range []string{"s0:c1,c2", "s0:c3,c4"} {
		id := f.running(func(c containerConfig) {
			volume(c)
			containerSecurity(c).SelinuxOptions = &runtimeapi.SELinuxOption{Level: asked}
		})
		want(t, "its level", level(f.ExecOut(id, sayLabel)), asked)
		want(t, "one at "+asked, f.ExecOut(id, use(asked)), "used")
	}
	want(t, "after", f.ExecOut(plain, use("after")), "used")
}

// TestSELinuxInExecs: an exec has the container's label, also after a restart of berth's processes.
func TestSELinuxInExecs(t *testing.T) {
	f := startLabelled(t, harness.Options{})
	const ofInit = `echo $(tr -d '\0' </proc/1/attr/current)`
	plain := f.running(nil)
	asked := f.running(func(c containerConfig) {
		containerSecurity(c).SelinuxOptions = &runtimeapi.SELinuxOption{Level: "s0:c1,c2"}
	})
	privileged := f.running(f.privileged(func(containerConfig) {}))
	before := map[string]string{}
	check := func(when string) {
		t.Helper()
		for name, id := range map[string]string{"plain": plain, "asked": asked, "privileged": privileged} {
			got := f.ExecOut(id, sayLabel)
			want(t, when+": an exec in "+name, got, f.ExecOut(id, ofInit))
			if before[name] == "" {
				before[name] = got
			}
			want(t, when+": "+name, got, before[name])
		}
	}
	check("started")
	if !strings.HasPrefix(before["plain"], confinedPrefix) || !strings.Contains(before["privileged"], ":"+unconfinedType+":") {
		t.Errorf("labels %v", before)
	}
	want(t, "the level that was asked for", level(before["asked"]), "s0:c1,c2")
	// An exec that is not on its process's first thread cannot set its keyring's label. On a slow
	// machine this affected one exec in ten.
	for range 20 {
		f.ExecOut(plain, "exit 0")
	}
	f.StopDaemon()
	f.StartDaemon()
	harness.Kill(t, f.SupervisorPid())
	f.Await("the supervisor to be back", func() bool { return f.SupervisorPid() != 0 })
	check("after a restart")

	// A new sandbox gets no categories of running ones.
	f.pod(nil)
	if got := f.ExecOut(f.running(nil), sayLabel); level(got) == level(before["plain"]) {
		t.Errorf("two sandboxes have %q", got)
	}
}

// libraryImage imports an image whose shell is dynamically linked, and returns the libraries.
func (f *fields) libraryImage(t *testing.T) (name string, libraries []string) {
	t.Helper()
	shell, err := filepath.EvalSymlinks(require.Binary(t, "bash"))
	if err != nil {
		t.Fatal(err)
	}
	linked, err := exec.Command("ldd", shell).Output()
	if err != nil {
		t.Fatal(err)
	}
	files := []imagetest.File{
		{Path: "/bin/bash", Source: shell, Mode: 0o755},
		{Path: "/bin/cp", Source: require.Binary(t, "busybox"), Mode: 0o755},
		{Path: "/own", Dir: true, Mode: 0o755},
	}
	for _, word := range strings.Fields(string(linked)) {
		if !strings.HasPrefix(word, "/") {
			continue
		}
		source, err := filepath.EvalSymlinks(word)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, imagetest.File{Path: word, Source: source, Mode: 0o755})
		libraries = append(libraries, word)
	}
	name = "docker.io/library/linked:latest"
	archive, err := os.Create(filepath.Join(f.Dir, "linked.tar"))
	if err != nil {
		t.Fatal(err)
	}
	defer archive.Close()
	if err := imagetest.Archive(archive, imagetest.Spec{Name: name, Files: files, Volumes: []string{"/data"}}); err != nil {
		t.Fatal(err)
	}
	if _, err := archive.Seek(0, 0); err != nil {
		t.Fatal(err)
	}
	if _, err := f.Import(archive); err != nil {
		t.Fatal(err)
	}
	return name, libraries
}

// TestSELinuxLayers: a program maps libraries of its image, for which the layers themselves need a
// label, and libraries that it has written.
func TestSELinuxLayers(t *testing.T) {
	f := startLabelled(t, harness.Options{})
	name, libraries := f.libraryImage(t)
	linked := func(script string) func(containerConfig) {
		return func(c containerConfig) {
			c.Image = &runtimeapi.ImageSpec{Image: name}
			c.Command = []string{"/bin/bash", "-c", script}
		}
	}
	want(t, "a linked program", f.says(t, "", linked("echo ran")), "ran")
	copied := "/bin/cp /bin/bash " + strings.Join(libraries, " ") + " /own/ && LD_LIBRARY_PATH=/own /own/bash -c 'echo copied'"
	want(t, "one that the container wrote, with its libraries", f.says(t, "", linked(copied)), "copied")

	written := "echo written >/data/file && read -r line </data/file && echo $line"
	want(t, "a volume that the image declares", f.says(t, "", linked(written)), "written")

	layers := 0
	err := filepath.WalkDir(filepath.Join(f.Root, "images"), func(path string, entry os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.Name() == "containers" { // the files that they wrote have their own labels
			return filepath.SkipDir
		}
		if entry.Name() == "bash" {
			layers++
			want(t, path, fileLabel(t, path), layersLabel)
		}
		return nil
	})
	if err != nil || layers == 0 {
		t.Errorf("%d layers have the shell, %v", layers, err)
	}
	// A store without the label is labelled at the next start.
	f.StopDaemon()
	store := filepath.Join(f.Root, "images")
	if out, err := exec.Command("chcon", "-R", "-t", "var_lib_t", store).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	f.StartDaemon()
	want(t, "the store", fileLabel(t, store), layersLabel)
	want(t, "a linked program, after", f.says(t, "", linked("echo ran")), "ran")
}
