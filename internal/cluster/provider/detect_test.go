package provider

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"

	"github.com/berthrun/berth/internal/cluster/config"
	"github.com/berthrun/berth/internal/cluster/plan"
	"github.com/berthrun/berth/internal/cluster/provider/command"
	"github.com/berthrun/berth/internal/errs"
)

func TestFind(t *testing.T) {
	const podman, docker, nerdctl = "podman version 4.3.1", "Docker version 20.10.24+dfsg1, build 297e128", "nerdctl version 1.7.6"
	const down, old = "its daemon is down", "it is too old"
	for name, test := range map[string]struct {
		there     map[string]string
		broken    map[string]error
		flag, env string
		first     bool
		want      string
		skipped   int
		kind      error
		says      []string
	}{
		"all":            {there: map[string]string{"podman": podman, "docker": docker, "nerdctl": nerdctl}, want: "docker"},
		"no docker":      {there: map[string]string{"podman": podman, "nerdctl": nerdctl}, want: "nerdctl"},
		"podman":         {there: map[string]string{"podman": podman}, want: "podman"},
		"podman-docker":  {there: map[string]string{"podman": podman, "docker": podman}, want: "podman"},
		"finch":          {there: map[string]string{"finch": "finch version v1.4.0"}, want: "finch"},
		"flag":           {there: map[string]string{"podman": podman, "docker": docker}, flag: "podman", env: "docker", want: "podman"},
		"env":            {there: map[string]string{"podman": podman, "docker": docker}, env: "podman", want: "podman"},
		"none":           {kind: errs.Unsupported, says: []string{"failed to detect any supported node provider: none of docker, nerdctl, finch, nerdctl.lima, podman"}},
		"absent":         {there: map[string]string{"docker": docker}, flag: "podman", kind: errs.Unsupported, says: []string{"no program podman"}},
		"nobody's":       {flag: "lxc", kind: errs.Invalid, says: []string{`"lxc"`}},
		"nobody's (env)": {there: map[string]string{"docker": docker}, env: "lxc", kind: errs.Invalid, says: []string{`"lxc"`}},
		"a client alone": {
			there: map[string]string{"podman": podman, "docker": docker}, broken: map[string]error{"docker": fmt.Errorf("%s: %w", down, errs.Unavailable)},
			want: "podman", skipped: 1,
		},
		"a client alone, as kind": {
			there: map[string]string{"podman": podman, "docker": docker}, broken: map[string]error{"docker": fmt.Errorf("%s: %w", down, errs.Unavailable)},
			first: true, kind: errs.Unavailable, says: []string{down, "KIND_EXPERIMENTAL_PROVIDER=podman"},
		},
		"a client that is asked for, as kind": {
			there: map[string]string{"podman": podman, "docker": docker}, broken: map[string]error{"docker": fmt.Errorf("%s: %w", down, errs.Unavailable)},
			first: true, env: "podman", want: "podman",
		},
		"an old one": {
			there: map[string]string{"podman": podman, "docker": docker}, broken: map[string]error{"docker": fmt.Errorf("%s: %w", old, errs.Unsupported)},
			want: "podman", skipped: 1,
		},
		"a client that is asked for": {
			there: map[string]string{"podman": podman, "docker": docker}, broken: map[string]error{"docker": fmt.Errorf("%s: %w", down, errs.Unavailable)},
			flag: "docker", kind: errs.Unavailable, says: []string{down},
		},
		"none that works": {
			there:  map[string]string{"podman": podman, "docker": docker},
			broken: map[string]error{"docker": fmt.Errorf("%s: %w", down, errs.Unavailable), "podman": fmt.Errorf("%s: %w", old, errs.Unsupported)},
			kind:   errs.Unavailable, says: []string{"none of those that are installed", down, old},
		},
		"another fault": {
			there: map[string]string{"podman": podman, "docker": docker}, broken: map[string]error{"docker": fmt.Errorf("what it says is no JSON: %w", errs.Invalid)},
			kind: errs.Invalid, says: []string{"no JSON"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			look := func(tool string) command.Runner {
				if test.there[tool] == "" {
					return nil
				}
				f := newFake()
				f.answers["--version"] = answer{out: test.there[tool] + "\n"}
				return f
			}
			opened := ""
			open := func(tool string) (*CLI, error) {
				if err := test.broken[tool]; err != nil {
					return nil, err
				}
				opened = tool
				return engine(t, tool, newFake()), nil
			}
			e, skipped, err := find(t.Context(), Options{Name: test.flag, FirstInstalled: test.first, Env: map[string]string{"KIND_EXPERIMENTAL_PROVIDER": test.env}}, look, open)
			if opened != test.want || (e == nil) != (test.want == "") || len(skipped) != test.skipped || !errors.Is(err, test.kind) {
				t.Errorf("%q, %v, %v", opened, skipped, err)
			}
			for _, says := range test.says {
				if err == nil || !strings.Contains(err.Error(), says) {
					t.Errorf("%v; want %q", err, says)
				}
			}
		})
	}
}

// The fields that berth reads of docker's info: on other hosts than that of the recording, of a
// client without a server, and of a host without cgroups.
const (
	dockerInfo20 = `{"Driver":"overlay2","DriverStatus":[["Backing Filesystem","xfs"],["Supports d_type","true"]],"MemoryLimit":true,"CPUShares":true,"PidsLimit":true,` +
		`"CgroupDriver":"systemd","CgroupVersion":"2","SecurityOptions":["name=seccomp,profile=default","name=userns","name=cgroupns"],"ServerErrors":null}`
	dockerInfoDown = `{"ID":"","Driver":"","ServerErrors":["Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is the docker daemon running?"],"ClientInfo":{}}`
	dockerInfoNone = `{"CgroupDriver":"none","CgroupVersion":"2","MemoryLimit":true,"PidsLimit":true,"CPUShares":true,"SecurityOptions":["name=seccomp,profile=default","name=rootless"]}`
)

func TestOpen(t *testing.T) {
	podmanInfo43 := string(recorded(t, "podman-4.3-info.json"))
	for name, test := range map[string]struct {
		tool, version string
		info          answer
		env           map[string]string
		want          Facts
		kind          error
		says          string
	}{
		"podman": {
			tool: "podman", version: "podman version 4.3.1", info: answer{out: podmanInfo43},
			want: Facts{Version: "4.3.1", ChosenLinks: true, Memory: true, Pids: true, CPU: true, Driver: "overlay", Filesystem: "extfs", Root: "/var/lib/containers/storage"},
		},
		"docker": {
			tool: "docker", version: "Docker version 20.10.24+dfsg1, build 297e128", info: answer{out: dockerInfo20},
			want: Facts{Version: "20.10.24", Loopback6: true, UserRemap: true, CgroupV2: true, Memory: true, Pids: true, CPU: true, Driver: "overlay2", Filesystem: "xfs"},
		},
		"docker, recorded": {
			tool: "docker", version: "Docker version 20.10.24+dfsg1, build 297e128", info: answer{out: string(recorded(t, "docker-20.10-info.json"))},
			want: Facts{Version: "20.10.24", Loopback6: true, Memory: true, Pids: true, CPU: true, Driver: "overlay2", Filesystem: "extfs", Root: "/var/lib/docker"},
		},
		"rootless docker without cgroups, elsewhere": {
			tool: "docker", version: "Docker version 28.2.2, build e6534b4", info: answer{out: dockerInfoNone}, env: map[string]string{"DOCKER_HOST": "ssh://me@host"},
			want: Facts{Version: "28.2.2", Loopback6: true, Rootless: true, CgroupV2: true, Remote: true},
		},
		"nerdctl": {
			tool: "nerdctl", version: "nerdctl version 2.3.5", info: answer{out: string(recorded(t, "nerdctl-2.3-info.json"))},
			want: Facts{Version: "2.3.5", Memory: true, Pids: true, CPU: true, Driver: "overlayfs"},
		},
		"nerdctl and an old containerd": {
			tool: "nerdctl", version: "nerdctl version 2.3.5", info: answer{out: `{"Driver":"overlayfs","CgroupDriver":"cgroupfs","CgroupVersion":"1","ServerVersion":"1.6.20~ds1"}`},
			kind: errs.Unsupported, says: `containerd version "1.6.20" is too old, please upgrade to "1.7.0" or later`,
		},
		"nerdctl without containerd": {
			tool: "nerdctl", version: "nerdctl version 2.3.5", kind: errs.Unavailable, says: "systemctl start containerd",
			info: answer{err: `time="2026-11-22T17:18:28Z" level=fatal msg="cannot access containerd socket \"/run/containerd/containerd.sock\": no such file or directory"`, failed: true},
		},
		"docker is down": {
			tool: "docker", version: "Docker version 20.10.24, build 297e128", info: answer{out: dockerInfoDown, err: "errors pretty printing info", failed: true},
			kind: errs.Unavailable, says: "systemctl start docker",
		},
		"old podman": {tool: "podman", version: "podman version 2.2.1", kind: errs.Unsupported, says: `podman version "2.2.1" is too old, please upgrade to "3.0.0" or later`},
		"old docker": {tool: "docker", version: "Docker version 19.03.15, build 99e3ed8", kind: errs.Unsupported, says: `too old, please upgrade to "20.10.0"`},
		"no version": {tool: "podman", version: "hello", kind: errs.Unsupported, says: `in "hello"`},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFake()
			f.answers["--version"] = answer{out: test.version + "\n"}
			f.answers["info"] = test.info
			e, err := open(t.Context(), test.tool, f, fstest.MapFS{}, test.env)
			if !errors.Is(err, test.kind) || err != nil && !strings.Contains(err.Error(), test.says) {
				t.Fatalf("%v", err)
			}
			if err == nil {
				if diff := cmp.Diff(test.want, e.Facts()); diff != "" {
					t.Error(diff)
				}
			}
		})
	}
}

func TestCheck(t *testing.T) {
	host := fstest.MapFS{
		"lib/modules/6.1.0/modules.builtin":         {Data: []byte("kernel/net/netfilter/nf-nat.ko\n")},
		"proc/sys/kernel/osrelease":                 {Data: []byte("6.1.0\n")},
		"proc/sys/fs/inotify/max_user_instances":    {Data: []byte("128\n")},
		"proc/sys/fs/inotify/max_user_watches":      {Data: []byte("524288\n")},
		"sys/module/ip_tables/refcnt":               {},
		"sys/module/iptable_nat/refcnt":             {},
		"sys/module/ip6_tables/refcnt":              {},
		"sys/module/ip6table_nat/parameters/absent": {},
	}
	withSystemd := maps.Clone(host)
	withSystemd["run/systemd/system"] = &fstest.MapFile{Mode: fs.ModeDir}
	whole := Facts{CgroupV2: true, Memory: true, Pids: true, CPU: true}
	rootless := whole
	rootless.Rootless = true
	undelegated := rootless
	undelegated.Pids = false
	v1 := rootless
	v1.CgroupV2 = false
	remote := whole
	remote.Remote = true
	for name, test := range map[string]struct {
		facts Facts
		nodes int
		host  fstest.MapFS
		want  []string // parts of problem and fix
		fatal int
	}{
		"fine":        {facts: whole, nodes: 2, host: host},
		"many":        {facts: whole, nodes: 3, host: host, want: []string{"128 inotify instances, and 3 nodes take about 192", "sysctl -w fs.inotify.max_user_instances=512"}},
		"rootless":    {facts: rootless, nodes: 1, host: host, want: []string{"module overlay is not loaded", "sudo modprobe overlay"}, fatal: 1},
		"undelegated": {facts: undelegated, nodes: 1, host: host, want: []string{`requires setting systemd property "Delegate=yes"`, "daemon-reload", "overlay", "modprobe"}, fatal: 2},
		"v1":          {facts: v1, nodes: 1, host: host, want: []string{"with rootless provider requires cgroup v2", "systemd.unified_cgroup_hierarchy=1", "overlay", "modprobe"}, fatal: 2},
		"bare":        {facts: whole, nodes: 1, host: fstest.MapFS{}, want: []string{"/lib/modules does not exist", "mkdir -p /lib/modules"}},
		"reboot":      {facts: whole, nodes: 1, host: withSystemd, want: []string{"podman-restart.service is not enabled", "systemctl enable podman-restart.service"}},
		"remote":      {facts: remote, nodes: 100, host: fstest.MapFS{}},
	} {
		t.Run(name, func(t *testing.T) {
			e := engine(t, "podman", newFake())
			e.facts, e.host = test.facts, test.host
			found := e.Check(test.nodes)
			if len(found)*2 != len(test.want) {
				t.Fatalf("%v", found)
			}
			fatal := 0
			for i, f := range found {
				if !strings.Contains(f.Evidence, test.want[2*i]) || !strings.Contains(f.Fix, test.want[2*i+1]) {
					t.Errorf("%v, want %q and %q", f, test.want[2*i], test.want[2*i+1])
				}
				if f.Fatal() {
					fatal++
				}
			}
			if fatal != test.fatal {
				t.Errorf("%d are fatal: %v", fatal, found)
			}
		})
	}
}

// TestReadContainers: recordings of podman 4.3.1 and docker 20.10 for a running and a stopped
// container, and other formats with the same content.
func TestReadContainers(t *testing.T) {
	ports := []plan.Port{{Listen: "0.0.0.0", Host: 43279, Container: 80, Protocol: config.UDP}, {Listen: "127.0.0.1", Host: 36443, Container: 6443, Protocol: config.TCP}}
	for _, file := range []string{"podman-4.3-running.json", "podman-4.3-stopped.json"} {
		all, err := readContainers(recorded(t, file))
		if err != nil || len(all) != 1 {
			t.Fatalf("%s: %v, %v", file, all, err)
		}
		n := all[0]
		running := file == "podman-4.3-running.json"
		if n.Name != "a-control-plane" || n.Running != running || n.Image != "localhost/node:latest" || n.Labels[plan.LabelCluster] != "a" || n.IPv4.IsValid() != running {
			t.Errorf("%s: %+v", file, n)
		}
		if diff := cmp.Diff(ports, n.Ports); diff != "" {
			t.Errorf("%s: %s", file, diff)
		}
		if at, err := n.Endpoint(6443); err != nil || at.String() != "127.0.0.1:36443" {
			t.Errorf("%v, %v", at, err)
		}
		if _, err := n.Endpoint(80); !errors.Is(err, errs.NotFound) {
			t.Errorf("a port of UDP is no endpoint: %v", err)
		}
	}
	for _, file := range []string{"docker-20.10-running.json", "docker-20.10-stopped.json"} {
		all, err := readContainers(recorded(t, file))
		if err != nil || len(all) != 1 {
			t.Fatalf("%s: %v, %v", file, all, err)
		}
		n, running := all[0], file == "docker-20.10-running.json"
		if n.Name != "aa" || n.Running != running || n.Image != "localhost/berth/provider-test:1" || n.Labels[plan.LabelCluster] != "a" || n.IPv4.IsValid() != running || n.IPv6.IsValid() != running {
			t.Errorf("%s: %+v", file, n)
		}
		if at, err := n.Endpoint(6443); err != nil || at.String() != "127.0.0.1:36443" {
			t.Errorf("%s: %v, %v", file, at, err)
		}
	}
	for name, text := range map[string]string{
		"podman 1.9": `[{"Name":"a","NetworkSettings":{"Ports":[{"hostPort":36443,"containerPort":6443,"protocol":"tcp","hostIP":"127.0.0.1"}]}}]`,
		"podman 2.2": `[{"Name":"a","NetworkSettings":{"Ports":{"6443/tcp":[{"HostIP":"127.0.0.1","HostPort":"36443"}]}}}]`,
		"docker":     `[{"Name":"/a","NetworkSettings":{"Ports":{"6443/tcp":[{"HostIp":"127.0.0.1","HostPort":"36443"}],"9/udp":null}}}]`,
		"stopped":    `[{"Name":"/a","HostConfig":{"PortBindings":{"6443/tcp":[{"HostIp":"127.0.0.1","HostPort":"36443"}]}},"NetworkSettings":{"Ports":{}}}]`,
	} {
		all, err := readContainers([]byte(text))
		if err != nil || len(all) != 1 || all[0].Name != "a" {
			t.Fatalf("%s: %v, %v", name, all, err)
		}
		if at, err := all[0].Endpoint(6443); err != nil || at.String() != "127.0.0.1:36443" {
			t.Errorf("%s: %v, %v", name, at, err)
		}
	}
}

func TestProxies(t *testing.T) {
	file := `{"currentContext":"far","proxies":{"default":{"httpProxy":"http://d","noProxy":"d.example"},"ssh://far":{"httpsProxy":"http://far"}}}`
	for name, test := range map[string]struct {
		tool string
		env  map[string]string
		want string // HTTP_PROXY HTTPS_PROXY NO_PROXY
	}{
		"by context":      {tool: "docker", env: map[string]string{}, want: " http://far "},
		"default":         {tool: "docker", env: map[string]string{"DOCKER_CONTEXT": "default", "NO_PROXY": "mine"}, want: "http://d  mine"},
		"the environment": {tool: "docker", env: map[string]string{"DOCKER_CONTEXT": "default", "https_proxy": "http://e"}, want: "  "},
		"podman":          {tool: "podman", env: map[string]string{}, want: "  "},
	} {
		f := newFake()
		f.answers["--version"] = answer{out: "Docker version 20.10.24, build 297e128"}
		f.answers["info"] = answer{out: dockerInfo20}
		f.answers["context inspect"] = answer{out: "ssh://far\n"}
		test.env["HOME"] = "/home/me"
		e, err := open(t.Context(), test.tool, f, fstest.MapFS{"home/me/.docker/config.json": {Data: []byte(file)}}, test.env)
		if err != nil {
			t.Fatal(err)
		}
		env := e.PlanHost(Network{Name: "kind"}).Env
		if got := env["HTTP_PROXY"] + " " + env["HTTPS_PROXY"] + " " + env["NO_PROXY"]; got != test.want {
			t.Errorf("%s: %q, want %q", name, got, test.want)
		}
	}
}
