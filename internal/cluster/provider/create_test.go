package provider

import (
	"context"
	"errors"
	"io/fs"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/fstest"
	"time"

	"github.com/berthrun/berth/internal/cluster/config"
	"github.com/berthrun/berth/internal/cluster/plan"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/golden"
)

const busy = `nodes:
- role: control-plane
- role: control-plane
- role: worker
  image: "example/node:1@sha256:a1ed56cfb0e7b93589bdf97c8cd566405a265939e3620fc4f5de89adff580ae5"
  extraMounts:
  - {hostPath: /data, containerPath: /data, readOnly: true, selinuxRelabel: true, propagation: HostToContainer}
  extraPortMappings:
  - {containerPort: 53, hostPort: 5353, protocol: UDP, listenAddress: "::1"}
  - {containerPort: 81, hostPort: -1}
  - {containerPort: 82, hostPort: 82, protocol: SCTP}
networking: {ipFamily: dual, apiServerPort: 6550}
`

// TestRunArguments: the complete command of each engine, for hosts with each special property.
func TestRunArguments(t *testing.T) {
	for name, facts := range map[string]Facts{
		"podman":          {CgroupV2: true, ChosenLinks: true},
		"docker":          {},
		"nerdctl":         {CgroupV2: true},
		"podman-rootless": {CgroupV2: true, Rootless: true, Driver: "btrfs"},
		"docker-rootless": {CgroupV2: true, Rootless: true, Filesystem: "xfs"},
		"docker-remap":    {CgroupV2: true, UserRemap: true, Driver: "overlay2", Filesystem: "zfs"},
	} {
		t.Run(name, func(t *testing.T) {
			tool, _, _ := strings.Cut(name, "-")
			e := engine(t, tool, newFake())
			e.facts = facts
			e.facts.Loopback6 = e.loopback6 || facts.Rootless
			network := Network{
				Name: "kind", StableV4: true, StableV6: e.stable6,
				Subnets: []netip.Prefix{netip.MustParsePrefix("172.18.0.0/16"), netip.MustParsePrefix("fc00:f853:ccd:e793::/64")},
			}
			text := busy
			if !e.facts.Loopback6 {
				text = strings.ReplaceAll(text, "::1", "::")
			}
			specs := planned(t, e.PlanHost(network), text)
			addresses, err := e.addresses(t.Context(), network, specs, &choices{})
			if err != nil {
				t.Fatal(err)
			}
			var calls strings.Builder
			for i, spec := range specs {
				args, err := e.runArgs(Request{Network: network}, spec, addresses[i], "ATTEMPT")
				if err != nil {
					t.Fatal(err)
				}
				for _, arg := range args {
					flag := "  "
					if strings.HasPrefix(arg, "-") || arg == "run" {
						flag = ""
					}
					if !strings.HasPrefix(arg, plan.LabelDigest) {
						calls.WriteString(flag + arg + "\n")
					}
				}
			}
			golden.Check(t, "testdata/run-"+name+".txt", calls.String())
		})
	}
}

func request(t *testing.T, e *CLI) Request {
	t.Helper()
	network, err := e.EnsureNetwork(t.Context(), "kind")
	if err != nil {
		t.Fatal(err)
	}
	return Request{Network: network, Specs: planned(t, e.PlanHost(network), "nodes: [{}, {}, {role: worker}]")}
}

func TestCreateAndDelete(t *testing.T) {
	f := newFake()
	e := engine(t, "podman", f)
	r := request(t, e)
	var done []string
	r.Done = func(name string) { done = append(done, name) }
	e.serial = true // done has no lock
	if err := e.Create(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	if len(done) != 4 || len(f.containers) != 4 || len(f.volumes) != 3 || f.peak != 1 {
		t.Errorf("up %v, containers %v, volumes %v, at most %d calls at once", done, f.containers, f.volumes, f.peak)
	}
	if logs := f.called("logs"); len(logs) != 3 {
		t.Errorf("systemd was waited for in %v, want three nodes and not the balancer", logs)
	}
	nodes, err := e.List(t.Context(), "dev")
	if err != nil || len(nodes) != 4 || nodes[0].Name != "dev-control-plane" {
		t.Fatalf("%v, %v", nodes, err)
	}
	if nodes[0].IPv4 == nodes[1].IPv4 || !nodes[0].IPv4.IsValid() || !nodes[0].IPv6.IsValid() {
		t.Errorf("addresses of stopped containers: %v, %v", nodes[0], nodes[1])
	}
	if other, err := e.List(t.Context(), "other"); err != nil || len(other) != 0 {
		t.Errorf("nodes of another cluster: %v, %v", other, err)
	}

	// A second create is an error, and changes nothing.
	if err := e.Create(t.Context(), r); !errors.Is(err, errs.Exists) || !strings.Contains(err.Error(), "dev-control-plane, dev-control-plane2") {
		t.Errorf("created twice: %v", err)
	}
	if len(f.containers) != 4 || len(f.volumes) != 3 {
		t.Errorf("a second Create left %v and %v", f.containers, f.volumes)
	}

	if err := e.Delete(t.Context(), "dev-worker", "dev-absent"); err != nil || len(f.containers) != 3 || len(f.volumes) != 2 || f.volumes["dev-worker-var"] != nil {
		t.Errorf("%v; %v and %v are left", err, f.containers, f.volumes)
	}
	for range 2 {
		if err := e.DeleteCluster(t.Context(), "dev"); err != nil || len(f.containers)+len(f.volumes) != 0 {
			t.Errorf("%v; %v and %v are left", err, f.containers, f.volumes)
		}
	}
	if err := e.DeleteCluster(t.Context(), ""); !errors.Is(err, errs.Invalid) {
		t.Errorf("no name: %v", err)
	}
}

// TestCreateFails: each call that changes something fails in turn. Nothing is left. Objects of
// others stay.
func TestCreateFails(t *testing.T) {
	for _, at := range []string{"volume create * dev-worker-var", "run --name dev-worker ", "run --name dev-external-load-balancer", "logs -f dev-control-plane2"} {
		for _, retain := range []bool{false, true} {
			f := newFake()
			f.containers["other"] = map[string]string{plan.LabelCluster: "dev"}
			f.volumes["other-var"] = map[string]string{LabelNode: "other"}
			e := engine(t, "podman", f)
			r := request(t, e)
			r.Retain = retain
			f.on = func(args []string) error {
				start, end, _ := strings.Cut(at, "*")
				if line := strings.Join(args, " "); strings.HasPrefix(line, start) && strings.HasSuffix(line, end) {
					return errors.New("Error: no space left on device")
				}
				return nil
			}
			err := e.Create(t.Context(), r)
			if err == nil || !strings.Contains(err.Error(), "no space left on device") || !strings.Contains(err.Error(), "cannot create dev-") {
				t.Errorf("%s: %v", at, err)
			}
			if left := len(f.containers) + len(f.volumes); !retain && left != 2 || f.containers["other"] == nil || f.volumes["other-var"] == nil {
				t.Errorf("%s, retain %v: %v and %v are left", at, retain, f.containers, f.volumes)
			}
		}
	}
}

func TestCreateIsCancelled(t *testing.T) {
	f := newFake()
	f.log = "Welcome\n"
	e := engine(t, "docker", f)
	ctx, cancel := context.WithCancel(t.Context())
	f.on = func(args []string) error {
		if args[0] == "logs" {
			cancel()
		}
		return nil
	}
	if err := e.Create(ctx, request(t, e)); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	if len(f.containers)+len(f.volumes) != 0 {
		t.Errorf("%v and %v are left", f.containers, f.volumes)
	}
}

// TestLeftVolumes: volumes of a missing node are replaced. Other volumes are not.
func TestLeftVolumes(t *testing.T) {
	f := newFake()
	f.volumes["dev-worker-var"] = map[string]string{LabelNode: "dev-worker", "old": "yes"}
	e := engine(t, "podman", f)
	if err := e.Create(t.Context(), request(t, e)); err != nil || f.volumes["dev-worker-var"]["old"] != "" {
		t.Errorf("%v: %v", err, f.volumes)
	}
	f = newFake()
	f.volumes["dev-worker-var"] = map[string]string{"of": "somebody"}
	e = engine(t, "podman", f)
	if err := e.Create(t.Context(), request(t, e)); !errors.Is(err, errs.Exists) || !strings.Contains(err.Error(), "podman volume rm dev-worker-var") || len(f.containers) != 0 {
		t.Errorf("%v: %v", err, f.containers)
	}
}

// TestNotANode: the error of a container without systemd has its output and its exit status.
func TestNotANode(t *testing.T) {
	for log, wants := range map[string][]string{
		"Welcome\n\x1b[1mno way\x1b[0m": {"20ms passed", "exited, status 1", "\n  Welcome\n  no way"},
		"":                              {"its log is empty; is the image one of a node?"},
		"ENDS\n":                        {"the container ended, it is exited, status 1", "\n  ENDS"},
	} {
		f := newFake()
		f.log = log
		e := engine(t, "podman", f)
		r := request(t, e)
		r.Wait = 20 * time.Millisecond
		err := e.Create(t.Context(), r)
		for _, want := range append(wants, "could not find a log line that matches") {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%q: %v; want %q", log, err, want)
			}
		}
	}
}

func TestPortInUse(t *testing.T) {
	f := newFake()
	e := engine(t, "podman", f)
	r := request(t, e)
	r.Specs[0].Ports[0].Host = 36443
	f.answers["run --name dev-external-load-balancer"] = answer{err: "Error: cannot listen on the TCP port: listen tcp4 127.0.0.1:36443: bind: address already in use", failed: true}
	if err := e.Create(t.Context(), r); !errors.Is(err, errs.Exists) || !strings.Contains(err.Error(), "choose another in networking.apiServerPort") {
		t.Errorf("%v", err)
	}
}

// TestAddressIsTaken: two processes create clusters at the same time and choose the same addresses.
// The container that the engine refuses gets another address.
func TestAddressIsTaken(t *testing.T) {
	for name, test := range map[string]struct{ tool, words, first string }{
		"docker":       {"docker", "docker: Error response from daemon: Address already in use.", "--ip 10.89.0.128"},
		"netavark":     {"podman", "Error: IPAM error: requested ip address 10.89.0.128 is already allocated to container ID 36e395bfa58d", "--ip 10.89.0.128"},
		"CNI":          {"nerdctl", `level=fatal msg="failed to allocate for range 0: requested IP address 10.89.0.128 is not available in range set 10.89.0.1-10.89.0.254"`, "--ip 10.89.0.128"},
		"IPv6":         {"docker", "docker: Error response from daemon: failed to set up container networking: Address already in use", "--ip6 fc00:f853:ccd:e793::81"},
		"a port":       {"docker", "docker: Error response from daemon: driver failed programming external connectivity: listen tcp4 127.0.0.1:6443: bind: address already in use", "--ip 10.89.0.128"},
		"DNS":          {"podman", "Error: netavark: error while applying dns entries: failed to bind udp listener on 10.89.0.1:53: IO error: Address already in use (os error 98)", "--ip 10.89.0.128"},
		"none is free": {"podman", "Error: IPAM error: requested ip address is already allocated to container ID 36e395bfa58d", "--ip "},
	} {
		f := newFake()
		e := engine(t, test.tool, f)
		e.declares6 = false
		r := request(t, e)
		var refused atomic.Int32
		f.on = func(args []string) error {
			if args[0] != "run" || !strings.Contains(strings.Join(args, " ")+" ", test.first) {
				return nil
			}
			refused.Add(1)
			f.mu.Lock()
			f.containers[args[2]] = labelsOf(args) // the engine leaves it
			f.mu.Unlock()
			return errors.New(test.words)
		}
		err := e.Create(t.Context(), r)
		if name == "a port" || name == "DNS" || name == "none is free" {
			if tries := refused.Load(); (name != "none is free") != (tries == 1) || !errors.Is(err, errs.Exists) || len(f.containers)+len(f.volumes) > 0 {
				t.Errorf("%s: %v after %d calls; %v are left", name, err, tries, f.containers)
			}
			continue
		}
		if err != nil || refused.Load() != 1 || len(f.containers) != 4 || len(f.volumes) != 3 {
			t.Errorf("%s: %v, refused %d; containers %v, volumes %v", name, err, refused.Load(), f.containers, f.volumes)
		}
		seen := map[string]bool{}
		for container, labels := range f.containers {
			addresses := labels[LabelAddresses]
			if addresses == "" || seen[addresses] || strings.Contains(addresses+",", strings.Fields(test.first)[1]+",") {
				t.Errorf("%s: %s has %s", name, container, addresses)
			}
			seen[addresses] = true
		}
	}
}

// TestNoSuchHostPath: podman's error contains the path. berth adds the field.
func TestNoSuchHostPath(t *testing.T) {
	f := newFake()
	e := engine(t, "podman", f)
	r := request(t, e)
	r.Specs[1].Mounts = append(r.Specs[1].Mounts, plan.Mount{Source: "/nosuch/a", Target: "/a", Propagation: config.PropagateNone})
	f.answers["run --name "+r.Specs[1].Name+" "] = answer{err: "Error: statfs /nosuch/a: no such file or directory", failed: true}
	if err := e.Create(t.Context(), r); err == nil || !strings.Contains(err.Error(), "/nosuch/a, which extraMounts of "+r.Specs[1].Name+" has as hostPath, does not exist") {
		t.Errorf("%v", err)
	}
}

// TestNoPullOfLocalImages: berth requests no pull of an image that no registry can have.
func TestNoPullOfLocalImages(t *testing.T) {
	f := newFake()
	f.answers["image inspect"] = answer{err: "Error: localhost/berth/absent:1: image not known", failed: true}
	f.answers["pull"] = answer{err: "Error: pinging container registry localhost", failed: true}
	e := engine(t, "podman", f)
	if _, err := e.Ensure(t.Context(), "localhost/berth/absent:1", nil); !errors.Is(err, errs.NotFound) || !strings.Contains(err.Error(), `image "localhost/berth/absent:1" is not present in podman`) {
		t.Errorf("%v", err)
	}
}

// TestBuiltHere: a short name does not refer to an image that podman built on this host.
func TestBuiltHere(t *testing.T) {
	f := newFake()
	absent := answer{err: "Error: image not known", failed: true}
	f.answers["image inspect docker.io/"] = absent
	f.answers["image inspect localhost/none"] = absent
	f.answers["image inspect localhost/app:1"] = answer{out: `[{"Id":"1"}]`}
	e := engine(t, "podman", f)
	for image, want := range map[string]string{
		"app:1":                   "podman has no image docker.io/library/app:1, but localhost/app:1; say that, or the former in full",
		"docker.io/library/app:1": "",
		"none:1":                  "",
	} {
		found, err := e.Present(t.Context(), image)
		if found.ID != "" || (err == nil) != (want == "") || err != nil && (!errors.Is(err, errs.NotFound) || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %+v, %v", image, found, err)
		}
	}
	if found, err := e.Present(t.Context(), "localhost/app:1"); err != nil || found.ID != "1" {
		t.Errorf("%+v, %v", found, err)
	}
}

func TestColonInPath(t *testing.T) {
	_, err := bind(plan.Mount{Source: "/a:b", Target: "/c", Propagation: config.PropagateNone})
	if !errors.Is(err, errs.Invalid) || !strings.Contains(err.Error(), `"/a:b"`) {
		t.Errorf("%v", err)
	}
}

func TestStart(t *testing.T) {
	f := newFake()
	e := engine(t, "podman", f)
	f.answers["container inspect a"] = answer{out: string(recorded(t, "podman-4.3-running.json"))}
	if err := e.Start(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	// The log contains earlier runs, too.
	if got := f.called("logs"); !slices.Equal(got, []string{"logs -f --since 2026-11-20T21:53:42.881142173Z a-control-plane"}) {
		t.Errorf("%v", got)
	}
}

func TestQualified(t *testing.T) {
	const digest = "@sha256:a1ed56cfb0e7b93589bdf97c8cd566405a265939e3620fc4f5de89adff580ae5"
	for image, want := range map[string]string{
		"node":                            "docker.io/library/node",
		"node:1":                          "docker.io/library/node:1",
		"kindest/node:v1" + digest:        "docker.io/kindest/node" + digest,
		"localhost/berth/node:latest":     "localhost/berth/node:latest",
		"registry.example:5000/a/node:v1": "registry.example:5000/a/node:v1",
		"registry.example:5000/a/node:v1" + digest: "registry.example:5000/a/node" + digest,
		"registry.example:5000/node" + digest:      "registry.example:5000/node" + digest,
	} {
		if got := qualified(image); got != want {
			t.Errorf("%s: %s, want %s", image, got, want)
		}
	}
}

// TestEndpoint: a description may map additional ports to the API. The certificate contains the
// planned address only.
func TestEndpoint(t *testing.T) {
	const text = "nodes: [{extraPortMappings: [{containerPort: 6443, hostPort: 7000, listenAddress: 127.0.0.9}, {containerPort: 6443, hostPort: 7001, protocol: UDP}]}]\n"
	for api, want := range map[string]string{
		"networking: {apiServerAddress: 192.0.2.1, apiServerPort: 7002}": "192.0.2.1:7002",
		"networking: {apiServerAddress: 192.0.2.1, apiServerPort: -1}":   "192.0.2.1:40000", // picked by the engine
		"networking: {apiServerAddress: 127.0.0.9, apiServerPort: 7003}": "127.0.0.9:7003",
	} {
		e := engine(t, "docker", newFake())
		spec := planned(t, e.PlanHost(Network{Name: "mine"}), text+api+"\n")[0]
		n := Node{Labels: Request{Network: Network{Name: "mine"}}.Labels(spec)}
		if n.Labels[LabelOn] != "mine" || n.Labels[plan.LabelCluster] != "dev" {
			t.Errorf("labels %v", n.Labels)
		}
		for _, p := range spec.Ports {
			if p.Host < 0 {
				p.Host = 40000
			}
			n.Ports = append(n.Ports, p)
		}
		slices.SortFunc(n.Ports, func(a, b plan.Port) int { return strings.Compare(a.Listen, b.Listen) }) // the engines' order
		for range 2 {
			if at, err := n.Endpoint(plan.APIPort); err != nil || at.String() != want {
				t.Errorf("%s: %v, %v; want %s", api, at, err, want)
			}
			slices.Reverse(n.Ports)
		}
	}
	worker := planned(t, plan.Host{}, "nodes: [{}, {role: worker, extraPortMappings: [{containerPort: 6443, hostPort: 7000}]}]\n")[1]
	if labels := (Request{}).Labels(worker); labels[LabelAPI] != "" {
		t.Errorf("a worker has an API at %s", labels[LabelAPI])
	}
}

// TestModulesDirectory: berth creates an empty directory on a host without one. It creates none on
// a remote host.
func TestModulesDirectory(t *testing.T) {
	for name, test := range map[string]struct {
		host   fstest.MapFS
		remote bool
		fails  error
		want   string
	}{
		"none":        {host: fstest.MapFS{}, want: "/lib/modules"},
		"there":       {host: fstest.MapFS{"lib/modules/x": {}}},
		"elsewhere":   {host: fstest.MapFS{}, remote: true},
		"not allowed": {host: fstest.MapFS{}, fails: fs.ErrPermission, want: "/lib/modules"},
	} {
		e := engine(t, "podman", newFake())
		made := ""
		e.host, e.facts.Remote = test.host, test.remote
		e.mkdir = func(path string) error { made = path; return test.fails }
		err := e.Create(t.Context(), request(t, e))
		if !errors.Is(err, test.fails) || made != test.want {
			t.Errorf("%s: %v, made %q", name, err, made)
		}
		if err != nil && !strings.Contains(err.Error(), "mkdir -p /lib/modules") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
