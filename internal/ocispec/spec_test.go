package ocispec

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/cri/shape"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/ocispec/check"
	"github.com/berthrun/berth/internal/ocispec/request"
)

func TestArgs(t *testing.T) {
	image := imagespec.ImageConfig{Entrypoint: []string{"e"}, Cmd: []string{"c"}}
	for _, c := range []struct {
		command, args []string
		image         imagespec.ImageConfig
		want          string
	}{
		{nil, nil, image, "e c"},
		{nil, []string{"a"}, image, "e a"},
		{[]string{"x"}, nil, image, "x"},
		{[]string{"x"}, []string{"a"}, image, "x a"},
		{nil, []string{"a"}, imagespec.ImageConfig{Cmd: []string{"c"}}, "a"},
		{nil, nil, imagespec.ImageConfig{Cmd: []string{"c"}}, "c"},
	} {
		got, err := Args(&runtimeapi.ContainerConfig{Command: c.command, Args: c.args}, c.image)
		if err != nil || strings.Join(got, " ") != c.want {
			t.Errorf("command %q, args %q: %q, %v; want %q", c.command, c.args, got, err, c.want)
		}
	}
	for _, config := range []*runtimeapi.ContainerConfig{{}, {Command: []string{""}}} {
		if _, err := Args(config, imagespec.ImageConfig{}); !errors.Is(err, errs.Invalid) || !strings.Contains(err.Error(), "no command specified") {
			t.Errorf("nothing to run: %v", err)
		}
		// The program of a checkpoint runs already. OCI runtimes refuse a spec without one.
		if p, err := processOf(Input{Config: config, Restored: true}); err != nil || len(p.Args) != 1 {
			t.Errorf("nothing to run, and a checkpoint to go on with: %+v, %v", p, err)
		}
	}
}

func TestEnvOrderAndOverrides(t *testing.T) {
	got := envOf(Input{
		Hostname: "h",
		User:     User{Home: "/home/u"},
		Image:    imagespec.ImageConfig{Env: []string{"A=1", "=x", "nothing", "B=2", "A=3", "NUL=a\x00"}},
		Config: &runtimeapi.ContainerConfig{Envs: []*runtimeapi.KeyValue{
			{Key: "B", Value: []byte("4")}, {Key: "C", Value: []byte("a=b\nc")}, {Key: "HOSTNAME", Value: nil}, {Key: "RAW", Value: []byte{0xff}},
		}},
	})
	want := []string{defaultPath, "HOSTNAME=", "A=3", "B=4", "C=a=b\nc", "RAW=\xff", "HOME=/home/u"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestGOMAXPROCS(t *testing.T) {
	for name, c := range map[string]struct {
		least  int
		parent string
		shares int64
		quota  int64
		env    string
		want   string
	}{
		"off":            {0, "/kubepods/burstable/podx", 4096, 0, "", ""},
		"twice":          {2, "/kubepods/burstable/podx", 2048, 0, "", "4"},
		"twice, rounded": {1, "/kubepods/burstable/podx", 513, 0, "", "2"},
		"the least":      {4, "kubepods-burstable-podx.slice", 102, 0, "", "4"},
		"best effort":    {4, "kubepods-besteffort-podx.slice", 2, 0, "", "4"},
		"no shares":      {4, "kubepods-besteffort-podx.slice", 0, -1, "", "4"},
		"a limit":        {4, "/kubepods/burstable/podx", 102, 10000, "", ""},
		"guaranteed":     {4, "/kubepods/podx", 2048, 0, "", ""},
		"no kubelet's":   {4, "", 2048, 0, "", ""},
		"its own":        {4, "/kubepods/burstable/podx", 102, 0, "GOMAXPROCS=1", "1"},
	} {
		in := plainInput()
		in.Defaults.MinGOMAXPROCS = c.least
		in.SandboxConfig.Linux.CgroupParent = c.parent
		in.Config.Linux.Resources.CpuShares, in.Config.Linux.Resources.CpuQuota = c.shares, c.quota
		in.Image.Env = []string{c.env}
		got := ""
		for _, entry := range envOf(in) {
			if value, ok := strings.CutPrefix(entry, "GOMAXPROCS="); ok {
				got = value
			}
		}
		if got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

func TestCapabilities(t *testing.T) {
	all := Host{Capabilities: request.AllCapabilities()}
	weak := Host{Capabilities: []string{"CAP_CHOWN", "CAP_NET_ADMIN"}}
	config := func(add, drop []string, privileged bool) *runtimeapi.ContainerConfig {
		return &runtimeapi.ContainerConfig{Linux: &runtimeapi.LinuxContainerConfig{SecurityContext: &runtimeapi.LinuxContainerSecurityContext{
			Privileged:   privileged,
			Capabilities: &runtimeapi.Capability{AddCapabilities: add, DropCapabilities: drop},
		}}}
	}
	sorted := func(names ...string) []string {
		return slices.SortedFunc(slices.Values(names), func(a, b string) int {
			return slices.Index(request.AllCapabilities(), a) - slices.Index(request.AllCapabilities(), b)
		})
	}
	for _, c := range []struct {
		name      string
		add, drop []string
		priv      bool
		host      Host
		want      []string
	}{
		{"default", nil, nil, false, all, sorted(request.DefaultCapabilities()...)},
		{"drop all, add one", []string{"chown"}, []string{"ALL"}, false, all, []string{"CAP_CHOWN"}},
		{"add all", []string{"ALL"}, nil, false, all, request.AllCapabilities()},
		{"add all, drop one", []string{"all"}, []string{"CHOWN"}, false, all, request.AllCapabilities()[1:]},
		{"add and drop the same", []string{"SYS_TIME"}, []string{"SYS_TIME"}, false, all, sorted(request.DefaultCapabilities()...)},
		{"the host has few", []string{"ALL"}, nil, false, weak, []string{"CAP_CHOWN", "CAP_NET_ADMIN"}},
		{"privileged", nil, []string{"ALL"}, true, weak, []string{"CAP_CHOWN", "CAP_NET_ADMIN"}},
		{"all and nothing", []string{"ALL"}, []string{"ALL"}, false, all, []string{}},
	} {
		got, err := Capabilities(config(c.add, c.drop, c.priv), c.host, nil)
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
		if diff := cmp.Diff(CapabilitySets{Permitted: c.want, Ambient: []string{}}, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.name, diff)
		}
	}
	if all := request.AllCapabilities(); len(all) < 41 || all[0] != "CAP_CHOWN" || all[40] != "CAP_CHECKPOINT_RESTORE" {
		t.Errorf("the kernel's capabilities are %v", all)
	}
}

func TestAmbientCapabilities(t *testing.T) {
	for name, c := range map[string]struct {
		ambient, drop     []string
		privileged        bool
		permitted, raised []string
	}{
		"added to every set":         {[]string{"net_admin"}, []string{"ALL"}, false, []string{"CAP_NET_ADMIN"}, []string{"CAP_NET_ADMIN"}},
		"one that is dropped":        {[]string{"CHOWN", "KILL"}, []string{"ALL", "CHOWN"}, false, []string{"CAP_KILL"}, []string{"CAP_KILL"}},
		"what the host lacks":        {[]string{"BPF", "CHOWN"}, []string{"ALL"}, false, []string{"CAP_CHOWN"}, []string{"CAP_CHOWN"}},
		"privileged, none by itself": {nil, nil, true, []string{"CAP_CHOWN", "CAP_KILL", "CAP_NET_ADMIN"}, []string{}},
		"privileged":                 {[]string{"CHOWN"}, nil, true, []string{"CAP_CHOWN", "CAP_KILL", "CAP_NET_ADMIN"}, []string{"CAP_CHOWN"}},
		"all":                        {[]string{"all"}, nil, false, []string{"CAP_CHOWN", "CAP_KILL", "CAP_NET_ADMIN"}, []string{"CAP_CHOWN", "CAP_KILL", "CAP_NET_ADMIN"}},
	} {
		got, err := Capabilities(&runtimeapi.ContainerConfig{Linux: &runtimeapi.LinuxContainerConfig{SecurityContext: &runtimeapi.LinuxContainerSecurityContext{
			Privileged:   c.privileged,
			Capabilities: &runtimeapi.Capability{AddAmbientCapabilities: c.ambient, DropCapabilities: c.drop},
		}}}, Host{Capabilities: []string{"CAP_CHOWN", "CAP_KILL", "CAP_NET_ADMIN"}}, nil)
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if diff := cmp.Diff(CapabilitySets{c.permitted, c.raised}, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

func TestResourcesByHost(t *testing.T) {
	v1, v2 := Host{}, Host{CgroupV2: true, Hugetlb: true, SwapLimit: true}
	for _, c := range []struct {
		name string
		res  *runtimeapi.LinuxContainerResources
		host Host
		kind error
	}{
		{"unified on v1", &runtimeapi.LinuxContainerResources{Unified: map[string]string{"memory.max": "1"}}, v1, errs.Unsupported},
		{"group kill on v1", &runtimeapi.LinuxContainerResources{Unified: map[string]string{"memory.oom.group": "1"}}, v1, nil},
		{"pages without controller", &runtimeapi.LinuxContainerResources{HugepageLimits: []*runtimeapi.HugepageLimit{{PageSize: "2MB", Limit: 1}}}, v1, errs.Unsupported},
		{"pages", &runtimeapi.LinuxContainerResources{HugepageLimits: []*runtimeapi.HugepageLimit{{PageSize: "2MB", Limit: 1}}}, v2, nil},
		{"nil", nil, v1, nil},
	} {
		res, err := Resources(request.FieldCreate, c.res, c.host)
		if !errors.Is(err, c.kind) || c.kind == nil && (err != nil || res == nil) {
			t.Errorf("%s: %v, %v; want kind %v", c.name, res, err, c.kind)
		}
	}
	res, err := Resources(request.FieldCreate, &runtimeapi.LinuxContainerResources{MemoryLimitInBytes: 5, MemorySwapLimitInBytes: 9}, v2)
	if err != nil || *res.Memory.Limit != 5 || *res.Memory.Swap != 9 {
		t.Errorf("memory and swap: %+v, %v", res, err)
	}
}

// The image and the request override defaults. berth's own annotations override those that are
// passed on.
func TestDefaultsOfContainers(t *testing.T) {
	in := plainInput()
	in.Defaults = Defaults{
		Capabilities: []string{"CAP_KILL"}, Env: []string{"VERSION=0", "TZ=UTC", "HOME=/nowhere"},
		Rlimits: []specs.POSIXRlimit{{Type: "RLIMIT_NOFILE", Soft: 1, Hard: 2}},
	}
	in.Config.Linux.SecurityContext.Capabilities = &runtimeapi.Capability{AddCapabilities: []string{"CHOWN"}}
	in.Annotations = map[string]string{"io.kubernetes.cri.container-type": "mine", "example.org/for": "hooks"}
	spec, err := Container(in)
	if err != nil {
		t.Fatal(err)
	}
	for entry, want := range map[string]bool{"VERSION=1": true, "VERSION=0": false, "TZ=UTC": true, "HOME=/nowhere": true} {
		if slices.Contains(spec.Process.Env, entry) != want {
			t.Errorf("%s is there: %v, want %v", entry, !want, want)
		}
	}
	if diff := cmp.Diff([]string{"CAP_CHOWN", "CAP_KILL"}, spec.Process.Capabilities.Bounding); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(in.Defaults.Rlimits, spec.Process.Rlimits); diff != "" {
		t.Error(diff)
	}
	if spec.Annotations["example.org/for"] != "hooks" || spec.Annotations["io.kubernetes.cri.container-type"] != "container" {
		t.Errorf("annotations %v", spec.Annotations)
	}
}

func TestPIDModes(t *testing.T) {
	with := func(container, sandbox runtimeapi.NamespaceMode, paths Namespaces) (*specs.LinuxNamespace, error) {
		in := plainInput()
		in.Config.Linux.SecurityContext.NamespaceOptions.Pid = container
		in.SandboxConfig.Linux.SecurityContext.NamespaceOptions.Pid = sandbox
		in.Namespaces = paths
		list, err := namespacesOf(in)
		for _, ns := range list {
			if ns.Type == specs.PIDNamespace {
				return &ns, err
			}
		}
		return nil, err
	}
	const (
		pod, own, node, target = runtimeapi.NamespaceMode_POD, runtimeapi.NamespaceMode_CONTAINER, runtimeapi.NamespaceMode_NODE, runtimeapi.NamespaceMode_TARGET
	)
	if ns, err := with(own, own, Namespaces{}); err != nil || ns == nil || ns.Path != "" {
		t.Errorf("its own: %v, %v", ns, err)
	}
	if ns, err := with(pod, pod, Namespaces{PID: "/p"}); err != nil || ns == nil || ns.Path != "/p" {
		t.Errorf("the pod's: %v, %v", ns, err)
	}
	if ns, err := with(node, node, Namespaces{}); err != nil || ns != nil {
		t.Errorf("the host's: %v, %v", ns, err)
	}
	if ns, err := with(pod, node, Namespaces{}); err != nil || ns != nil {
		t.Errorf("the pod's, which is the host's: %v, %v", ns, err)
	}
	if ns, err := with(target, own, Namespaces{Target: "/proc/9/ns/pid"}); err != nil || ns == nil || ns.Path != "/proc/9/ns/pid" {
		t.Errorf("another container's: %v, %v", ns, err)
	}
	if _, err := with(target, own, Namespaces{}); !errors.Is(err, errs.Invalid) {
		t.Errorf("another container's that is not there: %v", err)
	}
	if ns, err := with(pod, own, Namespaces{}); err != nil || ns == nil || ns.Path != "" {
		t.Errorf("the pod's, where each container has its own: %v, %v", ns, err)
	}
	if _, err := with(pod, pod, Namespaces{}); !errors.Is(err, errs.Invalid) {
		t.Errorf("the pod's, which is gone: %v", err)
	}
}

func TestPropagationNeedsItsSource(t *testing.T) {
	for _, c := range []struct {
		propagation runtimeapi.MountPropagation
		source      Source
		ok          bool
	}{
		{runtimeapi.MountPropagation_PROPAGATION_BIDIRECTIONAL, Source{Slave: true}, false},
		{runtimeapi.MountPropagation_PROPAGATION_BIDIRECTIONAL, Source{Shared: true}, true},
		{runtimeapi.MountPropagation_PROPAGATION_HOST_TO_CONTAINER, Source{}, false},
		{runtimeapi.MountPropagation_PROPAGATION_HOST_TO_CONTAINER, Source{Slave: true}, true},
		{runtimeapi.MountPropagation_PROPAGATION_PRIVATE, Source{}, true},
	} {
		_, err := Propagation("mounts[0].propagation", &runtimeapi.Mount{Propagation: c.propagation}, c.source)
		if (err == nil) != c.ok || err != nil && !errors.Is(err, errs.Invalid) {
			t.Errorf("%s of %+v: %v", c.propagation, c.source, err)
		}
	}
}

func TestAppArmorProfileIsTheProcesses(t *testing.T) {
	in := plainInput()
	in.AppArmor = "web"
	if spec, err := Container(in); err != nil || spec.Process.ApparmorProfile != "web" {
		t.Errorf("spec %+v, %v", spec, err)
	}
}

func TestExecProcess(t *testing.T) {
	own := &specs.Process{Args: []string{"a"}, Env: []string{"A=1"}, Cwd: "/x", User: specs.User{UID: 7}, NoNewPrivileges: true}
	got := ExecProcess(own, []string{"b"}, true)
	want := &specs.Process{Terminal: true, Args: []string{"b"}, Env: []string{"A=1", defaultTerm}, Cwd: "/x", User: specs.User{UID: 7}, NoNewPrivileges: true}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if len(own.Env) != 1 || own.Terminal {
		t.Errorf("the container's own process was changed: %+v", own)
	}
}

// FuzzRequest: a request that passes the checks gives a spec in which no string ends a line or a C
// string where this is not allowed.
func FuzzRequest(f *testing.F) {
	f.Add("KEY", "value", "annotation", "more", "host", "10.0.0.1")
	f.Add("A=B", "a\x00", "a\nb", "\n", "h\n", "1\n2")
	f.Fuzz(func(t *testing.T, key, val, annotation, text, hostname, dns string) {
		in := plainInput()
		in.Config.Envs = append(in.Config.Envs, &runtimeapi.KeyValue{Key: key, Value: []byte(val)})
		in.Config.Annotations[annotation] = text
		in.SandboxConfig.Hostname = hostname
		in.SandboxConfig.DnsConfig.Servers = []string{dns}
		if shape.Sandbox(in.SandboxConfig) != nil || shape.Container(in.Config) != nil ||
			check.Sandbox(in.SandboxConfig) != nil || check.Container(in.Config, in.SandboxConfig) != nil {
			return
		}
		if strings.ContainsAny(hostname+dns+annotation, "\n\r\x00") {
			t.Errorf("hostname %q, dns %q, annotation %q passed", hostname, dns, annotation)
		}
		spec, err := Container(in)
		if err != nil {
			t.Fatal(err)
		}
		for _, entry := range spec.Process.Env {
			name, _, ok := strings.Cut(entry, "=")
			if !ok || name == "" || strings.ContainsRune(entry, 0) || request.HasControl(name) {
				t.Errorf("the entry %q of the environment", entry)
			}
		}
		if !slices.Contains(spec.Process.Env, key+"="+val) {
			t.Errorf("%q=%q is not in the environment", key, val)
		}
	})
}
