//go:build integration

package integration

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	imagespec "github.com/opencontainers/image-spec/specs-go/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/image/imagetest"
	"github.com/berthrun/berth/internal/sys/sysmount"
	"github.com/berthrun/berth/test/harness"
)

// planted makes secrets, and looks for them.
type planted struct{ n int }

// next is one more secret.
func (p *planted) next() string {
	p.n++
	return fmt.Sprintf("Pl4nt3d%02dS3cr3t", p.n)
}

// unpacked reads a bundle, by the paths below its directory.
func unpacked(t *testing.T, file string) map[string]string {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	zipped, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{}
	for entries := tar.NewReader(zipped); ; {
		header, err := entries.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(entries)
		if err != nil {
			t.Fatal(err)
		}
		_, name, _ := strings.Cut(header.Name, "/")
		files[name] = string(content)
	}
}

// manifestOf returns the sources that a bundle lacks, with the reasons.
func manifestOf(t *testing.T, files map[string]string) map[string]string {
	t.Helper()
	var manifest struct {
		Missing []struct{ Source, Why string }
	}
	if err := json.Unmarshal([]byte(files["manifest.json"]), &manifest); err != nil {
		t.Fatalf("%v in %q", err, files["manifest.json"])
	}
	missing := map[string]string{}
	for _, lacks := range manifest.Missing {
		missing[lacks.Source] = lacks.Why
	}
	return missing
}

// TestDebugBundle plants secrets wherever a node has some and finds none in a bundle, of a daemon that runs and of one
// that is down. The bundle has what it is for, belongs to its owner alone, and overwrites nothing.
func TestDebugBundle(t *testing.T) {
	var secrets planted
	dir := t.TempDir()
	opts := plantInFiles(t, dir, &secrets)
	b := harness.Start(t, opts)
	pod := plantInPod(b, &secrets)
	log := plantInLog(t, dir, &secrets)
	plantInProcess(t, dir, &secrets)
	plantInMount(t, dir, &secrets)
	plantInRequests(b, pod, &secrets)
	if secrets.n < 30 {
		t.Errorf("only %d secrets are planted", secrets.n)
	}
	bundle := func(name string) map[string]string {
		file := filepath.Join(dir, name)
		out := b.MustCLI("debug", "bundle", "-o", file, "--config", filepath.Join(b.Dir, "berth.toml"), "--log", log, "--log", filepath.Join(b.Dir, "berth.log"))
		if !strings.Contains(out, file) {
			t.Errorf("the command prints %q", out)
		}
		if info, err := os.Stat(file); err != nil || info.Mode() != 0o600 {
			t.Errorf("the bundle is %v, %v", info, err)
		}
		return unpacked(t, file)
	}
	files := bundle("up.tar.gz")
	for name, want := range map[string]string{
		"daemon/info.json": "RuntimeReady", "daemon/jobs.json": "jobs", "daemon/pods.json": "planted", "daemon/metrics.txt": "berth_build_info",
		"daemon/goroutines.txt": "goroutine 1 [", "config/berth.toml": "[defaults]", "records/sandboxes/" + pod.Sandbox + ".json": "planted",
		"records/containers/" + pod.Container + ".json": "DB_URL", "host/proc/self/mountinfo": b.State, "host/disks.txt": b.Root,
		"host/processes.txt": "berth serve", "logs/1-app.log": "an ordinary line", "logs/2-berth.log": "berth is ready",
	} {
		if !strings.Contains(files[name], want) {
			t.Errorf("%s (%d bytes) has no %q", name, len(files[name]), want)
		}
	}
	if !strings.HasPrefix(files["daemon/heap.pprof"], "\x1f\x8b") {
		t.Error("there is no profile of the heap")
	}
	missing := manifestOf(t, files)
	for _, source := range []string{"info", "jobs", "pods", "records", "goroutines", "configuration"} {
		if why := missing[source]; why != "" {
			t.Errorf("%s is missing: %s", source, why)
		}
	}
	findNone(t, "up", files, secrets.n)

	b.StopDaemon()
	down := bundle("down.tar.gz")
	if missing := manifestOf(t, down); !strings.Contains(missing["daemon"], "does not answer") || missing["records"] != "" {
		t.Errorf("of a daemon that is down, the manifest lacks %q", missing)
	}
	if !strings.Contains(down["records/tombstones/"+pod.Container+".json"]+down["logs/2-berth.log"], pod.Container[:12]) {
		t.Error("the bundle of a daemon that is down says nothing of the pod")
	}
	findNone(t, "down", down, secrets.n)

	before, err := os.Stat(filepath.Join(dir, "down.tar.gz"))
	if err != nil {
		t.Fatal(err)
	}
	if _, stderr, err := b.CLI("debug", "bundle", "-o", filepath.Join(dir, "down.tar.gz")); err == nil || !strings.Contains(stderr, "is not overwritten") {
		t.Errorf("a bundle was overwritten: %v, %s", err, stderr)
	}
	if after, err := os.Stat(filepath.Join(dir, "down.tar.gz")); err != nil || !after.ModTime().Equal(before.ModTime()) || after.Size() != before.Size() {
		t.Errorf("the bundle has changed: %v", err)
	}
}

// findNone requires that no file has a secret, also not in another encoding.
func findNone(t *testing.T, which string, files map[string]string, n int) {
	t.Helper()
	secrets := planted{}
	for range n {
		secret := secrets.next()
		for _, form := range []string{secret, strings.ToLower(secret), base64Core(secret, 0), base64Core(secret, 1), base64Core(secret, 2)} {
			for name, content := range files {
				if at := strings.Index(content, form); at >= 0 {
					t.Errorf("%s: %s has %s: ...%s...", which, name, secret, content[max(at-80, 0):min(at+len(form)+20, len(content))])
				}
			}
		}
	}
}

// plantInFiles has a configuration with secrets.
func plantInFiles(t *testing.T, dir string, secrets *planted) harness.Options {
	t.Helper()
	opts := fakeCNI(t, `test "$CNI_COMMAND" = ADD && echo '`+fakeResult+`'; exit 0`)
	registries := filepath.Join(dir, "registries")
	conflist := filepath.Join(dir, "net.d", "10-fake.conflist")
	files := map[string]string{
		filepath.Join(registries, "r.example.org", "hosts.toml"): "# password = \"" + secrets.next() + "\"\nserver = \"https://joe:" + secrets.next() + "@r.example.org\"\n" +
			"[host.\"https://m.example.org\"]\n  capabilities = [\"pull\"]\n  [host.\"https://m.example.org\".header]\n    x-custom = [\"" + secrets.next() + "\"]\n    authorization = \"Basic " + secrets.next() + "\"\n",
		conflist: `{"cniVersion":"1.0.0","name":"fake","plugins":[{"type":"fake","apiToken":"` + secrets.next() + `","etcd":{"password":"` + secrets.next() + `"},"env":["A=` + secrets.next() + `"]}]}`,
	}
	for name, content := range files {
		if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	_, bins, _ := strings.Cut(opts.Config, "bin_dirs")
	opts.Config = fmt.Sprintf("[network]\nconf_dir = %q\nbin_dirs%s[image]\nregistry_config_dirs = [%q]\n[defaults]\nenv = [\"FROM_CONFIG=%s\"]\n[debug]\nshow_secrets = true\n",
		filepath.Dir(conflist), bins, registries, secrets.next())
	return opts
}

// plantInPod runs a pod whose request and image have secrets.
func plantInPod(b *harness.Berth, secrets *planted) harness.Pod {
	b.T.Helper()
	spec := imagetest.Spec{
		Name: "docker.io/library/planted:1", Env: []string{"PATH=/bin", "FROM_IMAGE=" + secrets.next()}, Labels: map[string]string{"db-password": secrets.next()},
		History: []imagespec.History{{CreatedBy: "RUN curl -H 'X-Key: " + secrets.next() + "' https://example.org", EmptyLayer: true}},
		Files:   []imagetest.File{{Path: "/bin/app", Content: []byte("#!/bin/sh\n"), Mode: 0o755}},
	}
	var archive bytes.Buffer
	if err := imagetest.Archive(&archive, spec); err != nil {
		b.T.Fatal(err)
	}
	if _, err := b.Import(&archive); err != nil {
		b.T.Fatal(err)
	}
	config := b.Sandbox("planted")
	config.Annotations = map[string]string{
		"example.org/api-token":                            secrets.next(),
		"kubectl.kubernetes.io/last-applied-configuration": `{"spec":{"containers":[{"env":[{"name":"A","value":"` + secrets.next() + `"}]}]}}`,
		"example.org/settings":                             `{"registry":{"auth":"` + secrets.next() + `"}}`,
		"example.org/database":                             "postgres://app:" + secrets.next() + "@db.example.org/app",
	}
	config.Labels["example.org/client-secret"] = secrets.next()
	pod := harness.Pod{Config: config, Sandbox: b.RunSandbox(config)}
	with := b.Container("c", "export TOKEN="+secrets.next()+"; sleep 1000")
	with.Args = []string{"--db-password=" + secrets.next(), "--key", secrets.next(), secrets.next()}
	with.Envs = []*runtimeapi.KeyValue{{Key: "DB_URL", Value: []byte(secrets.next())}, {Key: "AWS_SECRET_ACCESS_KEY", Value: []byte(secrets.next())}}
	with.Annotations = map[string]string{"example.org/password": secrets.next()}
	pod.Container = b.Create(pod.Sandbox, with, config)
	b.StartContainer(pod.Container)
	declared := b.Container("d", "true")
	declared.Image = &runtimeapi.ImageSpec{Image: spec.Name}
	b.Create(pod.Sandbox, declared, config)
	return pod
}

// plantInLog writes a log as a program with bad manners does.
func plantInLog(t *testing.T, dir string, secrets *planted) string {
	t.Helper()
	log := filepath.Join(dir, "app.log")
	lines := []string{
		"an ordinary line",
		"DB_PASSWORD=" + secrets.next() + " was read",
		"Authorization: Bearer " + secrets.next() + secrets.next(),
		`{"level":"info","password":"` + secrets.next() + `"}`,
		"-----BEGIN PRIVATE KEY-----", secrets.next(), "-----END PRIVATE KEY-----",
		"Get https://joe:" + secrets.next() + "@r.example.org/v2/: EOF",
		"exec: tool --token " + secrets.next() + " serve",
		"pushed with ghp_" + secrets.next() + "abcdef",
		"GET https://s.example.org/x?X-Amz-Signature=" + secrets.next() + "&a=b",
	}
	if err := os.WriteFile(log, []byte(strings.Join(lines, "\n")+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return log
}

// plantInProcess runs a process whose flags are taken along, with passwords in them.
func plantInProcess(t *testing.T, dir string, secrets *planted) {
	t.Helper()
	program := filepath.Join(dir, "kubelet")
	if err := os.WriteFile(program, []byte("#!/bin/sh\nread end\n"), 0o700); err != nil { //nolint:gosec // a program
		t.Fatal(err)
	}
	process := exec.CommandContext(t.Context(), program, "--bootstrap-token="+secrets.next(), "--register-password", secrets.next())
	end, err := process.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := process.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		end.Close()
		process.Wait()
	})
}

// plantInMount mounts something whose source has a password, as those of some file systems have.
func plantInMount(t *testing.T, dir string, secrets *planted) {
	t.Helper()
	target := filepath.Join(dir, "share")
	if err := os.Mkdir(target, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mount("https://joe:"+secrets.next()+"@files.example.org/share", target, "tmpfs", 0, "size=4k"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := sysmount.Detach(target); err != nil {
			t.Error(err)
		}
	})
}

// plantInRequests makes requests with secrets, which the daemon may log.
func plantInRequests(b *harness.Berth, pod harness.Pod, secrets *planted) {
	b.T.Helper()
	for _, auth := range []*runtimeapi.AuthConfig{
		{Username: "joe", Password: secrets.next()}, {IdentityToken: secrets.next()}, {RegistryToken: secrets.next()},
	} {
		if _, err := b.Images.PullImage(b.Ctx(), &runtimeapi.PullImageRequest{Image: &runtimeapi.ImageSpec{Image: "127.0.0.1:1/absent:1"}, Auth: auth}); err == nil {
			b.T.Error("an image of no registry was pulled")
		}
	}
	b.Exec(pod.Container, "echo --password "+secrets.next()+" > /dev/null")
}

// TestDebugBundleInterrupted: nothing is left of a bundle that Ctrl-C ends.
func TestDebugBundleInterrupted(t *testing.T) {
	b := harness.Start(t, harness.Options{NoImages: true})
	dir := t.TempDir()
	cmd := exec.CommandContext(t.Context(), filepath.Join(b.Bin, "berth"), "debug", "bundle", "-o", filepath.Join(dir, "x.tar.gz"), "--cpu", "1m")
	cmd.Env = append(os.Environ(), "BERTH_ENDPOINT=unix://"+b.Socket)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	b.Await("the file to be open", func() bool {
		links, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", cmd.Process.Pid))
		if err != nil {
			t.Fatal(err)
		}
		for _, link := range links {
			if target, err := os.Readlink(link); err == nil && strings.HasPrefix(target, dir) {
				return true
			}
		}
		return false
	})
	if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err == nil {
		t.Error("the command has succeeded")
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("%v is left, %v", left, err)
	}
}

// base64Core is what base64 has of a text at an offset of so many bytes modulo three, without the ends, which depend on
// what stands beside it.
func base64Core(text string, offset int) string {
	encoded := base64.StdEncoding.EncodeToString([]byte(strings.Repeat("x", offset) + text))
	first, last := 0, len(encoded)-4
	if offset > 0 {
		first = 4
	}
	return encoded[first:last]
}
