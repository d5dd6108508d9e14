package ocispec

import (
	"errors"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/errs"
	"github.com/opencontainers/runtime-spec/specs-go"
)

func mappedSandbox() *runtimeapi.PodSandboxConfig {
	in := plainInput()
	inUserNamespace(&in)
	return in.SandboxConfig
}

func TestUserNamespacesRefused(t *testing.T) {
	type config = *runtimeapi.PodSandboxConfig
	users := func(c config) *runtimeapi.UserNamespace { return namespaces(c).UsernsOptions }
	check(t, mappedSandbox, CheckSandbox, []refusal[config]{
		{func(c config) { users(c).Mode = runtimeapi.NamespaceMode_CONTAINER }, errs.Invalid, "userns_options.mode"},
		{func(c config) { users(c).Mode = runtimeapi.NamespaceMode_TARGET }, errs.Invalid, "userns_options.mode"},
		{func(c config) { users(c).Mode = 77 }, errs.Invalid, "userns_options.mode"},
		{func(c config) { users(c).Mode = runtimeapi.NamespaceMode_NODE }, errs.Invalid, "userns_options"},
		{func(c config) { users(c).Uids = nil }, errs.Invalid, "userns_options.uids"},
		{func(c config) { users(c).Gids = nil }, errs.Invalid, "userns_options.gids"},
		{func(c config) { users(c).Gids = append(ids(1), ids(2)...) }, errs.Invalid, "userns_options.gids"},
		{func(c config) { users(c).Uids = []*runtimeapi.IDMapping{nil} }, errs.Invalid, "userns_options.uids[0].length"},
		{func(c config) { users(c).Uids[0].ContainerId = 1 }, errs.Invalid, "userns_options.uids[0].container_id"},
		{func(c config) { users(c).Uids[0].Length = 0 }, errs.Invalid, "userns_options.uids[0].length"},
		{func(c config) { users(c).Uids[0].HostId = math.MaxUint32 }, errs.Invalid, "userns_options.uids[0]"},
		{func(c config) { namespaces(c).Pid = runtimeapi.NamespaceMode_NODE }, errs.Invalid, "host's pid namespace"},
		{func(c config) { namespaces(c).Ipc = runtimeapi.NamespaceMode_NODE }, errs.Invalid, "host's ipc namespace"},
	})
	hostNetwork := mappedSandbox()
	namespaces(hostNetwork).Network = runtimeapi.NamespaceMode_NODE
	if err := CheckSandbox(hostNetwork); err != nil {
		t.Errorf("with the host's network: %v", err)
	}
}

func namespaces(c *runtimeapi.PodSandboxConfig) *runtimeapi.NamespaceOption {
	return c.Linux.SecurityContext.NamespaceOptions
}

// A container may repeat its pod's user namespace or leave it out, and have no other.
func TestContainersShareTheUserNamespace(t *testing.T) {
	container := kubeletContainer()
	options := container.Linux.SecurityContext.NamespaceOptions
	for name, c := range map[string]struct {
		own     *runtimeapi.UserNamespace
		sandbox *runtimeapi.PodSandboxConfig
		ok      bool
	}{
		"the same":            {namespaces(mappedSandbox()).UsernsOptions, mappedSandbox(), true},
		"none":                {nil, mappedSandbox(), true},
		"the host's":          {&runtimeapi.UserNamespace{Mode: runtimeapi.NamespaceMode_NODE}, mappedSandbox(), false},
		"other ids":           {&runtimeapi.UserNamespace{Uids: ids(7), Gids: ids(7)}, mappedSandbox(), false},
		"one that pod lacks":  {namespaces(mappedSandbox()).UsernsOptions, kubeletSandbox(), false},
		"none in either":      {nil, kubeletSandbox(), true},
		"the host's, as pods": {&runtimeapi.UserNamespace{Mode: runtimeapi.NamespaceMode_NODE}, kubeletSandbox(), true},
	} {
		options.UsernsOptions = c.own
		err := CheckContainer(container, c.sandbox)
		if c.ok && err != nil || !c.ok && (!errors.Is(err, errs.Invalid) || !strings.Contains(err.Error(), "userns_options")) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestMountsRefused(t *testing.T) {
	type config = *runtimeapi.ContainerConfig
	good := func() config {
		in := plainInput()
		inUserNamespace(&in)
		in.Config.Mounts = []*runtimeapi.Mount{
			// A kubelet sets image_sub_path beside host_path for a volume with a sub path.
			{ContainerPath: "/m", HostPath: "/h/sub", ImageSubPath: "sub", Readonly: true, RecursiveReadOnly: true, MountOptions: []string{"noexec"}, UidMappings: ids(1), GidMappings: ids(1)},
			{ContainerPath: "/i", Readonly: true, Image: &runtimeapi.ImageSpec{Image: "x"}, ImageSubPath: "a/b", UidMappings: ids(100000), GidMappings: ids(100000)},
		}
		return in.Config
	}
	judge := func(c config) error { return CheckContainer(c, mappedSandbox()) }
	host := func(change func(*runtimeapi.Mount)) func(config) { return func(c config) { change(c.Mounts[0]) } }
	image := func(change func(*runtimeapi.Mount)) func(config) { return func(c config) { change(c.Mounts[1]) } }
	type mount = *runtimeapi.Mount
	check(t, good, judge, []refusal[config]{
		{host(func(m mount) { m.Readonly = false }), errs.Invalid, "mounts[0].recursive_read_only"},
		{host(func(m mount) { m.Propagation = runtimeapi.MountPropagation_PROPAGATION_BIDIRECTIONAL }), errs.Invalid, "mounts[0].recursive_read_only"},
		{host(func(m mount) { m.Propagation = runtimeapi.MountPropagation_PROPAGATION_HOST_TO_CONTAINER }), errs.Invalid, "mounts[0].recursive_read_only"},
		{host(func(m mount) { m.MountOptions = []string{"nodev", "exec"} }), errs.Invalid, "mounts[0].mount_options"},
		{host(func(m mount) { m.MountOptions = []string{""} }), errs.Invalid, "mounts[0].mount_options"},
		{host(func(m mount) { m.UidMappings = nil }), errs.Invalid, "mounts[0].uidMappings"},
		{host(func(m mount) { m.GidMappings = nil }), errs.Invalid, "mounts[0].gidMappings"},
		{host(func(m mount) { m.GidMappings = append(ids(1), ids(2)...) }), errs.Invalid, "mounts[0].gidMappings"},
		{host(func(m mount) { m.UidMappings[0].ContainerId = 5 }), errs.Invalid, "mounts[0].uidMappings[0].container_id"},
		{host(func(m mount) { m.Image = &runtimeapi.ImageSpec{Image: "x"} }), errs.Invalid, "mounts[0].host_path"},
		{image(func(m mount) { m.Image.Image = "" }), errs.Invalid, "mounts[1].image.image"},
		{image(func(m mount) { m.Image.RuntimeHandler = "kata" }), errs.Unsupported, "mounts[1].image.runtime_handler"},
		{image(func(m mount) { m.Readonly = false }), errs.Invalid, "mounts[1].readonly"},
		{image(func(m mount) { m.Propagation = runtimeapi.MountPropagation_PROPAGATION_HOST_TO_CONTAINER }), errs.Invalid, "mounts[1].propagation"},
		{image(func(m mount) { m.ImageSubPath = "/etc" }), errs.Invalid, "mounts[1].image_sub_path"},
		{image(func(m mount) { m.ImageSubPath = "a/../../b" }), errs.Invalid, "mounts[1].image_sub_path"},
		{image(func(m mount) { m.ImageSubPath = "a\nb" }), errs.Invalid, "mounts[1].image_sub_path"},
		{image(func(m mount) { m.UidMappings = ids(7) }), errs.Invalid, "mounts[1].uidMappings"},
	})
}

func TestUnmappedUsersAreRefused(t *testing.T) {
	for _, user := range []User{{UID: 65536}, {GID: 65536}, {Groups: []uint32{0, 70000}}} {
		in := plainInput()
		inUserNamespace(&in)
		in.User = user
		if _, err := Container(in); !errors.Is(err, errs.Invalid) || !strings.Contains(err.Error(), "not mapped") {
			t.Errorf("%+v: %v", user, err)
		}
	}
}

func TestRecursiveReadOnlyNeedsTheKernel(t *testing.T) {
	in := plainInput()
	in.Config.Mounts[0].RecursiveReadOnly = true
	// The word is what clients look for.
	if _, err := Container(in); !errors.Is(err, errs.Unsupported) || !strings.Contains(err.Error(), "RROUnsupported") {
		t.Errorf("a kernel without: %v", err)
	}
}

// wholeHost are the ids of a machine's own user namespace.
func wholeHost() UserNamespace {
	all := IDMapping{Length: math.MaxUint32}
	return UserNamespace{UIDs: all, GIDs: all}
}

func TestPodInitHasAUserOfItsOwn(t *testing.T) {
	in := plainInput()
	inUserNamespace(&in)
	for length, want := range map[uint32]uint32{65536: 65535, 1000: 999, 1: 0} {
		n := *in.UserNamespace
		n.UIDs.Length, n.GIDs.Length = length, length
		spec := PodInit{SandboxConfig: in.SandboxConfig, Namespaces: in.Namespaces, UserNamespace: &n, IDs: wholeHost()}.Spec()
		if spec.Process.User.UID != want || spec.Process.User.GID != want {
			t.Errorf("%d ids: %+v", length, spec.Process.User)
		}
		if spec.Linux.Namespaces[3].Path != "/ns/user" {
			t.Errorf("namespaces: %+v", spec.Linux.Namespaces)
		}
	}
	few := UserNamespace{UIDs: IDMapping{Length: 65536}, GIDs: IDMapping{Length: 65536}}
	for ids, want := range map[UserNamespace]uint32{wholeHost(): podInitID, few: 65535} {
		if spec := (PodInit{SandboxConfig: in.SandboxConfig, IDs: ids}).Spec(); spec.Process.User.UID != want || spec.Process.User.GID != want {
			t.Errorf("where there are %v: %+v", ids, spec.Process.User)
		}
	}
}

// Containers reach what the pod's init reaches.
func TestPodInitHasNothing(t *testing.T) {
	spec := PodInit{SandboxConfig: plainInput().SandboxConfig, Rootfs: "/sealed", IDs: wholeHost()}.Spec()
	for _, m := range spec.Mounts {
		if m.Type != "bind" || !strings.HasPrefix(m.Source, "/sealed/") || !slices.Contains(m.Options, "ro") {
			t.Errorf("it has a mount: %+v", m)
		}
	}
	p := spec.Process
	if !spec.Root.Readonly || !p.NoNewPrivileges || !reflect.DeepEqual(p.Capabilities, &specs.LinuxCapabilities{}) {
		t.Errorf("root %+v, process %+v", spec.Root, p)
	}
	if r := spec.Linux.Resources; *r.Memory.Limit > 64<<20 || *r.Pids.Limit > 64 {
		t.Errorf("limits: %+v", r)
	}
}

func TestGroupsOfSysctlsAreThePods(t *testing.T) {
	n := &UserNamespace{GIDs: IDMapping{Host: 100000, Length: 1000}}
	for in, want := range map[string]string{"0 999": "100000 100999", "5\t5": "100005 100005", "1 0": "1 0"} {
		if got, err := n.HostGroups(in); err != nil || got != want {
			t.Errorf("%q: %q, %v, want %q", in, got, err, want)
		}
	}
	for _, in := range []string{"0 1000", "x", "", "-1 5", "1"} {
		if got, err := n.HostGroups(in); !errors.Is(err, errs.Invalid) {
			t.Errorf("%q: %q, %v", in, got, err)
		}
	}
	if got := n.AllGroups(); got != "100000 100999" {
		t.Errorf("all: %q", got)
	}
	var none *UserNamespace
	if got, err := none.HostGroups("0 5"); got != "0 5" || err != nil || none.AllGroups() != "0 2147483647" {
		t.Errorf("without a user namespace: %q, %v", got, err)
	}
}
