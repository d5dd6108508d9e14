package noderuntime

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berthrun/berth/internal/cluster/clustertest"
	"github.com/berthrun/berth/internal/cluster/provider"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/registries"
)

const kindConfig = "version = 2\n[plugins.\"io.containerd.grpc.v1.cri\"]\nsandbox_image = \"pause\"\n"

// TestHostsFiles: mirrors keep their order, and certificates are copied.
func TestHostsFiles(t *testing.T) {
	ca := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(ca, []byte("CERTIFICATE"), 0o600); err != nil {
		t.Fatal(err)
	}
	text := fmt.Sprintf(`registries:
- {host: docker.io, ca: [%q], mirrors: [{url: "https://z.example/v2/dockerhub", overridePath: true}, {url: "http://a.example:5000", skipVerify: true, capabilities: [pull], ca: [%q]}]}
- {host: "*", mirrors: [{url: "http://all.example"}]}
- {host: "r.example:5000", skipVerify: true}
`, ca, ca)
	files, err := HostsFiles("/etc/berth/certs.d", clustertest.Describe(t, text).Nodes[0].Registries)
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, file := range files {
		got[file.Path] = string(file.Content)
	}
	for name, want := range map[string]string{
		"docker.io/ca-0.crt": "CERTIFICATE", "docker.io/ca-1.crt": "CERTIFICATE",
		"docker.io/hosts.toml": `server = "https://registry-1.docker.io"
ca = ["/etc/berth/certs.d/docker.io/ca-0.crt"]

[host."https://z.example/v2/dockerhub"]
capabilities = ["pull", "resolve"]
override_path = true

[host."http://a.example:5000"]
capabilities = ["pull"]
ca = ["/etc/berth/certs.d/docker.io/ca-1.crt"]
skip_verify = true
`,
		"_default/hosts.toml":       "[host.\"http://all.example\"]\ncapabilities = [\"pull\", \"resolve\"]\n",
		"r.example:5000/hosts.toml": "server = \"https://r.example:5000\"\nskip_verify = true\n",
	} {
		if name = "/etc/berth/certs.d/" + name; got[name] != want {
			t.Errorf("%s has\n%s\nwant\n%s", name, got[name], want)
		}
	}
}

// TestHostsFilesWithSecrets: only root can read keys and credentials.
func TestHostsFilesWithSecrets(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"me.cert": "CERTIFICATE", "me.key": "KEY", "both.pem": "BOTH", "hub.auth": "user:pass word\n", "config.json": `{"auths": {"m.example": {"auth": "dTpw"}}}`,
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	text := fmt.Sprintf(`registries:
- {host: docker.io, credentials: %[1]s/hub.auth, mirrors: [{url: "https://m.example", clientCert: %[1]s/me.cert, clientKey: %[1]s/me.key, credentials: %[1]s/config.json}]}
- {host: r.example, clientCert: %[1]s/both.pem}
`, dir)
	files, err := HostsFiles("/certs", clustertest.Describe(t, text).Nodes[0].Registries)
	if err != nil {
		t.Fatal(err)
	}
	want := []provider.File{
		{Path: "/certs/docker.io/client-0.cert", Mode: 0o600, Content: []byte("CERTIFICATE")},
		{Path: "/certs/docker.io/client-1.key", Mode: 0o600, Content: []byte("KEY")},
		{Path: "/certs/docker.io/hosts.toml", Mode: 0o600, Content: []byte(`server = "https://registry-1.docker.io"

[header]
Authorization = "Basic dXNlcjpwYXNzIHdvcmQ="

[host."https://m.example"]
capabilities = ["pull", "resolve"]
client = [["/certs/docker.io/client-0.cert", "/certs/docker.io/client-1.key"]]

[host."https://m.example".header]
Authorization = "Basic dTpw"
`)},
		{Path: "/certs/r.example/client-0.cert", Mode: 0o600, Content: []byte("BOTH")},
		{Path: "/certs/r.example/hosts.toml", Content: []byte("server = \"https://r.example\"\nclient = \"/certs/r.example/client-0.cert\"\n")},
	}
	if diff := cmp.Diff(want, files); diff != "" {
		t.Error(diff)
	}
	none := []registries.Registry{{Host: "other.example", Access: registries.Access{Credentials: filepath.Join(dir, "config.json")}}}
	if _, err := HostsFiles("/certs", none); !errors.Is(err, errs.NotFound) || !strings.Contains(err.Error(), "registries: other.example: credentials: ") || strings.Contains(err.Error(), "dTpw") {
		t.Errorf("credentials of another host: %v", err)
	}
}

func TestDaemonConfig(t *testing.T) {
	net := clustertest.Describe(t, "networking: {ipFamily: dual}\n").Networking
	daemon, err := DaemonConfig(net, "cgroupfs", nil)
	if err != nil || !strings.Contains(daemon, "[network]\nawait_pod_cidr = true\ncluster_subnets = ['10.244.0.0/16', 'fd00:10:244::/56']\nmode = 'builtin'\n\n[runtime]\ncgroup_driver = 'cgroupfs'\nselinux = 'lenient'\n") {
		t.Errorf("%v\n%s", err, daemon)
	}
	net.DisableDefaultCNI = true
	if daemon, err := DaemonConfig(net, "cgroupfs", nil); err != nil || !strings.HasSuffix(daemon, "\n[network]\nmode = 'cni'\n\n[runtime]\ncgroup_driver = 'cgroupfs'\nselinux = 'lenient'\n") || strings.Contains(daemon, "image") {
		t.Errorf("%v\n%s", err, daemon)
	}
}

func TestContainerdConfig(t *testing.T) {
	three := "version = 3\n[plugins.'io.containerd.cri.v1.images']\nsnapshotter = 'native'\n[plugins.'io.containerd.cri.v1.images'.registry]\nconfig_path = '/mine'\n"
	settings := clustertest.Describe(t, "").Settings
	if got, err := ContainerdConfig(three, settings, true); err != nil || got != three {
		t.Errorf("a directory that is told was changed: %v\n%s", err, got)
	}
	if got, err := ContainerdConfig(kindConfig, settings, true); err != nil || !strings.Contains(got, "/etc/containerd/certs.d") {
		t.Errorf("%v\n%s", err, got)
	}
	if read, err := readCRIConfig(three); err != nil || read.Plugins.Three.Snapshotter != "native" {
		t.Errorf("%+v, %v", read, err)
	}
	if _, err := ContainerdConfig("nothing = [", settings, true); !errors.Is(err, errs.Invalid) {
		t.Errorf("%v", err)
	}
}

// TestPatchesOfContainerd: patches with which users of kind configure registries work in nodes of
// berth. The warning names all other patches.
func TestPatchesOfContainerd(t *testing.T) {
	c := clustertest.Describe(t, `registries: [{host: own.example, server: "http://own.example"}]
containerdConfigPatches:
- |
  [plugins."io.containerd.grpc.v1.cri".registry]
    config_path = "/etc/containerd/certs.d:/more/:relative"
  [plugins."io.containerd.grpc.v1.cri".registry.mirrors."localhost:5001"]
    endpoint = ["http://kind-registry:5000"]
  [plugins."io.containerd.grpc.v1.cri".registry.mirrors."own.example"]
    endpoint = ["http://not.example"]
  [debug]
    level = "debug"
`)
	registries, dirs, err := BerthRegistries(c, c.Nodes[0])
	if err != nil || len(registries) != 2 || registries[0].Server != "http://own.example" || registries[1].Mirrors[0].URL != "http://kind-registry:5000" {
		t.Errorf("registries %+v, %v", registries, err)
	}
	if !slices.Equal(dirs, []string{"/more"}) {
		t.Errorf("directories %q", dirs)
	}
	daemon, err := DaemonConfig(c.Networking, "systemd", dirs)
	if err != nil || !strings.Contains(daemon, "[image]\nregistry_config_dirs = ['/etc/berth/certs.d', '/etc/containerd/certs.d', '/etc/docker/certs.d', '/more']") {
		t.Errorf("%v\n%s", err, daemon)
	}
	warnings, err := IgnoredByBerth(c, map[string]string{"KIND_EXPERIMENTAL_CONTAINERD_SNAPSHOTTER": "native"})
	if text := strings.Join(warnings, "\n"); err != nil || !strings.Contains(text, "debug.level") || !strings.Contains(text, `"relative"`) || !strings.Contains(text, "SNAPSHOTTER=native") || strings.Contains(text, "registry") {
		t.Errorf("%v\n%s", err, text)
	}
}
