package check

import (
	"errors"
	"math"
	"strings"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/ocispec/requesttest"
)

func TestUserNamespacesRefused(t *testing.T) {
	type config = *runtimeapi.PodSandboxConfig
	users := func(c config) *runtimeapi.UserNamespace { return namespaces(c).UsernsOptions }
	refuse(t, requesttest.MappedSandbox, Sandbox, []refusal[config]{
		{func(c config) { users(c).Mode = runtimeapi.NamespaceMode_CONTAINER }, errs.Invalid, "userns_options.mode"},
		{func(c config) { users(c).Mode = runtimeapi.NamespaceMode_TARGET }, errs.Invalid, "userns_options.mode"},
		{func(c config) { users(c).Mode = 77 }, errs.Invalid, "userns_options.mode"},
		{func(c config) { users(c).Mode = runtimeapi.NamespaceMode_NODE }, errs.Invalid, "userns_options"},
		{func(c config) { users(c).Uids = nil }, errs.Invalid, "userns_options.uids"},
		{func(c config) { users(c).Gids = nil }, errs.Invalid, "userns_options.gids"},
		{func(c config) { users(c).Gids = append(requesttest.IDs(1), requesttest.IDs(2)...) }, errs.Invalid, "userns_options.gids"},
		{func(c config) { users(c).Uids = []*runtimeapi.IDMapping{nil} }, errs.Invalid, "userns_options.uids[0].length"},
		{func(c config) { users(c).Uids[0].ContainerId = 1 }, errs.Invalid, "userns_options.uids[0].container_id"},
		{func(c config) { users(c).Uids[0].Length = 0 }, errs.Invalid, "userns_options.uids[0].length"},
		{func(c config) { users(c).Uids[0].HostId = math.MaxUint32 }, errs.Invalid, "userns_options.uids[0]"},
		{func(c config) { namespaces(c).Pid = runtimeapi.NamespaceMode_NODE }, errs.Invalid, "host's pid namespace"},
		{func(c config) { namespaces(c).Ipc = runtimeapi.NamespaceMode_NODE }, errs.Invalid, "host's ipc namespace"},
	})
	hostNetwork := requesttest.MappedSandbox()
	namespaces(hostNetwork).Network = runtimeapi.NamespaceMode_NODE
	if err := Sandbox(hostNetwork); err != nil {
		t.Errorf("with the host's network: %v", err)
	}
}

func namespaces(c *runtimeapi.PodSandboxConfig) *runtimeapi.NamespaceOption {
	return c.Linux.SecurityContext.NamespaceOptions
}

// A container may have its pod's user namespace or omit it. It may have no other.
func TestContainersShareTheUserNamespace(t *testing.T) {
	container := requesttest.KubeletContainer()
	options := container.Linux.SecurityContext.NamespaceOptions
	for name, c := range map[string]struct {
		own     *runtimeapi.UserNamespace
		sandbox *runtimeapi.PodSandboxConfig
		ok      bool
	}{
		"the same":            {namespaces(requesttest.MappedSandbox()).UsernsOptions, requesttest.MappedSandbox(), true},
		"none":                {nil, requesttest.MappedSandbox(), true},
		"the host's":          {&runtimeapi.UserNamespace{Mode: runtimeapi.NamespaceMode_NODE}, requesttest.MappedSandbox(), false},
		"other ids":           {&runtimeapi.UserNamespace{Uids: requesttest.IDs(7), Gids: requesttest.IDs(7)}, requesttest.MappedSandbox(), false},
		"one that pod lacks":  {namespaces(requesttest.MappedSandbox()).UsernsOptions, requesttest.KubeletSandbox(), false},
		"none in either":      {nil, requesttest.KubeletSandbox(), true},
		"the host's, as pods": {&runtimeapi.UserNamespace{Mode: runtimeapi.NamespaceMode_NODE}, requesttest.KubeletSandbox(), true},
	} {
		options.UsernsOptions = c.own
		err := Container(container, c.sandbox)
		if c.ok && err != nil || !c.ok && (!errors.Is(err, errs.Invalid) || !strings.Contains(err.Error(), "userns_options")) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestMountsRefused(t *testing.T) {
	type config = *runtimeapi.ContainerConfig
	good := func() config {
		container := requesttest.KubeletContainer()
		requesttest.InUserNamespace(requesttest.KubeletSandbox(), container)
		container.Mounts = []*runtimeapi.Mount{
			// For a volume with a sub path the kubelet sets image_sub_path beside host_path.
			{ContainerPath: "/m", HostPath: "/h/sub", ImageSubPath: "sub", Readonly: true, RecursiveReadOnly: true, MountOptions: []string{"noexec"}, UidMappings: requesttest.IDs(1), GidMappings: requesttest.IDs(1)},
			{ContainerPath: "/i", Readonly: true, Image: &runtimeapi.ImageSpec{Image: "x"}, ImageSubPath: "a/b", UidMappings: requesttest.IDs(100000), GidMappings: requesttest.IDs(100000)},
		}
		return container
	}
	judge := func(c config) error { return Container(c, requesttest.MappedSandbox()) }
	host := func(change func(*runtimeapi.Mount)) func(config) { return func(c config) { change(c.Mounts[0]) } }
	image := func(change func(*runtimeapi.Mount)) func(config) { return func(c config) { change(c.Mounts[1]) } }
	type mount = *runtimeapi.Mount
	refuse(t, good, judge, []refusal[config]{
		{host(func(m mount) { m.Readonly = false }), errs.Invalid, "mounts[0].recursive_read_only"},
		{host(func(m mount) { m.Propagation = runtimeapi.MountPropagation_PROPAGATION_BIDIRECTIONAL }), errs.Invalid, "mounts[0].recursive_read_only"},
		{host(func(m mount) { m.Propagation = runtimeapi.MountPropagation_PROPAGATION_HOST_TO_CONTAINER }), errs.Invalid, "mounts[0].recursive_read_only"},
		{host(func(m mount) { m.MountOptions = []string{"nodev", "exec"} }), errs.Invalid, "mounts[0].mount_options"},
		{host(func(m mount) { m.MountOptions = []string{""} }), errs.Invalid, "mounts[0].mount_options"},
		{host(func(m mount) { m.UidMappings = nil }), errs.Invalid, "mounts[0].uidMappings"},
		{host(func(m mount) { m.GidMappings = nil }), errs.Invalid, "mounts[0].gidMappings"},
		{host(func(m mount) { m.GidMappings = append(requesttest.IDs(1), requesttest.IDs(2)...) }), errs.Invalid, "mounts[0].gidMappings"},
		{host(func(m mount) { m.UidMappings[0].ContainerId = 5 }), errs.Invalid, "mounts[0].uidMappings[0].container_id"},
		{host(func(m mount) { m.Image = &runtimeapi.ImageSpec{Image: "x"} }), errs.Invalid, "mounts[0].host_path"},
		{image(func(m mount) { m.Image.Image = "" }), errs.Invalid, "mounts[1].image.image"},
		{image(func(m mount) { m.Image.RuntimeHandler = "kata" }), errs.Unsupported, "mounts[1].image.runtime_handler"},
		{image(func(m mount) { m.Readonly = false }), errs.Invalid, "mounts[1].readonly"},
		{image(func(m mount) { m.Propagation = runtimeapi.MountPropagation_PROPAGATION_HOST_TO_CONTAINER }), errs.Invalid, "mounts[1].propagation"},
		{image(func(m mount) { m.ImageSubPath = "/etc" }), errs.Invalid, "mounts[1].image_sub_path"},
		{image(func(m mount) { m.ImageSubPath = "a/../../b" }), errs.Invalid, "mounts[1].image_sub_path"},
		{image(func(m mount) { m.ImageSubPath = "a\nb" }), errs.Invalid, "mounts[1].image_sub_path"},
		{image(func(m mount) { m.UidMappings = requesttest.IDs(7) }), errs.Invalid, "mounts[1].uidMappings"},
	})
}
