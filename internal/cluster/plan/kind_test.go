package plan

import (
	"encoding/json"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berthrun/berth/internal/cluster/config"
)

// kindImage is the image that kind v0.33 uses for nodes without one.
const kindImage = "docker.io/kindest/node@sha256:a1ed56cfb0e7b93589bdf97c8cd566405a265939e3620fc4f5de89adff580ae5"

// TestContainersAreThoseOfKind: for each example, our plan has the same containers for which kind
// v0.33 ran podman. testdata/kind has recordings of kind's commands.
func TestContainersAreThoseOfKind(t *testing.T) {
	files, err := filepath.Glob("../testdata/examples/*.yaml")
	if err != nil || len(files) < 30 {
		t.Fatalf("%d examples: %v", len(files), err)
	}
	host := Host{Engine: "podman", Subnets: []string{"10.89.0.0/24"}}
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".yaml")
		t.Run(name, func(t *testing.T) { compare(t, file, "../testdata/kind/"+name+".json", host) })
	}
	host.Env = map[string]string{
		"HTTP_PROXY": "http://proxy.example:3128", "no_proxy": "10.0.0.0/8,.corp.example", "KIND_EXPERIMENTAL_CONTAINERD_SNAPSHOTTER": "native",
	}
	t.Run("proxy", func(t *testing.T) { compare(t, "../testdata/proxy/ha.yaml", "../testdata/proxy/ha.json", host) })
}

func compare(t *testing.T, file, facts string, host Host) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	c, err := config.Load(file, text, config.Options{Dir: "/"})
	if err != nil {
		t.Fatal(err)
	}
	var kind struct{ Run [][]string }
	raw, err := os.ReadFile(facts)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(raw, &kind); err != nil {
		t.Fatal(err)
	}
	var want []Container
	for _, args := range kind.Run {
		want = append(want, ran(t, args, host))
	}
	got := Make(c, host).Containers
	for i := range got {
		if i < len(want) {
			alike(t, &got[i], &want[i])
		}
	}
	if diff := cmp.Diff(want, got, cmp.FilterPath(func(p cmp.Path) bool { return p.Last().String() == ".Field" }, cmp.Ignore())); diff != "" {
		t.Errorf("kind's containers (-) and ours (+):\n%s", diff)
	}
}

// alike removes the intended differences.
func alike(t *testing.T, ours, kinds *Container) {
	t.Helper()
	// Our plan has additional labels.
	maps.DeleteFunc(ours.Labels, func(key, _ string) bool { return strings.HasPrefix(key, "run.berth.") })
	// kind leaves forwarding to the host and to the pod network.
	delete(ours.Sysctls, ipForward)
	if len(ours.Sysctls) == 0 {
		ours.Sysctls = nil
	}
	if ours.Role == config.BalancerRole {
		// kind's load balancer has an image of its own.
		ours.Image, kinds.Image = "", ""
	}
	if ours.Image == config.DefaultImage && kinds.Image == kindImage {
		kinds.Image = ours.Image
	}
	ours.Image = podmanName(ours.Image)
	kinds.Image = podmanName(kinds.Image)
	// kind's volumes have random names.
	for i := range kinds.Volumes {
		if kinds.Volumes[i].Name == "volume-of-"+kinds.Name {
			kinds.Volumes[i].Name = kinds.Name + "-var"
		}
	}
	// kind has already picked free ports.
	for i, port := range ours.Ports {
		if i < len(kinds.Ports) && port.Host == config.FreePort && kinds.Ports[i].Host > 1023 {
			kinds.Ports[i].Host = config.FreePort
		}
	}
}

// podmanName returns an image's name in podman's form, which our provider computes: with a
// registry, and without a tag if there is a digest.
func podmanName(image string) string {
	name, digest, found := strings.Cut(image, "@")
	if i := strings.LastIndex(name, ":"); found && i > strings.LastIndex(name, "/") {
		name = name[:i]
	}
	first, _, slash := strings.Cut(name, "/")
	switch {
	case image == "":
	case !slash:
		name = "docker.io/library/" + name
	case !strings.ContainsAny(first, ".:") && first != "localhost":
		name = "docker.io/" + name
	}
	if found {
		name += "@" + digest
	}
	return name
}

// ran parses podman's arguments back into a container.
func ran(t *testing.T, args []string, host Host) Container {
	t.Helper()
	c := Container{Labels: map[string]string{}, Env: map[string]string{}}
	seen := map[string]bool{}
	i := 1 // after "run"
	next := func() string { i++; return args[i-1] }
	for i < len(args) && strings.HasPrefix(args[i], "-") {
		flag, value, inOne := strings.Cut(next(), "=")
		switch flag {
		case "--privileged", "--detach", "--tty":
			seen[flag] = true
			c.Privileged = c.Privileged || flag == "--privileged"
			continue
		}
		if !inOne {
			value = next()
		}
		key, rest, found := strings.Cut(value, "=")
		switch flag {
		case "--name":
			c.Name = value
		case "--label":
			c.Labels[key] = rest
		case "-e":
			if !found {
				rest, found = host.Env[key]
			}
			if found {
				c.Env[key] = rest
			}
		case "--sysctl":
			if c.Sysctls == nil {
				c.Sysctls = map[string]string{}
			}
			c.Sysctls[key] = rest
		case "--tmpfs":
			c.Tmpfs = append(c.Tmpfs, value)
		case "--volume":
			c.volume(t, value)
		case "--publish":
			c.Ports = append(c.Ports, published(t, value))
		case "--hostname", "--net", "--cgroupns":
			seen[flag+"="+value] = true
		default:
			t.Fatalf("flag %s of podman is not known to the test", flag)
		}
	}
	c.Image = next()
	c.Role = c.Labels[LabelKindRole]
	for _, flag := range []string{"--detach", "--tty", "--net=kind", "--cgroupns=private", "--hostname=" + c.Name} {
		if !seen[flag] {
			t.Errorf("kind did not say %s; Container tells that it holds for each", flag)
		}
	}
	return c
}

func (c *Container) volume(t *testing.T, value string) {
	t.Helper()
	parts := strings.SplitN(value, ":", 3)
	options := []string{}
	if len(parts) == 3 {
		options = strings.Split(parts[2], ",")
	}
	if !strings.HasPrefix(parts[0], "/") {
		c.Volumes = append(c.Volumes, Volume{parts[0], parts[1], options})
		return
	}
	m := Mount{Source: parts[0], Target: parts[1], Propagation: config.PropagateNone}
	for _, option := range options {
		switch option {
		case "ro":
			m.ReadOnly = true
		case "Z":
			m.Relabel = true
		case "rshared":
			m.Propagation = config.PropagateBidirectional
		case "rslave":
			m.Propagation = config.PropagateHostToContainer
		default:
			t.Fatalf("option %s of %s is not known to the test", option, value)
		}
	}
	c.Mounts = append(c.Mounts, m)
}

// published parses address:host:container/protocol. Without a host port, podman picks one.
func published(t *testing.T, value string) Port {
	t.Helper()
	value, protocol, _ := strings.Cut(value, "/")
	i := strings.LastIndex(value, ":")
	container, err := strconv.Atoi(value[i+1:])
	if err != nil {
		t.Fatalf("%s: %v", value, err)
	}
	listen, hostPort, err := net.SplitHostPort(value[:i])
	if err != nil {
		t.Fatalf("%s: %v", value, err)
	}
	port := Port{Listen: listen, Host: config.EnginePort, Container: container, Protocol: config.Protocol(strings.ToUpper(protocol))}
	if hostPort != "" {
		if port.Host, err = strconv.Atoi(hostPort); err != nil {
			t.Fatalf("%s: %v", value, err)
		}
	}
	return port
}

// TestEveryExampleHasItsFacts: each example has recordings. Without them the tests would compare
// nothing.
func TestEveryExampleHasItsFacts(t *testing.T) {
	var names [2][]string
	for i, glob := range []string{"../testdata/examples/*.yaml", "../testdata/kind/*.json"} {
		files, err := filepath.Glob(glob)
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			names[i] = append(names[i], strings.TrimSuffix(filepath.Base(file), filepath.Ext(file)))
		}
		slices.Sort(names[i])
	}
	if diff := cmp.Diff(names[0], names[1]); diff != "" {
		t.Errorf("examples and recorded facts do not go together:\n%s", diff)
	}
}
