package harness

import (
	"errors"
	"testing"

	"github.com/berthrun/berth/internal/docker/api"
	"github.com/berthrun/berth/internal/engine/docker/translate"
	"github.com/berthrun/berth/internal/require"
)

// Refuses returns the reason if the engine under test refuses a request, which is a constant of package
// translate: Unimplemented, with the reason in the message. Nil if the engine honours it.
func (b *Berth) Refuses(requested string) error {
	b.T.Helper()
	if b.Docker == nil {
		return nil
	}
	refusal, facts := translate.RefusalOf(requested), b.dockerFacts()
	switch {
	case !refusal.Holds(facts), requested == translate.SELinuxOptions && facts.SELinux, requested == translate.SwapLimit && facts.SwapLimit:
		return nil
	}
	return errors.New(refusal.Reason)
}

// Needs skips a test that makes a request which the engine under test refuses.
func (b *Berth) Needs(t testing.TB, requested string) {
	t.Helper()
	require.Engine(t, requested, b.Refuses(requested))
}

// dockerFacts are what the Docker engine of the instance can do.
func (b *Berth) dockerFacts() *translate.Facts {
	b.T.Helper()
	if b.facts != nil {
		return b.facts
	}
	client, err := api.New(api.Options{Endpoint: b.Docker.Endpoint})
	must(b.T, err)
	defer client.Close()
	found, err := client.Facts(b.Ctx())
	must(b.T, err)
	facts := translate.FactsOf(found)
	b.facts = &facts
	return b.facts
}

// The parts of the native engine that no request of CRI is about. Has and NeedsPart name them.
const (
	// Supervisors are berth's own parents of containers, with their keeper.
	Supervisors = "a supervisor and a keeper"
	// LoneCommands are cgroups of their own for commands in a container.
	LoneCommands = "a cgroup for each command in a container"
	// OrderedStreams is one order of the lines of stdout and stderr.
	OrderedStreams = "one order of the lines of stdout and stderr"
	// ManifestAnnotations are the annotations of an image's manifest.
	ManifestAnnotations = "annotations of the manifests of images"
	// Inheritable are capabilities in the inheritable set, and Hooks the annotations that hooks see.
	Inheritable = "inheritable capabilities by configuration"
	Hooks       = "annotations that hooks of the OCI runtime see"
	// ClampedLimits are limits of processes, and scores of the OOM killer, that are lowered to what the host allows.
	ClampedLimits = "limits that are lowered to what the host allows"
	// OwnCDI is a configuration of CDI that is berth's.
	OwnCDI = "directories of CDI specs by configuration"
	// MadeRootfs are mounts and root filesystems that berth makes.
	MadeRootfs = "root filesystems and /dev/shm that berth makes"
	// OwnLayers are layers that berth unpacks, with checks of each entry. Another engine keeps what leads
	// out of an image inside of it.
	OwnLayers = "checks of the entries of layers"
	// ExecFaults are the errors of commands that the kernel cannot execute, though they are there.
	ExecFaults = "errors of programs whose interpreter is missing"
	// Artifacts are OCI artifacts that are pulled and mounted.
	Artifacts = "OCI artifacts"
	// ImportDirs are directories of archives that the daemon imports.
	ImportDirs = "directories of archives that the daemon imports"
	// LinksInVolumes are links of an image that a sub path of a volume leads through.
	LinksInVolumes = "absolute links in the sub paths of mounted images"
	// EarlyFaults are faults of a container's parts that its create finds.
	EarlyFaults = "faults of mounts, devices and filters that the create of a container finds"
	// ScopeNames are names of the cgroups of containers that a configuration chooses.
	ScopeNames = "names of cgroups by configuration"
	// Plugins are those of the Node Resource Interface.
	Plugins = "plugins of the Node Resource Interface"
	// FrozenByRuntime is a container that is frozen with its cgroup.
	FrozenByRuntime = "commands in a container whose cgroup is frozen"
	// HostKernel is the kernel of the host below containers: its /proc, sysctls, namespaces and names of terminals.
	HostKernel = "the kernel of the host below containers"
	// ContainerLimits are limits of containers in their cgroups.
	ContainerLimits = "limits of containers in their cgroups"
	// SeccompFilters are filters of system calls by OCI profiles.
	SeccompFilters = "seccomp profiles"
	// SharedNetNS are sockets that the host opens in the network namespace of a pod.
	SharedNetNS = "sockets of the host in the network namespace of a pod"
	// ContainerProcesses are processes of the host for those of containers.
	ContainerProcesses = "processes of containers on the host"
)

// missingParts has the reasons why a part is not there with a Docker Engine.
func missingParts() map[string]string {
	return map[string]string{
		Supervisors:         "the shims of the Docker Engine are the parents of containers",
		LoneCommands:        "the Docker Engine runs commands in the cgroup of the container",
		OrderedStreams:      "the Docker Engine reads the streams one by one",
		ManifestAnnotations: "the Docker Engine keeps no manifests with its graph drivers",
		Inheritable:         "the Docker Engine's API has no inheritable capabilities",
		Hooks:               "the Docker Engine's API has no annotations of the OCI spec before version 1.43",
		ClampedLimits:       "the Docker Engine passes limits on as they are, and the test's runtime changes them",
		OwnCDI:              "the Docker Engine reads CDI specs in directories of its own configuration",
		MadeRootfs:          "the Docker Engine makes root filesystems and /dev/shm",
		OwnLayers:           "the Docker Engine unpacks layers",
		ExecFaults:          "the Docker Engine's OCI runtime has started a command when it executes the program",
		Artifacts:           "the Docker Engine pulls container images alone",
		ImportDirs:          "the Docker Engine keeps the images, and berth imports none into it by itself",
		LinksInVolumes:      "the Docker Engine follows links of an image from the root of the host's paths, and finds nothing there",
		EarlyFaults:         "the Docker Engine's OCI runtime looks at the parts of a container when it starts",
		ScopeNames:          "the Docker Engine names the cgroups of containers",
		Plugins:             "the Docker Engine makes the OCI specs that plugins adjust",
		FrozenByRuntime:     "the Docker Engine does not notice that somebody else froze a cgroup",
	}
}

// missingInGVisor has the reasons why a part is not there when gVisor's shim runs the containers: see docs/handlers.md.
func missingInGVisor() map[string]string {
	return map[string]string{
		EarlyFaults:        "gVisor mounts what a container needs when it starts the container",
		HostKernel:         "gVisor has a kernel of its own, with its own /proc and namespaces",
		ContainerLimits:    "gVisor does not apply the limits of containers: those of the pod's cgroup hold",
		SeccompFilters:     "gVisor does not apply seccomp profiles of OCI specs",
		SharedNetNS:        "gVisor takes the addresses of the pod's interface: a socket of the host in that namespace gets nothing",
		ContainerProcesses: "gVisor has one process on the host for all containers of a pod",
		LoneCommands:       "gVisor ends a command at its time limit, and not what the command has started",
	}
}

// missing returns the reason why the engine under test does not have a part, "" if it does.
func (b *Berth) missing(part string) string {
	switch {
	case b.Docker != nil:
		return missingParts()[part]
	case b.GVisor:
		return missingInGVisor()[part]
	}
	return ""
}

// Has reports whether the engine under test has a part.
func (b *Berth) Has(part string) bool { return b.missing(part) == "" }

// NeedsPart skips a test that is about a part which the engine under test does not have.
func (b *Berth) NeedsPart(t testing.TB, part string) {
	t.Helper()
	if b.Has(part) {
		return
	}
	require.Engine(t, part, errors.New(b.missing(part)))
}

// NeedsOfHandler is NeedsPart for what each engine has, and the runtime of a handler may lack: test/coverage counts
// tests with NeedsPart as those that an engine skips.
func (b *Berth) NeedsOfHandler(t testing.TB, part string) {
	t.Helper()
	b.NeedsPart(t, part)
}

// PodInit is in the command line of the process that reaps the orphans of a pod with a shared PID
// namespace.
func (b *Berth) PodInit() string {
	if b.Docker != nil {
		return "/pause"
	}
	return "pod-init"
}

// PodInitUser is the user of that process, and its group.
func (b *Berth) PodInitUser() string {
	if b.Docker != nil {
		return "65535"
	}
	return "2147000000"
}

// ImagesAreManifests reports whether the ids of images are the digests of their manifests, and not of
// their configurations.
func (b *Berth) ImagesAreManifests() bool {
	b.T.Helper()
	return b.Docker != nil && b.dockerFacts().ContainerdStore
}

// KnownCapabilities are the capabilities that the engine under test can give, as a set of bits: engines
// with an API before 1.42 know none after CAP_AUDIT_READ.
func (b *Berth) KnownCapabilities() uint64 {
	b.T.Helper()
	if b.Docker != nil && b.dockerFacts().Before("1.42") {
		return 1<<38 - 1
	}
	if b.GVisor { // which has no raw sockets by default
		const netRaw = 1 << 13
		return 1<<64 - 1 - netRaw
	}
	return 1<<64 - 1
}
