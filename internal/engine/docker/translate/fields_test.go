package translate

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/engine/docker/labels"
	"github.com/berthrun/berth/internal/errs"
)

// elsewhere are the fields that this package does not translate, with the part of berth that honours
// them. A path stands for all fields below it.
func elsewhere() map[string]string {
	const rules = "a key of the record, and of the lists, in package pod"
	const image = "package pod resolves the image; ImageID is the result"
	const devices = "package device finds the nodes; Devices is the result"
	const users = "ocispec.ResolveUser finds the user; User is the result"
	const profiles = "the loaders of profiles read it; Seccomp and AppArmor are the result"
	const pauses = "the pause container is an unprivileged user without capabilities for any request"
	const resources = "the engine limits the cgroup of the pod"
	return map[string]string{
		"container metadata.attempt": rules, "sandbox metadata": rules,
		"container image": image, "container mounts.image.annotations": image, "container mounts.image.user_specified_image": image,
		"container mounts.image.image": image, "container mounts.image.image_ref": image,
		"container devices": devices, "container log_path": "package logs writes the log; LogPath is the result",
		"container linux.security_context.run_as_user":                 users,
		"container linux.security_context.run_as_group":                users,
		"container linux.security_context.run_as_username":             users,
		"container linux.security_context.supplemental_groups":         users,
		"container linux.security_context.supplemental_groups_policy":  users,
		"container linux.security_context.seccomp":                     profiles,
		"container linux.security_context.seccomp_profile_path":        profiles,
		"container linux.security_context.apparmor":                    profiles,
		"container linux.security_context.apparmor_profile":            profiles,
		"container linux.security_context.namespace_options.target_id": "the engine finds the container; TargetID is the result",

		"container mounts.image_sub_path":                     "it means nothing without mounts.image; the golden requests have both",
		"container linux.resources.hugepage_limits.page_size": "it means nothing without a limit, which is refused",

		"sandbox hostname":            "package podfiles finds the name; Hostname is the result",
		"sandbox log_directory":       "package logs writes logs below it",
		"sandbox dns_config":          "the engine writes resolv.conf",
		"sandbox port_mappings":       "package network maps ports",
		"sandbox linux.cgroup_parent": "package podcgroup makes it; CgroupParent is the result",
		"sandbox linux.overhead":      "a kubelet has added it to the limits of the cgroup_parent; verbose status shows it",
		"sandbox linux.resources":     resources,
		"sandbox linux.security_context.namespace_options.target_id": "a sandbox joins no container",
		"sandbox linux.security_context.run_as_user":                 pauses,
		"sandbox linux.security_context.run_as_group":                pauses,
		"sandbox linux.security_context.readonly_rootfs":             pauses,
		"sandbox linux.security_context.supplemental_groups":         pauses,
		"sandbox linux.security_context.supplemental_groups_policy":  pauses,
		"sandbox linux.security_context.seccomp":                     pauses,
		"sandbox linux.security_context.seccomp_profile_path":        pauses,
		"sandbox linux.security_context.apparmor":                    pauses,
		"sandbox linux.security_context.privileged":                  "it allows privileged containers: check.Container",
	}
}

// notLinux is the name of the fields that are for another system.
const notLinux = "windows"

// value is a field with a value that a request can have, and that differs from that of a plain request.
func value(path string, field protoreflect.FieldDescriptor) protoreflect.Value {
	switch last := path[strings.LastIndexByte(path, '.')+1:]; {
	case last == "page_size":
		return protoreflect.ValueOfString("2MB")
	case last == "cpuset_cpus", last == "cpuset_mems":
		return protoreflect.ValueOfString("0")
	case last == "drop_capabilities":
		return protoreflect.ValueOfString("CHOWN")
	case last == "pid":
		return protoreflect.ValueOfEnum(protoreflect.EnumNumber(runtimeapi.NamespaceMode_NODE))
	case last == "add_capabilities", last == "add_ambient_capabilities":
		return protoreflect.ValueOfString("NET_ADMIN")
	case path == "CDI_devices.name":
		return protoreflect.ValueOfString("vendor.com/gpu=0")
	case last == "cpu_period", last == "cpu_quota", last == "cpu_shares":
		return protoreflect.ValueOfInt64(4000)
	case last == "memory_limit_in_bytes", last == "memory_swap_limit_in_bytes":
		return protoreflect.ValueOfInt64(64 << 20)
	}
	switch field.Kind() {
	case protoreflect.StringKind:
		return protoreflect.ValueOfString("/value")
	case protoreflect.BytesKind:
		return protoreflect.ValueOfBytes([]byte("value"))
	case protoreflect.BoolKind:
		return protoreflect.ValueOfBool(true)
	case protoreflect.EnumKind:
		return protoreflect.ValueOfEnum(1)
	case protoreflect.Int64Kind:
		return protoreflect.ValueOfInt64(7)
	case protoreflect.Uint64Kind:
		return protoreflect.ValueOfUint64(7)
	case protoreflect.Uint32Kind:
		return protoreflect.ValueOfUint32(7)
	default:
		return protoreflect.ValueOfInt32(7)
	}
}

// set sets the field at the end of a path, with all messages and one element of all lists above it.
func set(message protoreflect.Message, path string, fields []protoreflect.FieldDescriptor) {
	field := fields[0]
	switch last := len(fields) == 1; {
	case field.IsMap():
		message.Mutable(field).Map().Set(protoreflect.ValueOfString("run.example/key.x").MapKey(), protoreflect.ValueOfString("1"))
	case field.IsList() && last && field.Message() == nil:
		message.Mutable(field).List().Append(value(path, field))
	case field.IsList():
		list := message.Mutable(field).List()
		if list.Len() == 0 {
			list.AppendMutable()
		}
		set(list.Get(0).Message(), path, fields[1:])
	case last && field.Message() != nil: // Int64Value
		inner := message.Mutable(field).Message()
		inner.Set(inner.Descriptor().Fields().Get(0), protoreflect.ValueOfInt64(7))
	case last:
		message.Set(field, value(path, field))
	default:
		set(message.Mutable(field).Message(), path, fields[1:])
	}
}

// eachField calls do with the path of each field of a message that holds a value.
func eachField(message protoreflect.MessageDescriptor, above []protoreflect.FieldDescriptor, do func(path string, fields []protoreflect.FieldDescriptor)) {
	all := message.Fields()
	for i := range all.Len() {
		field := all.Get(i)
		fields := append(slices.Clone(above), field)
		var names []string
		for _, f := range fields {
			names = append(names, string(f.Name()))
		}
		switch {
		case field.Name() == notLinux:
		case field.Message() == nil || field.IsMap() || strings.HasSuffix(string(field.Message().Name()), "Int64Value"):
			do(strings.Join(names, "."), fields)
		default:
			eachField(field.Message(), fields, do)
		}
	}
}

// plain are requests with what a field may need beside it.
func plain() (*runtimeapi.PodSandboxConfig, *runtimeapi.ContainerConfig) {
	in := input(nil)
	config, pod := in.Spec.Config, in.Spec.SandboxSpec.Config
	config.Mounts = []*runtimeapi.Mount{{HostPath: "/host", ContainerPath: "/container"}}
	config.Devices = []*runtimeapi.Device{{HostPath: "/dev/null", ContainerPath: "/dev/x", Permissions: "r"}}
	config.Linux.Resources.MemoryLimitInBytes = 32 << 20
	return pod, config
}

// outcome is what the engine gets for requests, or the error that refuses them.
func outcome(t *testing.T, pod *runtimeapi.PodSandboxConfig, config *runtimeapi.ContainerConfig) (string, error) {
	t.Helper()
	facts := factsWith("1.51")
	facts.SELinux = true
	if err := errors.Join(CheckSandbox(pod, facts), CheckContainer(config, pod, facts)); err != nil {
		return "", err
	}
	in := input(nil)
	in.Spec.Config, in.Spec.SandboxSpec.Config, in.Facts = config, pod, facts
	in.Spec.VolumeImages = map[int]string{0: "sha256:volume"}
	in.Name, in.Labels = labels.ContainerName(config, pod), labels.OfContainer(in.Spec, "default", "pause1")
	in.Seccomp, in.TargetID = &specs.LinuxSeccomp{}, "target1"
	container, err := Container(in)
	if err != nil {
		return "", err
	}
	pause, err := Sandbox(SandboxInput{
		Spec: in.Spec.SandboxSpec, Hostname: "pod", Name: labels.SandboxName(pod), Labels: labels.OfSandbox(in.Spec.SandboxSpec, "default"), Facts: facts,
	})
	if err != nil {
		return "", err
	}
	text, err := json.Marshal([]any{container, pause})
	if err != nil {
		t.Fatal(err)
	}
	return string(text), nil
}

// TestNoFieldIsIgnored: each field of a sandbox and of a container changes what the engine gets, or is
// refused, or another part of berth honours it.
func TestNoFieldIsIgnored(t *testing.T) {
	pod, config := plain()
	before, err := outcome(t, pod, config)
	if err != nil {
		t.Fatal(err)
	}
	used := map[string]bool{}
	try := func(kind string, message proto.Message) func(string, []protoreflect.FieldDescriptor) {
		return func(path string, fields []protoreflect.FieldDescriptor) {
			name := kind + " " + path
			changedPod, changed := proto.CloneOf(pod), proto.CloneOf(config)
			target := changed.ProtoReflect()
			if kind == "sandbox" {
				target = changedPod.ProtoReflect()
			}
			set(target, path, fields)
			after, err := outcome(t, changedPod, changed)
			for listed := range elsewhere() {
				if name == listed || strings.HasPrefix(name, listed+".") {
					used[listed] = true
					return
				}
			}
			switch {
			case err != nil && !errors.Is(err, errs.Unsupported) && !errors.Is(err, errs.Invalid):
				t.Errorf("%s: %v", name, err)
			case err == nil && after == before:
				t.Errorf("%s is ignored: translate it, refuse it, or say which part of berth honours it", name)
			}
		}
	}
	eachField(pod.ProtoReflect().Descriptor(), nil, try("sandbox", pod))
	eachField(config.ProtoReflect().Descriptor(), nil, try("container", config))
	for listed := range elsewhere() {
		if !used[listed] {
			t.Errorf("no field of the API is %q", listed)
		}
	}
}

// TestEachRefusalIsUsed: a request that has only what is refused is refused, for the reason of the list.
func TestEachRefusalIsUsed(t *testing.T) {
	old := factsWith("1.40")
	old.SwapLimit = false
	labelled := factsWith("1.51")
	labelled.SELinux = true
	for _, r := range Refusals() {
		facts := old
		if r.Request == RelabelledColon || r.Request == RelabelledReadOnly {
			facts = labelled
		}
		pod, config := plain()
		refused := map[string]func(){
			UserNamespaces: func() {
				ids := []*runtimeapi.IDMapping{{HostId: 100000, Length: 65536}}
				config.Linux.SecurityContext.NamespaceOptions.UsernsOptions = &runtimeapi.UserNamespace{Uids: ids, Gids: ids}
				pod.Linux.SecurityContext.NamespaceOptions.UsernsOptions = config.Linux.SecurityContext.NamespaceOptions.UsernsOptions
			},
			MappedMounts:      func() { config.Mounts[0].UidMappings = []*runtimeapi.IDMapping{{Length: 1}} },
			MountOptions:      func() { config.Mounts[0].MountOptions = []string{"noexec"} },
			RecursiveReadOnly: func() { config.Mounts[0].Readonly, config.Mounts[0].RecursiveReadOnly = true, true },
			RelabelledReadOnly: func() {
				config.Mounts[0].Readonly, config.Mounts[0].RecursiveReadOnly, config.Mounts[0].SelinuxRelabel = true, true, true
			},
			RelabelledColon: func() { config.Mounts[0].HostPath, config.Mounts[0].SelinuxRelabel = "/a:b", true },
			ImageMounts: func() {
				config.Mounts[0] = &runtimeapi.Mount{Image: &runtimeapi.ImageSpec{Image: "i"}, ContainerPath: "/b", Readonly: true}
			},
			HugePages: func() {
				config.Linux.Resources.HugepageLimits = []*runtimeapi.HugepageLimit{{PageSize: "2MB", Limit: 1 << 21}}
			},
			Unified:   func() { config.Linux.Resources.Unified = map[string]string{"memory.high": "1"} },
			SwapLimit: func() { config.Linux.Resources.MemorySwapLimitInBytes = 64 << 20 },
			AmbientCapabilities: func() {
				config.Linux.SecurityContext.Capabilities = &runtimeapi.Capability{AddAmbientCapabilities: []string{"KILL"}}
			},
			SELinuxOptions:      func() { config.Linux.SecurityContext.SelinuxOptions = &runtimeapi.SELinuxOption{Type: "x_t"} },
			CDIDevices:          func() { config.CDIDevices = []*runtimeapi.CDIDevice{{Name: "vendor.com/gpu=0"}} },
			PrivilegedNoDevices: func() { config.Linux.SecurityContext.Privileged, pod.Linux.SecurityContext.Privileged = true, true },
			PrivilegedFilter:    func() { config.Linux.SecurityContext.Privileged, pod.Linux.SecurityContext.Privileged = true, true },
			OwnRootfs:           func() { config.Annotations = map[string]string{"run.berth.volumes": "/data"} },
		}[r.Request]
		if refused == nil {
			t.Errorf("%s: the test has no request", r.Request)
			continue
		}
		refused()
		err := errors.Join(CheckContainer(config, pod, facts), CheckPrivileged(config, PrivilegedRules{
			WithoutDevices: r.Request == PrivilegedNoDevices, Filtered: r.Request == PrivilegedFilter,
		}, facts))
		if !errors.Is(err, errs.Unsupported) || !strings.Contains(fmt.Sprint(err), r.Reason) {
			t.Errorf("%s: %v", r.Request, err)
		}
		if r.From == "" {
			continue
		}
		if err := CheckContainer(config, pod, factsWith(r.From)); err != nil {
			t.Errorf("%s with API %s: %v", r.Request, r.From, err)
		}
	}
}
