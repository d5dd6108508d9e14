package runtimeconf

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/golden"
	"github.com/berthrun/berth/internal/provision/node/nodefile"
	"github.com/berthrun/berth/internal/registries"
)

func yes() *bool { b := true; return &b }

// models are a node with the fewest settings, and a node with all settings.
func models() map[string]Model {
	return map[string]Model{
		"least": {SystemdCgroup: true, CNI: CNI{ConfDir: "/etc/cni/net.d", BinDirs: []string{"/opt/cni/bin"}}},
		"full": {
			Socket: "/run/own/runtime.sock", Root: "/data/runtime", State: "/run/own", LogLevel: "debug",
			SandboxImage: "registry.example/pause:3.10.1", Snapshotter: "native",
			SystemdCgroup: true, SELinux: true, CDISpecDirs: []string{"/etc/cdi", "/var/run/cdi"},
			Handlers: []nodefile.Handler{
				{Name: "crun", Type: "oci", Path: "/usr/bin/crun", Root: "/run/crun", PrivilegedWithoutHost: true},
				{
					Name: "kata", Type: "shim", RuntimeType: "io.containerd.kata.v2", Path: "/opt/kata/bin/containerd-shim-kata-v2",
					ConfigPath: "/opt/kata/configuration.toml", PodAnnotations: []string{"io.katacontainers.*"}, Snapshotter: "overlayfs",
				},
				{
					Name: "gvisor", Type: "shim", RuntimeType: "io.containerd.runsc.v1", ConfigPath: "/etc/runsc.toml", Sandbox: "runtime",
					Options: map[string]any{"TypeUrl": "io.containerd.runsc.v1.options"},
				},
			},
			DefaultHandler: "crun",
			CNI: CNI{
				ConfDir: "/etc/own/net.d", BinDirs: []string{"/opt/cni/bin", "/usr/lib/cni"}, Template: "/etc/own/template.json",
				Builtin: true, Subnets: []string{"10.1.0.0/24", "fd00:1::/64"}, MTU: 1450,
			},
			RegistryDir: "/etc/own/certs.d",
			Registries:  described(),
			Logs:        &nodefile.Logs{MaxSize: "10Mi", MaxFile: 5},
			NRI: nodefile.NRI{
				Enabled: yes(), Socket: "/run/own/nri.sock",
				RegistrationTimeout: nodefile.Duration(7 * time.Second), RequestTimeout: nodefile.Duration(1500 * time.Millisecond),
			},
		},
	}
}

// of returns the settings of m that this version of containerd supports. 1.6 has one snapshotter
// for all handlers, and no NRI.
func of(m Model, v nodefile.Version) Model {
	m.Version = v
	if v.Less(1, 7) {
		m.NRI = nodefile.NRI{}
		m.Handlers = slices.Clone(m.Handlers)
		for i := range m.Handlers {
			m.Handlers[i].Snapshotter = ""
		}
	}
	return m
}

func described() []registries.Registry {
	return []registries.Registry{
		{
			Host: "docker.io", Access: registries.Access{CA: []string{"/etc/ssl/hub.pem"}, Credentials: "/etc/berth/hub.auth"},
			Mirrors: []registries.Mirror{
				{URL: "https://first.example", Capabilities: []string{"pull", "resolve"}, Access: registries.Access{CA: []string{"/etc/ssl/a.pem", "/etc/ssl/b.pem"}, ClientCert: "/etc/ssl/c.cert", ClientKey: "/etc/ssl/c.key"}},
				{URL: "http://a-second.example:5000/hub", Capabilities: []string{"pull"}, OverridePath: true, Access: registries.Access{Credentials: "/etc/berth/second.auth"}},
			},
		},
		{Host: "registry.example:5000", Server: "http://registry.example:5000", Access: registries.Access{SkipVerify: true}},
	}
}

func TestContainerd(t *testing.T) {
	for _, version := range []string{"1.6.20", "1.7.27", "2.0.5", "2.2.0", "2.3.0", "2.4.2"} {
		for name, m := range models() {
			v, err := nodefile.ParseVersion(version)
			if err != nil {
				t.Fatal(err)
			}
			m = of(m, v)
			text, err := Containerd(m)
			if err != nil {
				t.Fatalf("%s %s: %v", version, name, err)
			}
			golden.Check(t, "testdata/"+fmt.Sprintf("containerd-%s-%s.toml", version, name), text)
		}
	}
}

func TestContainerdRefusesWhatAVersionCannotDo(t *testing.T) {
	old := Model{Version: nodefile.Version{Major: 1, Minor: 5}}
	if _, err := Containerd(old); !errors.Is(err, errs.Unsupported) {
		t.Errorf("1.5: %v", err)
	}
	nri := Model{Version: nodefile.Version{Major: 1, Minor: 6}, NRI: nodefile.NRI{Enabled: yes()}}
	if _, err := Containerd(nri); !errors.Is(err, errs.Unsupported) {
		t.Errorf("NRI in 1.6: %v", err)
	}
}

func TestOthers(t *testing.T) {
	for name, m := range models() {
		crio, err := CRIO(m)
		if err != nil {
			t.Fatal(err)
		}
		golden.Check(t, "testdata/"+"crio-"+name+".conf", crio)
		berth, err := Berth(m)
		if err != nil {
			t.Fatal(err)
		}
		golden.Check(t, "testdata/"+"berth-"+name+".toml", berth)
		for _, version := range []string{"20.10.24", "27.5.0", "28.5.1"} {
			m.Version, _ = nodefile.ParseVersion(version)
			docker, err := Docker(m)
			if err != nil {
				t.Fatal(err)
			}
			text, err := json.MarshalIndent(docker, "", "  ")
			if err != nil {
				t.Fatal(err)
			}
			golden.Check(t, "testdata/"+fmt.Sprintf("docker-%s-%s.json", version, name), string(text)+"\n")
		}
	}
}

func TestRegistries(t *testing.T) {
	credentials := map[string]string{"/etc/berth/hub.auth": "user:pass word\n", "/etc/berth/second.auth": "Bearer token"}
	all := append(described(), registries.Registry{
		Host: "*", Mirrors: []registries.Mirror{{URL: "https://all.example", Capabilities: []string{"pull", "resolve"}, Access: registries.Access{SkipVerify: true, ClientCert: "/etc/ssl/both.pem"}}},
	})
	files, err := Hosts(all, credentials)
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	for _, file := range files {
		fmt.Fprintf(&b, "=== %s secret=%v\n%s", file.Dir, file.Secret, file.Content)
	}
	golden.Check(t, "testdata/"+"hosts.txt", b.String())
	conf, err := CRIORegistries(described())
	if err != nil {
		t.Fatal(err)
	}
	links, err := CertLinks("/etc/containers/certs.d", described())
	if err != nil {
		t.Fatal(err)
	}
	for _, link := range links {
		conf += fmt.Sprintf("# %s -> %s\n", link.Path, link.Target)
	}
	golden.Check(t, "testdata/"+"crio-registries.conf", conf)
}

// TestCertLinksOfOneHost: several entries for one host are merged.
func TestCertLinksOfOneHost(t *testing.T) {
	list := []registries.Registry{
		{Host: "a", Access: registries.Access{CA: []string{"/1"}, ClientCert: "/c"}, Mirrors: []registries.Mirror{{URL: "https://m/x", Access: registries.Access{CA: []string{"/2"}}}}},
		{Host: "b", Mirrors: []registries.Mirror{{URL: "https://m/y", Access: registries.Access{CA: []string{"/2", "/3"}, ClientCert: "/c", ClientKey: "/k"}}}},
	}
	links, err := CertLinks("/d", list)
	if err != nil {
		t.Fatal(err)
	}
	want := []CertFile{
		{"/d/a/ca-0.crt", "/1"},
		{"/d/a/client.cert", "/c"},
		{"/d/a/client.key", "/c"},
		{"/d/m/ca-0.crt", "/2"},
		{"/d/m/ca-1.crt", "/3"},
		{"/d/m/client.cert", "/c"},
		{"/d/m/client.key", "/k"},
	}
	if diff := cmp.Diff(want, links); diff != "" {
		t.Error(diff)
	}
	list[0].Mirrors[0].ClientCert = "/other"
	if _, err := CertLinks("/d", list); !errors.Is(err, errs.Invalid) || !strings.Contains(err.Error(), "m has two client certificates, /other and /c") {
		t.Errorf("two client certificates: %v", err)
	}
}

func TestHostsCredentials(t *testing.T) {
	reg := []registries.Registry{{Host: "a", Access: registries.Access{Credentials: "/c"}}}
	for content, kind := range map[string]error{"no colon": errs.Invalid, "a:b\nc:d": errs.Invalid, "": errs.Invalid} {
		if _, err := Hosts(reg, map[string]string{"/c": content}); !errors.Is(err, kind) || strings.Contains(err.Error(), "no colon") {
			t.Errorf("%q: %v", content, err)
		}
	}
	if _, err := Hosts(reg, nil); !errors.Is(err, errs.NotFound) {
		t.Errorf("no file: %v", err)
	}
	docker := `{"auths": {"a": {"auth": "dTpw"}, "m:5000": {"auth": "eDp5"}}}`
	reg[0].Mirrors = []registries.Mirror{{URL: "http://m:5000", Access: registries.Access{Credentials: "/c"}}}
	files, err := Hosts(reg, map[string]string{"/c": docker})
	if err != nil || !strings.Contains(files[0].Content, "Basic dTpw") || !strings.Contains(files[0].Content, "Basic eDp5") {
		t.Errorf("docker's file: %v, %v", files, err)
	}
	reg[0].Mirrors[0].URL = "http://other"
	if _, err := Hosts(reg, map[string]string{"/c": docker}); !errors.Is(err, errs.NotFound) || !strings.Contains(err.Error(), "registries[0].mirrors[0].credentials: /c has none for other; want one beside those for a, m:5000") {
		t.Errorf("docker's file without a host: %v", err)
	}
}

func TestAdditions(t *testing.T) {
	m := Model{Version: nodefile.Version{Major: 2, Minor: 4}, Additions: map[string]any{
		`plugins."io.containerd.cri.v1.images".max_concurrent_downloads`: 9,
		`plugins."io.containerd.cri.v1.runtime".enable_selinux`:          true,
		"oom_score": -100,
		"new.table": map[string]any{"a": []any{"b"}},
	}}
	text, err := Containerd(m)
	if err != nil {
		t.Fatal(err)
	}
	golden.Check(t, "testdata/"+"additions.toml", text)
	m.Additions = map[string]any{"version.x": 1}
	if _, err := Containerd(m); !errors.Is(err, errs.Invalid) || !strings.Contains(err.Error(), "version is not a table") {
		t.Errorf("a path through a value: %v", err)
	}
}
