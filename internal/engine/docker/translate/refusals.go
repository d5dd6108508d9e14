package translate

import (
	"fmt"
	"slices"
	"strings"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/ocispec/fielderror"
	"github.com/berthrun/berth/internal/ocispec/request"
)

// Refusal is something that a request can have and that a Docker Engine cannot honour.
// CheckSandbox, CheckContainer and CheckResources refuse it, and the docs list it.
type Refusal struct {
	// Request is what is refused, in words that complete "the engine refuses ...".
	Request string
	// Sandbox and Container are the fields of PodSandboxConfig and ContainerConfig, as paths
	// without the indexes of lists: "mounts.recursive_read_only". A path stands for all fields
	// below it.
	Sandbox, Container []string
	// Reason is why, in the words of the error.
	Reason string
	// From is the version of the API that honours it, "" for none.
	From string
	// Partly is true if other values of the fields are honoured, or other engines honour them.
	Partly bool
}

// The requests that are refused; each is the Request of one Refusal.
const (
	UserNamespaces      = "a user namespace of a pod"
	MappedMounts        = "id-mapped mounts"
	MountOptions        = "mount options of a volume"
	RecursiveReadOnly   = "recursive read-only mounts"
	RelabelledReadOnly  = "a recursive read-only mount that is relabelled"
	RelabelledColon     = "a relabelled mount whose host path has a colon"
	ImageMounts         = "mounted images"
	HugePages           = "limits of huge pages"
	Unified             = "files of cgroup v2 (`unified`), except `memory.oom.group`"
	SwapLimit           = "a limit of swap, if the kernel cannot limit it"
	AmbientCapabilities = "ambient capabilities"
	SELinuxOptions      = "SELinux options, if the engine does not have `selinux-enabled`"
	CDIDevices          = "CDI devices"
	PrivilegedNoDevices = "a privileged container, with `runtime.privileged_without_host_devices`"
	PrivilegedFilter    = "a privileged container, with `runtime.privileged_seccomp_profile`"
	OwnRootfs           = "the annotations `run.berth.storage` and `run.berth.volumes`"
)

// The versions of the API that brought what requests use.
const (
	apiRecursiveReadOnly = "1.44" // BindOptions.ReadOnlyForceRecursive
	apiCDI               = "1.44" // device requests of the driver cdi
	apiImageMounts       = "1.48" // mounts of type image
	apiPrivilegedFilter  = "1.42" // older engines ignore the profile of a privileged container
)

// Refusals lists all that is refused. The table in docs/docker.md, the column of docs/cri-coverage.md
// and the checks of requests come from it.
func Refusals() []Refusal {
	const security, resources = "linux.security_context.", "linux.resources."
	const userns, selinux = security + "namespace_options.userns_options", security + "selinux_options"
	return []Refusal{
		{UserNamespaces, []string{userns}, []string{userns}, "the Docker engine has one mapping of ids for all containers, or none", "", false},
		{MappedMounts, nil, []string{"mounts.uidMappings", "mounts.gidMappings"}, "the Docker engine's API has no field for it", "", false},
		{MountOptions, nil, []string{"mounts.mount_options"}, "the Docker engine's API has no field for it", "", false},
		{RecursiveReadOnly, nil, []string{"mounts.recursive_read_only"}, "the Docker engine's API has no field for it", apiRecursiveReadOnly, false},
		{RelabelledReadOnly, nil, []string{"mounts.selinux_relabel"}, "the Docker engine relabels only mounts that it cannot make recursively read-only", "", true},
		{RelabelledColon, nil, []string{"mounts.selinux_relabel"}, "the Docker engine takes relabelled mounts as text, with colons between the parts", "", true},
		{ImageMounts, nil, []string{"mounts.image", "mounts.image_sub_path"}, "the Docker engine's API has no mounts of images", apiImageMounts, false},
		{HugePages, nil, []string{resources + "hugepage_limits"}, "the Docker engine's API has no field for it", "", false},
		{Unified, nil, []string{resources + "unified"}, "the Docker engine's API has no field for it", "", true},
		{SwapLimit, nil, []string{resources + "memory_swap_limit_in_bytes"}, "the Docker engine reports that the kernel does not limit swap", "", true},
		{AmbientCapabilities, nil, []string{security + "capabilities.add_ambient_capabilities"}, "the Docker engine's API has no field for it", "", false},
		{SELinuxOptions, []string{selinux}, []string{selinux}, "SELinux is not enabled in the Docker engine (selinux-enabled)", "", true},
		{CDIDevices, nil, []string{"CDI_devices"}, "the Docker engine's API has no devices of CDI", apiCDI, false},
		{PrivilegedNoDevices, nil, []string{security + "privileged"}, "runtime.privileged_without_host_devices is set, and the Docker engine gives privileged containers all devices of the host", "", true},
		{PrivilegedFilter, nil, []string{security + "privileged"}, "runtime.privileged_seccomp_profile is set, and the Docker engine has no filter for privileged containers", apiPrivilegedFilter, true},
		{OwnRootfs, nil, []string{"annotations"}, "the Docker engine makes the root filesystems", "", true},
	}
}

// Covers reports whether a refusal is about a field, one of Sandbox or Container.
func Covers(refused []string, field string) bool {
	return slices.ContainsFunc(refused, func(path string) bool { return field == path || strings.HasPrefix(field, path+".") })
}

// RefusalOf returns the refusal of a request, which is one of the constants.
func RefusalOf(requested string) Refusal {
	for _, r := range Refusals() {
		if r.Request == requested {
			return r
		}
	}
	panic(fmt.Sprintf("translate: no refusal of %q", requested)) // TestEachRefusalIsUsed
}

// Holds reports whether engines with these facts refuse it.
func (r *Refusal) Holds(facts *Facts) bool { return r.From == "" || !facts.has(r.From) }

// PrivilegedRules are what the configuration says of privileged containers.
type PrivilegedRules struct {
	// WithoutDevices denies them the host's devices; Filtered gives them a seccomp profile.
	WithoutDevices, Filtered bool
}

// CheckPrivileged refuses a privileged container that the engine cannot create by the rules.
func CheckPrivileged(config *runtimeapi.ContainerConfig, rules PrivilegedRules, facts Facts) error {
	const field = "config.linux.security_context.privileged"
	switch {
	case !request.Security(config).GetPrivileged():
		return nil
	case rules.WithoutDevices:
		return facts.refuse(PrivilegedNoDevices, field)
	case rules.Filtered:
		return facts.refuse(PrivilegedFilter, field)
	}
	return nil
}

// refuse returns the error of a request that is refused; field is where the request has it. Nil
// if the engine honours it.
func (f *Facts) refuse(requested, field string) error {
	r := RefusalOf(requested)
	switch {
	case !r.Holds(f):
		return nil
	case r.From != "":
		return fielderror.Unsupported(field, "%s; version %s of the API honours it, this engine has %s", r.Reason, r.From, f.APIVersion)
	}
	return fielderror.Unsupported(field, "%s", r.Reason)
}
