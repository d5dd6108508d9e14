package facts

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/provision"
	"github.com/berthrun/berth/internal/provision/kubelet"
	"github.com/berthrun/berth/internal/provision/node/nodefile"
	"github.com/berthrun/berth/internal/provision/provisiontest"
)

func TestDetect(t *testing.T) {
	files := map[string]string{
		"/etc/os-release":          "ID=rocky\nVERSION_ID=9.5\n",
		"/usr/lib/systemd/systemd": "", "/sys/fs/selinux/enforce": "1", "/usr/bin/nvidia-ctk": "",
		"/etc/berth/hub.auth": "user:password",
	}
	berth := filepath.Join(t.TempDir(), "berth")
	if err := os.WriteFile(berth, []byte("a"), 0o755); err != nil {
		t.Fatal(err)
	}
	host := provisiontest.FileHost{Content: files, OnRun: func([]string) (string, error) {
		return "containerd github.com/containerd/containerd/v2 v2.2.1 abcdef", nil
	}}
	n := load(t, "runtime: {name: containerd, skipInstall: true}\nregistries: [{host: docker.io, credentials: /etc/berth/hub.auth}]\nboot: {enabled: true}\n")
	f, err := Detect(t.Context(), host, n, berth, "/etc/berth/node.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if f.Distro.Family != "rhel" || !f.SELinux || f.NvidiaCTK != "/usr/bin/nvidia-ctk" || f.File != "/etc/berth/node.yaml" {
		t.Errorf("%+v", f)
	}
	if f.Versions["containerd"] != (nodefile.Version{Major: 2, Minor: 2, Patch: 1}) {
		t.Errorf("versions %v", f.Versions)
	}
	if f.Credentials["/etc/berth/hub.auth"] != "user:password" {
		t.Error("credentials were not read")
	}
	if !strings.HasPrefix(f.Berth.Digest, "sha256:") || f.Supervisor.Digest != "" {
		t.Errorf("binaries %+v %+v", f.Berth, f.Supervisor)
	}

	delete(files, "/etc/berth/hub.auth")
	_, err = Detect(t.Context(), host, n, berth, "")
	if !errors.Is(err, errs.NotFound) || !strings.Contains(err.Error(), "/etc/berth/hub.auth") {
		t.Errorf("credentials that are not there: %v", err)
	}
	if got := nodefile.Locate(err, "f", []byte("registries:\n- credentials: /etc/berth/hub.auth\n")); got == nil || !strings.HasPrefix(got.Error(), "f:2:3: registries[0].credentials: ") {
		t.Errorf("credentials that are not there have the place %v", got)
	}
	delete(files, "/usr/lib/systemd/systemd")
	if _, err := Detect(t.Context(), host, n, berth, ""); !errors.Is(err, errs.Unsupported) {
		t.Errorf("no systemd: %v", err)
	}
	files["/etc/os-release"] = "ID=bottlerocket\n"
	if _, err := Detect(t.Context(), host, n, berth, ""); !errors.Is(err, errs.Unsupported) || !strings.Contains(err.Error(), "settings API") {
		t.Errorf("bottlerocket: %v", err)
	}
}

// TestReplacedByItsSocket: a runtime on an unusual socket is drained there.
func TestReplacedByItsSocket(t *testing.T) {
	files := map[string]string{
		"/etc/containerd/config.toml": "version = 2\nroot = \"/data/c\"\n[grpc]\naddress = \"/run/other.sock\"\n",
		kubelet.ConfigFile:            "containerRuntimeEndpoint: unix:///run/other.sock\n",
	}
	host := provisiontest.FileHost{Content: files, OnRun: func([]string) (string, error) { return "", nil }}
	list := detectReplaced(t.Context(), host, load(t, "runtime: {name: berth}\n"))
	if len(list) != 1 || list[0].Endpoint != "unix:///run/other.sock" || list[0].Content != "/data/c/io.containerd.content.v1.content/blobs" {
		t.Errorf("%+v, want containerd on /run/other.sock", list)
	}
}

// TestReplacedEngines: berth's native engine and docker are told apart by berth's configuration, and
// those that a machine ran before stay known.
func TestReplacedEngines(t *testing.T) {
	const (
		kubelets   = "containerRuntimeEndpoint: unix:///run/berth/berth.sock\n"
		overDocker = "engine = 'docker'\n"
		docker     = "runtime: {name: docker, socket: /run/berth/berth.sock}\n"
	)
	for name, c := range map[string]struct {
		files map[string]string
		node  string
		want  []string
	}{
		"native to docker": {map[string]string{kubelet.ConfigFile: kubelets}, docker, []string{"berth: berth.service berth-supervisor.service"}},
		"done":             {map[string]string{kubelet.ConfigFile: kubelets, "/etc/berth/berth.toml": overDocker, OwnDir + "/berth.env": ""}, docker, nil},
		"done, and kept": {
			map[string]string{kubelet.ConfigFile: kubelets, "/etc/berth/berth.toml": overDocker, ReplacedFile: "berth\n"},
			docker,
			[]string{"berth: berth.service berth-supervisor.service"},
		},
		"docker to native": {
			map[string]string{kubelet.ConfigFile: kubelets, "/etc/berth/berth.toml": overDocker},
			"runtime: {name: berth}\n",
			[]string{"docker: berth.service docker.socket docker.service"},
		},
		"docker to containerd, without a kubelet": {
			map[string]string{"/etc/berth/berth.toml": overDocker, OwnDir + "/docker.env": "", OwnDir + "/berth.env": ""},
			"runtime: {name: containerd}\n",
			[]string{"docker: berth.service docker.socket docker.service"},
		},
		"cri-dockerd to docker": {
			map[string]string{kubelet.ConfigFile: "containerRuntimeEndpoint: unix:///var/run/cri-dockerd.sock\n", "/usr/sbin/dockerd": ""},
			docker,
			[]string{"cri-dockerd: cri-docker.socket cri-docker.service"},
		},
		"docker alone":           {map[string]string{OwnDir + "/docker.env": ""}, "runtime: {name: containerd}\n", nil},
		"to docker alone":        {map[string]string{kubelet.ConfigFile: kubelets}, "runtime: {name: docker}\n", nil},
		"containerd to docker":   {map[string]string{OwnDir + "/containerd.env": ""}, docker, []string{"containerd: "}},
		"crio to docker":         {map[string]string{OwnDir + "/crio.env": ""}, docker, []string{"crio: crio.service"}},
		"containerd, for docker": {map[string]string{OwnDir + "/containerd.env": "", "/usr/sbin/dockerd": ""}, "runtime: {name: berth}\n", []string{"containerd: "}},
	} {
		t.Run(name, func(t *testing.T) {
			host := liveFiles{provisiontest.New(), provisiontest.FileHost{Content: c.files}.Files()}
			var got []string
			for _, old := range detectReplaced(t.Context(), host, load(t, c.node)) {
				got = append(got, old.Name+": "+strings.Join(old.Units, " "))
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// liveFiles is a running machine with other files.
type liveFiles struct {
	*provisiontest.Host
	files provision.Files
}

func (h liveFiles) Files() provision.Files { return h.files }

// TestFixedEndpoint: a kubelet that has its endpoint from a program, or from a file in a form that a handover does not change.
func TestFixedEndpoint(t *testing.T) {
	const flag, config = "--container-runtime-endpoint=unix:///run/a.sock", "/etc/kubelet.yaml"
	for name, c := range map[string]struct {
		files map[string]string
		from  string
	}{
		"of a script":            {map[string]string{"/proc/812/cmdline": "/usr/bin/kubelet\x00" + flag}, "process 812"},
		"of its unit":            {map[string]string{"/proc/812/cmdline": "/usr/bin/kubelet\x00" + flag, "/etc/systemd/system/kubelet.service": "[Service]\nExecStart=/usr/bin/kubelet " + flag + "\n"}, ""},
		"of its configuration":   {map[string]string{"/proc/812/cmdline": "/usr/bin/kubelet\x00--config=" + config, config: "  containerRuntimeEndpoint: unix:///run/a.sock\n"}, ""},
		"on a line of its own":   {map[string]string{"/proc/812/cmdline": "/usr/bin/kubelet\x00--config=" + config, config: "containerRuntimeEndpoint:\n  unix:///run/a.sock\n"}, config},
		"that names no endpoint": {map[string]string{"/proc/812/cmdline": "/usr/bin/kubelet\x00--config=" + config, config: "a: b\n"}, ""},
	} {
		host := provisiontest.FileHost{Content: c.files, OnRun: func([]string) (string, error) { return "", nil }}
		k, err := kubelet.Find(host)
		if err != nil {
			t.Fatal(err)
		}
		if got := fixedEndpoint(t.Context(), host, k); got.From != c.from {
			t.Errorf("%s: %+v, want it from %q", name, got, c.from)
		}
	}
}

// TestKubeletBinary: a plan without a kubelet is refused.
func TestKubeletBinary(t *testing.T) {
	for _, dir := range []string{"/usr/bin", "/usr/local/bin"} {
		host := provisiontest.New()
		n := nodefile.Default()
		n.Kubelet.Kubeadm = true
		if _, err := detectKubelet(host.Files(), n); !errors.Is(err, errs.NotFound) {
			t.Errorf("without a kubelet: got %v, want errs.NotFound", err)
		}
		for _, make := range []string{"/usr/local", "/usr/local/bin"} {
			if err := host.Files().Mkdir(make, provision.Attr{Mode: 0o755}); err != nil {
				t.Fatal(err)
			}
		}
		if err := host.Files().Write(dir+"/kubelet", strings.NewReader("#!"), provision.Attr{Mode: 0o755}); err != nil {
			t.Fatal(err)
		}
		found, err := detectKubelet(host.Files(), n)
		if err != nil {
			t.Fatal(err)
		}
		if found != dir+"/kubelet" {
			t.Errorf("found %s in %s", found, dir)
		}
	}
}

// load reads a description, given without its head.
func load(t *testing.T, text string) *nodefile.Node {
	t.Helper()
	n, err := nodefile.Load("test", []byte("apiVersion: berth.run/v1alpha1\nkind: Node\n"+text))
	if err != nil {
		t.Fatal(err)
	}
	return n
}
